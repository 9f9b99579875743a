//! JSON as Ceph's formatters print it.

use serde_json::{Number, Value};

/// A float: without `.0` if it is integral, as Ceph's (C++'s) streams print it.
pub fn number_from_f64(v: f64) -> Value {
    if v.fract() == 0.0 && v.abs() < 9.007_199_254_740_992e15 {
        return Value::from(v as i64);
    }
    Number::from_f64(v).map_or(Value::Null, Value::Number)
}
