//! Output formats, and JSON in the two dialects that a Ceph cluster prints.
//!
//! Ceph's own formatter writes doubles with 17 significant digits (`%.17g`, so `1` and
//! `0.83799999999999997`); its manager modules print with Python's `json` (`1.0`, `0.838`,
//! sorted keys). `serde_json` alone gives neither.

use crate::units::general;
use serde_json::Value;
use std::fmt::Write as _;

/// What `-f` asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    #[default]
    Plain,
    /// JSON without white space.
    Json,
    /// JSON with four-space indentation.
    JsonPretty,
}

impl Format {
    /// By name; anything but `json` and `json-pretty` is [`Format::Plain`], as the formats
    /// we do not have (`xml`, `yaml`…) fall back to text.
    pub fn parse(name: &str) -> Self {
        match name {
            "json" => Self::Json,
            "json-pretty" => Self::JsonPretty,
            _ => Self::Plain,
        }
    }

    /// From a command's `format` argument.
    pub fn of_command(command: &Value) -> Self {
        command.get("format").and_then(Value::as_str).map_or(Self::Plain, Self::parse)
    }

    /// True for both JSON forms.
    pub fn is_json(self) -> bool {
        self != Self::Plain
    }
}

/// `value` in `format`; [`Format::Plain`] prints pretty, as Ceph does for commands that
/// have no text form. Pretty output ends with a newline, compact output does not.
pub fn to_json(value: &Value, format: Format) -> String {
    if format == Format::Json {
        let mut out = String::new();
        Writer { dialect: Dialect::CephCompact, out: &mut out }.value(value, 0);
        out
    } else {
        pretty(value)
    }
}

/// `value` with four-space indentation and a final newline.
pub fn pretty(value: &Value) -> String {
    let mut out = String::new();
    Writer { dialect: Dialect::CephPretty, out: &mut out }.value(value, 0);
    out.push('\n');
    out
}

/// As Python's `json.dumps(value)`: `", "` and `": "`, keys in the order given.
pub fn to_python(value: &Value) -> String {
    let mut out = String::new();
    Writer { dialect: Dialect::PythonLine, out: &mut out }.value(value, 0);
    out
}

/// As Python's `json.dumps(value, indent=4, sort_keys=True)`.
pub fn to_python_pretty(value: &Value) -> String {
    let mut out = String::new();
    Writer { dialect: Dialect::PythonPretty, out: &mut out }.value(value, 0);
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    CephCompact,
    CephPretty,
    PythonLine,
    PythonPretty,
}

struct Writer<'a> {
    dialect: Dialect,
    out: &'a mut String,
}

impl Writer<'_> {
    fn value(&mut self, v: &Value, depth: usize) {
        match v {
            Value::Null => self.out.push_str("null"),
            Value::Bool(b) => self.out.push_str(if *b { "true" } else { "false" }),
            Value::Number(n) => self.number(n),
            Value::String(s) => self.string(s),
            Value::Array(items) => {
                self.out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.between(i, depth + 1);
                    self.value(item, depth + 1);
                }
                self.close(items.is_empty(), depth, ']');
            }
            Value::Object(map) => {
                self.out.push('{');
                let mut entries: Vec<_> = map.iter().collect();
                if self.dialect == Dialect::PythonPretty {
                    entries.sort_by(|a, b| a.0.cmp(b.0));
                }
                for (i, (key, item)) in entries.into_iter().enumerate() {
                    self.between(i, depth + 1);
                    self.string(key);
                    self.out.push_str(if self.dialect == Dialect::CephCompact {
                        ":"
                    } else {
                        ": "
                    });
                    self.value(item, depth + 1);
                }
                self.close(map.is_empty(), depth, '}');
            }
        }
    }

    fn between(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push(',');
        }
        match self.dialect {
            Dialect::CephCompact => {}
            Dialect::PythonLine if index > 0 => self.out.push(' '),
            Dialect::PythonLine => {}
            Dialect::CephPretty | Dialect::PythonPretty => self.newline(depth),
        }
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty && matches!(self.dialect, Dialect::CephPretty | Dialect::PythonPretty) {
            self.newline(depth);
        }
        self.out.push(bracket);
    }

    fn newline(&mut self, depth: usize) {
        self.out.push('\n');
        for _ in 0..depth {
            self.out.push_str("    ");
        }
    }

    fn number(&mut self, n: &serde_json::Number) {
        match n.as_f64() {
            Some(f) if n.is_f64() => match self.dialect {
                Dialect::CephCompact | Dialect::CephPretty => self.out.push_str(&general(f, 17)),
                Dialect::PythonLine | Dialect::PythonPretty => self.out.push_str(&repr(f)),
            },
            _ => {
                let _ = write!(self.out, "{n}");
            }
        }
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\t' => self.out.push_str("\\t"),
                c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python's `repr` of a float: shortest digits that read back, exponent form outside
/// `1e-4 ..< 1e16`, always a point or an exponent.
fn repr(f: f64) -> String {
    if f != 0.0 && f.is_finite() && !(1e-4..1e16).contains(&f.abs()) {
        let text = format!("{f:e}");
        if let Some((mantissa, exponent)) = text.split_once('e') {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            return format!("{mantissa}e{sign}{:02}", exponent.abs());
        }
    }
    format!("{f:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn compact_form_has_no_spaces_and_whole_floats_no_point() {
        let v = json!({"a": 1, "b": [1.0, 0.838, "x/\"y"], "c": {}, "d": []});
        assert_eq!(
            to_json(&v, Format::Json),
            r#"{"a":1,"b":[1,0.83799999999999997,"x/\"y"],"c":{},"d":[]}"#
        );
    }

    #[test]
    fn pretty_form_indents_by_four_and_keeps_empty_containers_on_the_line() {
        let v = json!({"epoch": 38, "services": {}, "l": [1]});
        assert_eq!(
            to_json(&v, Format::Plain),
            "{\n    \"epoch\": 38,\n    \"services\": {},\n    \"l\": [\n        1\n    ]\n}\n"
        );
    }

    #[test]
    fn python_forms_sort_keys_and_keep_the_point() {
        let v = json!({"b": 1.0, "a": [1, 2]});
        assert_eq!(to_python(&v), r#"{"b": 1.0, "a": [1, 2]}"#);
        assert_eq!(
            to_python_pretty(&v),
            "{\n    \"a\": [\n        1,\n        2\n    ],\n    \"b\": 1.0\n}"
        );
    }

    #[test]
    fn every_sample_of_ceph_reads_and_prints_back_to_the_byte() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/cli-output");
        let mut compared = 0;
        for entry in std::fs::read_dir(dir).expect(dir) {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.trim();
            // Some are Python's or end in a stray newline before the last brace.
            let Ok(v) = serde_json::from_str::<Value>(text) else { continue };
            let ours = [
                to_json(&v, Format::Json),
                pretty(&v).trim_end().to_owned(),
                to_python(&v),
                to_python_pretty(&v),
            ];
            let flat = text.replace("\n}", "}");
            assert!(
                ours.iter().any(|o| o == text || *o == flat),
                "{}:\n{text}\n{}",
                path.display(),
                ours[0]
            );
            compared += 1;
        }
        assert!(compared > 40, "only {compared} samples");
    }

    #[test]
    fn format_names() {
        assert_eq!(Format::of_command(&json!({"format": "json-pretty"})), Format::JsonPretty);
        assert_eq!(Format::of_command(&json!({"format": 3})), Format::Plain);
        assert_eq!(Format::parse("xml"), Format::Plain);
    }
}
