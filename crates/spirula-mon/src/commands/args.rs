//! A command's arguments: the JSON object a client sends, checked against the signature.

use serde_json::{Map, Value};
use spirula_settings::common::{text_of, word_of};
use spirula_types::OsdId;
use spirula_types::errno::{E2BIG, EINVAL};

/// Longest text that an argument may be, bytes: as long as the longest value of a `config-key` (64
/// KiB). What is larger comes as a command's input.
const TEXT_MAX: usize = 64 << 10;

/// A refusal: errno and text.
pub type Refusal = (i32, String);

/// Arguments by name. Getters treat an absent argument as empty or `None`; required ones
/// were checked before the handler runs.
#[derive(Clone, Debug, Default)]
pub struct Args(pub Map<String, Value>);

impl Args {
    /// True if the argument was given and is not empty.
    pub fn has(&self, name: &str) -> bool {
        match self.0.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::Array(a)) => !a.is_empty(),
            Some(_) => true,
        }
    }

    /// True if the argument was given, be it as an empty list: a program that takes all
    /// capabilities from a user sends one.
    fn is_given(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|v| !v.is_null())
    }

    /// A text; numbers and lists are given as text, too.
    pub fn opt_str(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|v| !v.is_null()).map(text_of)
    }

    /// A text, empty if absent.
    pub fn str(&self, name: &str) -> String {
        self.opt_str(name).unwrap_or_default()
    }

    /// A list of texts; a single text is a list of one.
    pub fn list(&self, name: &str) -> Vec<String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(a)) => a.iter().map(word_of).collect(),
            Some(v) => vec![word_of(v)],
        }
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.0.get(name)? {
            Value::Number(n) => n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)),
            Value::String(s) => s.trim().parse().ok(),
            _ => None,
        }
    }

    /// A number.
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.0.get(name)? {
            Value::Number(n) => n.as_f64(),
            Value::String(s) => s.trim().parse().ok(),
            _ => None,
        }
    }

    /// A switch: `true`, or a word that says so (old clients send `--yes-i-really-mean-it`).
    pub fn bool(&self, name: &str) -> bool {
        match self.0.get(name) {
            Some(Value::Bool(b)) => *b,
            Some(Value::String(s)) => {
                s == "true" || s == "1" || s.trim_start_matches('-').replace('-', "_") == name
            }
            Some(Value::Array(a)) => !a.is_empty(),
            _ => false,
        }
    }

    /// An OSD given as `3` or `osd.3`.
    ///
    /// # Errors
    /// EINVAL with Ceph's text.
    pub fn osd(&self, name: &str) -> Result<OsdId, Refusal> {
        parse_osd(&self.str(name))
            .ok_or_else(|| (EINVAL, format!("osd id {} is invalid", self.str(name))))
    }
}

/// `3` or `osd.3`.
pub fn parse_osd(text: &str) -> Option<OsdId> {
    text.strip_prefix("osd.").unwrap_or(text).parse::<OsdId>().ok().filter(|o| *o >= 0)
}

/// The arguments that a signature names, and what every command takes (its words, the form of its
/// answer, whom it is for). What else a client sends means nothing: not to the handler, and not to
/// a capability, or one could be asked of one thing and the other do another.
pub fn taken(sig: &str, args: &Args) -> Args {
    const OF_ALL: [&str; 3] = ["prefix", "format", "target"];
    let named = |key: &str| {
        let names = sig.split_whitespace().filter_map(|w| w.strip_prefix("name="));
        names.filter_map(|w| w.split(',').next()).any(|name| name == key)
    };
    Args(
        args.0
            .iter()
            .filter(|(k, _)| OF_ALL.contains(&k.as_str()) || named(k))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    )
}

