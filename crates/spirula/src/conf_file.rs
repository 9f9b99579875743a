//! The form of `ceph.conf`: sections of `name = value` lines.
//!
//! `#` and `;` begin a comment where they do not stand in quotes or behind a backslash; a
//! backslash at the end continues a line; spaces, dashes and underscores in names are the same.

use spirula_settings::options;

/// Longest file read, bytes.
const LONGEST: usize = 1 << 20;

/// A parsed file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConfFile {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    section: String,
    name: String,
    value: String,
    line: usize,
}

impl ConfFile {
    /// Understands the text of a file.
    ///
    /// # Errors
    /// The first line that is no section, entry or comment.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("is longer than {LONGEST} bytes"));
        }
        let mut out = Self::default();
        let mut section = "global".to_owned();
        let mut held = String::new();
        let mut begun = 0;
        for (i, raw) in text.lines().enumerate() {
            if held.is_empty() {
                begun = i + 1;
            }
            if let Some(more) = raw.strip_suffix('\\') {
                held.push_str(more);
                continue;
            }
            let whole = std::mem::take(&mut held) + raw;
            let line = uncommented(&whole);
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                let Some(name) = name.strip_suffix(']') else {
                    return Err(format!("line {begun}: a section is written [name], not {line}"));
                };
                section = name.trim().to_owned();
                continue;
            }
            let Some((name, value)) = line.split_once('=') else {
                return Err(format!(
                    "line {begun}: '{line}' is neither [section] nor name = value"
                ));
            };
            out.entries.push(Entry {
                section: section.clone(),
                name: options::normal_name(name),
                value: unquoted(value.trim()).to_owned(),
                line: begun,
            });
        }
        Ok(out)
    }

    /// What counts for daemon `kind.id`, weakest first: name, value, line.
    pub fn of(&self, kind: &str, id: &str) -> Vec<(String, String, usize)> {
        let own = format!("{kind}.{id}");
        let mut out = Vec::new();
        for section in ["global", kind, &own] {
            let of = self
                .entries
                .iter()
                .filter(|e| e.section == section && options::find(&e.name).is_some());
            out.extend(of.map(|e| (e.name.clone(), e.value.clone(), e.line)));
        }
        out
    }

    /// An entry of `[global]`.
    pub fn global(&self, name: &str) -> Option<&str> {
        let name = options::normal_name(name);
        let found = self.entries.iter().rev().find(|e| e.section == "global" && e.name == name);
        found.map(|e| e.value.as_str())
    }

    /// Names that are no option of ours, in sections that concern our daemons, with their lines.
    pub fn unknown(&self) -> Vec<(String, usize)> {
        let ours = |s: &str| {
            let kind = s.split('.').next().unwrap_or_default();
            matches!(kind, "global" | "mon" | "mgr" | "osd")
        };
        let unknown =
            self.entries.iter().filter(|e| ours(&e.section) && options::find(&e.name).is_none());
        unknown.map(|e| (e.name.clone(), e.line)).collect()
    }
}

/// The line up to its comment; an escaped or quoted mark is none.
fn uncommented(line: &str) -> String {
    let mut out = String::new();
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.clone().next() {
                Some(next @ ('#' | ';' | '\\' | '"' | '\'')) => {
                    chars.next();
                    out.push(next);
                }
                _ => out.push(c),
            },
            '#' | ';' if quote.is_none() => break,
            '"' | '\'' => {
                quote = match quote {
                    None => Some(c),
                    Some(q) if q == c => None,
                    other => other,
                };
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

fn unquoted(value: &str) -> &str {
    for q in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(q).and_then(|v| v.strip_suffix(q)) {
            return inner;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_comments_quotes_and_continuations_are_understood() {
        let text = "fsid = x ; early\n[global]\nmon host = [v2:10.0.0.1:3300,v1:10.0.0.1:6789] \
            \\\n  10.0.0.2\n\
                    # all of it\n[osd.1]\n  osd-data=\"/a;b\"\nhost = a\\#b\nbogus option = 1\n";
        let c = ConfFile::parse(text).unwrap();
        assert_eq!(c.global("fsid"), Some("x"));
        assert_eq!(c.global("mon-host"), Some("[v2:10.0.0.1:3300,v1:10.0.0.1:6789]   10.0.0.2"));
        let of = c.of("osd", "1");
        assert!(of.contains(&("osd_data".into(), "/a;b".into(), 7)), "{of:?}");
        assert!(of.contains(&("host".into(), "a#b".into(), 8)), "{of:?}");
        assert_eq!(c.unknown(), vec![("bogus_option".to_owned(), 9)]);
    }

    #[test]
    fn lines_that_say_nothing_are_refused_with_their_number() {
        assert!(ConfFile::parse("[global]\nwhat\n").unwrap_err().contains("line 2"));
        assert!(ConfFile::parse("[global\n").unwrap_err().contains("line 1"));
        assert!(ConfFile::parse(&"x".repeat(LONGEST + 1)).is_err());
    }
}
