//! JSON as Ceph's formatters print it.

use serde_json::{Number, Value};

/// A float: without `.0` if it is integral, as Ceph's (C++'s) streams print it.
pub fn number_from_f64(v: f64) -> Value {
    if v.fract() == 0.0 && v.abs() < 9.007_199_254_740_992e15 {
        return Value::from(v as i64);
    }
    Number::from_f64(v).map_or(Value::Null, Value::Number)
}

/// An object literal with its keys in the order written: `object! { "a" => 1, "b" => v }`.
/// (`serde_json::json!` recurses once per key and gives up on Ceph's larger objects.)
macro_rules! object {
    ($($k:expr => $v:expr),* $(,)?) => {{
        let mut m = serde_json::Map::new();
        $(m.insert($k.to_string(), serde_json::Value::from($v));)*
        serde_json::Value::Object(m)
    }};
}
pub(crate) use object;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn integral_floats_print_without_a_fraction() {
        assert_eq!(number_from_f64(1.0).to_string(), "1");
        assert_eq!(number_from_f64(0.5).to_string(), "0.5");
        assert_eq!(number_from_f64(f64::NAN), Value::Null);
        assert_eq!(object! { "b" => 1, "a" => "x" }.to_string(), r#"{"b":1,"a":"x"}"#);
    }
}