/// Checks `args` against a signature in [`CommandSpec`](super::CommandSpec) notation:
/// required ones present, numbers numbers and in range, choices among the allowed.
///
/// # Errors
/// EINVAL with a text that names the argument.
pub fn check(sig: &str, args: &Args) -> Result<(), Refusal> {
    let long = |v: &Value| v.as_str().is_some_and(|s| s.len() > TEXT_MAX);
    let too_long =
        args.0.iter().find(|(_, v)| long(v) || v.as_array().is_some_and(|a| a.iter().any(long)));
    if let Some((name, _)) = too_long {
        return Err((E2BIG, format!("argument '{name}' has more than {TEXT_MAX} bytes")));
    }
    for word in sig.split_whitespace().filter(|w| w.contains('=')) {
        let field =
            |key: &str| word.split(',').find_map(|p| p.strip_prefix(key)?.strip_prefix('='));
        let name = field("name").unwrap_or_default();
        let required = !field("req").is_some_and(|r| r.eq_ignore_ascii_case("false"));
        let many = field("n").is_some();
        if !args.has(name) {
            if required && !(many && args.is_given(name)) {
                return Err((EINVAL, format!("missing required argument '{name}'")));
            }
            continue;
        }
        let bad =
            |what: &str| (EINVAL, format!("argument '{name}': '{}' is not {what}", args.str(name)));
        match field("type").unwrap_or_default() {
            "CephInt" if !many => {
                let v = args.int(name).ok_or_else(|| bad("a whole number"))?;
                in_range(field("range"), v as f64)
                    .then_some(())
                    .ok_or_else(|| bad("in its range"))?;
            }
            "CephFloat" if !many => {
                let v =
                    args.float(name).filter(|f| f.is_finite()).ok_or_else(|| bad("a number"))?;
                in_range(field("range"), v).then_some(()).ok_or_else(|| bad("in its range"))?;
            }
            "CephChoices" => {
                let allowed: Vec<&str> = field("strings").unwrap_or_default().split('|').collect();
                if let Some(v) = args.list(name).iter().find(|v| !allowed.contains(&v.as_str())) {
                    return Err((
                        EINVAL,
                        format!("argument '{name}': '{v}' is not one of {}", allowed.join(", ")),
                    ));
                }
            }
            "CephOsdName" if !many => {
                args.osd(name)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn in_range(range: Option<&str>, v: f64) -> bool {
    let Some(range) = range else { return true };
    let mut bounds = range.split('|').map(|b| b.parse::<f64>());
    let low = bounds.next().and_then(Result::ok).unwrap_or(f64::NEG_INFINITY);
    let high = bounds.next().and_then(Result::ok).unwrap_or(f64::INFINITY);
    (low..=high).contains(&v)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Args {
        let Ok(Value::Object(m)) = serde_json::from_str(text) else { panic!("{text}") };
        Args(m)
    }

    #[test]
    fn arguments_are_checked_against_the_signature() {
        let sig = "osd x name=id,type=CephOsdName name=w,type=CephFloat,range=0.0|1.0 \
            name=k,type=CephChoices,strings=a|b,n=N,req=false";
        let verdict = |t: &str| check(sig, &args(t)).map_err(|e| e.1);
        assert_eq!(verdict(r#"{"id": "osd.3", "w": 0.5, "k": ["a", "b"]}"#), Ok(()));
        assert_eq!(verdict(r#"{"id": 3, "w": "1"}"#), Ok(()));
        assert_eq!(verdict(r#"{"w": 1}"#), Err("missing required argument 'id'".into()));
        assert_eq!(verdict(r#"{"id": "x", "w": 1}"#), Err("osd id x is invalid".into()));
        assert_eq!(
            verdict(r#"{"id": 1, "w": 2}"#),
            Err("argument 'w': '2' is not in its range".into())
        );
        assert_eq!(
            verdict(r#"{"id": 1, "w": 1, "k": ["c"]}"#),
            Err("argument 'k': 'c' is not one of a, b".into())
        );
    }

    #[test]
    fn an_empty_list_is_one_where_a_list_is_asked_for() {
        let sig = "auth caps name=entity,type=CephString name=caps,type=CephString,n=N";
        let verdict = |t: &str| check(sig, &args(t)).map_err(|e| e.1);
        assert_eq!(verdict(r#"{"entity": "client.a", "caps": []}"#), Ok(()));
        assert_eq!(
            verdict(r#"{"entity": "client.a"}"#),
            Err("missing required argument 'caps'".into())
        );
        assert_eq!(
            verdict(r#"{"entity": "client.a", "caps": null}"#),
            Err("missing required argument 'caps'".into())
        );
        assert_eq!(
            verdict(r#"{"entity": [], "caps": []}"#),
            Err("missing required argument 'entity'".into())
        );
    }

    #[test]
    fn switches_understand_words_of_old_clients() {
        let a =
            args(r#"{"yes_i_really_mean_it": "--yes-i-really-mean-it", "b": true, "c": "false"}"#);
        assert!(a.bool("yes_i_really_mean_it") && a.bool("b") && !a.bool("c") && !a.bool("d"));
    }
}
