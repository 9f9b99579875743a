//! `key=value`, `key prefix value`, `key regex value`: conditions on a command's arguments.

use super::Args;
use super::scan::Scan;
use std::collections::BTreeMap;

/// A condition on one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// Exactly this.
    Equal(String),
    /// Begins with this.
    Prefix(String),
    /// All of it matches this regular expression. One that does not compile matches nothing.
    Regex(String),
}

/// Memory that a compiled expression may take.
const REGEX_SIZE: usize = 256 << 10;

impl Constraint {
    /// True if `value` satisfies it.
    pub fn admits(&self, value: &str) -> bool {
        match self {
            Self::Equal(v) => v == value,
            Self::Prefix(v) => value.starts_with(v.as_str()),
            Self::Regex(v) => regex_lite::RegexBuilder::new(&format!("^(?:{v})$"))
                .size_limit(REGEX_SIZE)
                .build()
                .is_ok_and(|r| r.is_match(value)),
        }
    }
}

/// True if every constraint has its argument and admits it.
pub(crate) fn all_admit(constraints: &BTreeMap<String, Constraint>, args: &Args) -> bool {
    constraints.iter().all(|(key, c)| args.get(key).is_some_and(|v| c.admits(v)))
}

fn pair(s: &mut Scan<'_>, loose: bool) -> Option<(String, Constraint)> {
    let key = s.str()?.to_owned();
    let equal = |s: &mut Scan<'_>| {
        if loose {
            s.maybe_spaces();
        }
        s.lit("=")?;
        if loose {
            s.maybe_spaces();
        }
        s.str().map(|v| Constraint::Equal(v.to_owned()))
    };
    let word = |s: &mut Scan<'_>, word: &str| {
        s.spaces()?;
        s.lit(word)?;
        s.spaces()?;
        s.str().map(str::to_owned)
    };
    let value = s
        .attempt(equal)
        .or_else(|| s.attempt(|s| word(s, "prefix")).map(Constraint::Prefix))
        .or_else(|| s.attempt(|s| word(s, "regex")).map(Constraint::Regex))?;
    Some((key, value))
}

/// One or more pairs. `loose` allows spaces around `=`, as the managers' grammar does.
pub(crate) fn pairs(s: &mut Scan<'_>, loose: bool) -> Option<BTreeMap<String, Constraint>> {
    let mut out = BTreeMap::new();
    let (key, value) = s.attempt(|s| pair(s, loose))?;
    out.insert(key, value);
    while let Some((key, value)) = s.attempt(|s| {
        s.spaces()?;
        pair(s, loose)
    }) {
        out.entry(key).or_insert(value);
    }
    Some(out)
}

/// ` with` and pairs, if they are there.
pub(crate) fn with(s: &mut Scan<'_>, loose: bool) -> BTreeMap<String, Constraint> {
    s.attempt(|s| {
        s.spaces()?;
        s.lit("with")?;
        s.spaces()?;
        pairs(s, loose)
    })
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_admit_what_they_say() {
        let regex = Constraint::Regex("[^/]+/[0-9]+".into());
        assert!(regex.admits("1.2.3.4:0/77"));
        assert!(!regex.admits("1.2.3.4:0/77 x"), "all of it must match");
        assert!(!Constraint::Regex("a|b".into()).admits("ab"));
        assert!(!Constraint::Regex("(".into()).admits("("));
        assert!(!Constraint::Regex("((a{1000}){1000}){1000}".into()).admits("a"));
        assert!(Constraint::Prefix("ab".into()).admits("abc"));
        assert!(!Constraint::Prefix("abc".into()).admits("ab"));
        assert!(!Constraint::Equal("a".into()).admits("A"));
    }
}
