//! Keyring files: sections `[entity]` with `key = …`, `caps SERVICE = "…"`.
//!
//! Prints as `ceph-authtool` of 16.2 does, byte for byte, and reads what it reads: comments after
//! `#` or `;`, values in single or double quotes, `\` escapes, lines continued by `\`, `caps_mon`
//! for `caps mon`. What cannot be read is refused with the number of its line.

use crate::db::User;
use crate::entity::EntityId;
use crate::error::AuthError;
use crate::key::CryptoKey;
use std::collections::BTreeMap;

/// Longest keyring in bytes.
pub const MAX_KEYRING: usize = 1 << 20;

/// Why a keyring cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// Absurdly long.
    #[error("the keyring has {0} bytes, at most {MAX_KEYRING} are read")]
    TooLong(usize),
    /// Not text.
    #[error("the keyring is not UTF-8 text")]
    NotText,
    /// A line that is neither a section nor `key = value`.
    #[error("line {0} is neither [entity] nor name = value")]
    Line(usize),
    /// A value before the first section.
    #[error("line {0}: a value outside of any [entity]")]
    NoSection(usize),
    /// A section whose name is no entity.
    #[error("line {line}: {source}")]
    Section {
        /// Its line.
        line: usize,
        /// What is wrong.
        source: AuthError,
    },
    /// A key that is none.
    #[error("line {line}: {source}")]
    Key {
        /// Its line.
        line: usize,
        /// What is wrong.
        source: AuthError,
    },
    /// A name that keyrings do not know.
    #[error("line {line}: error setting modifier for [{entity}] type={name}")]
    Modifier {
        /// Its line.
        line: usize,
        /// The section.
        entity: EntityId,
        /// The name.
        name: String,
    },
    /// A quote that is not closed.
    #[error("line {0}: the quote is not closed")]
    Quote(usize),
}

/// A section as read: the key may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The key.
    pub key: Option<CryptoKey>,
    /// A key that waits to replace it.
    pub pending_key: Option<CryptoKey>,
    /// Capabilities by service.
    pub caps: BTreeMap<String, String>,
}

/// Reads a keyring.
///
/// # Errors
/// [`KeyringError`].
pub fn parse(bytes: &[u8]) -> Result<BTreeMap<EntityId, Section>, KeyringError> {
    if bytes.len() > MAX_KEYRING {
        return Err(KeyringError::TooLong(bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| KeyringError::NotText)?;
    let mut out: BTreeMap<EntityId, Section> = BTreeMap::new();
    let mut at: Option<EntityId> = None;
    let mut lines = text.lines().enumerate();
    while let Some((n, first)) = lines.next() {
        let number = n + 1;
        let mut joined = first.to_owned();
        while joined.ends_with('\\') {
            joined.pop();
            let Some((_, more)) = lines.next() else { break };
            joined.push_str(more);
        }
        let line = joined.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            let name = section
                .split_once(']')
                .filter(|(_, rest)| is_comment(rest))
                .ok_or(KeyringError::Line(number))?
                .0;
            let entity: EntityId = name
                .trim()
                .parse()
                .map_err(|source| KeyringError::Section { line: number, source })?;
            out.entry(entity.clone()).or_default();
            at = Some(entity);
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(KeyringError::Line(number))?;
        let entity = at.as_ref().ok_or(KeyringError::NoSection(number))?;
        let value = unquote(value, number)?;
        let section = out.entry(entity.clone()).or_default();
        let key = || {
            CryptoKey::from_base64(&value)
                .map_err(|source| KeyringError::Key { line: number, source })
        };
        let name = name
            .split(|c: char| c.is_whitespace() || c == '_')
            .filter(|w| !w.is_empty())
            .collect::<Vec<_>>();
        match name.as_slice() {
            ["key"] => section.key = Some(key()?),
            ["pending", "key"] => section.pending_key = Some(key()?),
            ["caps", service] => {
                section.caps.insert((*service).to_owned(), value);
            }
            // From before Luminous; means nothing any more.
            ["auid"] => {}
            other => {
                return Err(KeyringError::Modifier {
                    line: number,
                    entity: entity.clone(),
                    name: other.join(" "),
                });
            }
        }
    }
    Ok(out)
}

fn is_comment(rest: &str) -> bool {
    let rest = rest.trim_start();
    rest.is_empty() || rest.starts_with(['#', ';'])
}

/// The value: unquoted, escapes undone, comment removed.
fn unquote(text: &str, line: usize) -> Result<String, KeyringError> {
    let text = text.trim();
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    let mut chars = text.chars();
    if quote.is_some() {
        chars.next();
    }
    let mut out = String::new();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (_, '\\') => out.extend(chars.next()),
            (Some(q), c) if c == q => {
                return if is_comment(chars.as_str()) {
                    Ok(out)
                } else {
                    Err(KeyringError::Line(line))
                };
            }
            (None, '#' | ';') => return Ok(out.trim_end().to_owned()),
            (_, c) => out.push(c),
        }
    }
    if quote.is_some() { Err(KeyringError::Quote(line)) } else { Ok(out.trim_end().to_owned()) }
}

/// One entity's section.
pub fn section(entity: &EntityId, user: &User, with_caps: bool) -> String {
    let mut out = format!("[{entity}]\n\tkey = {}\n", user.key.to_base64().as_str());
    if let Some(pending) = &user.pending_key {
        out.push_str(&format!("\tpending key = {}\n", pending.to_base64().as_str()));
    }
    if with_caps {
        for (service, caps) in &user.caps {
            out.push_str(&format!("\tcaps {service} = \"{}\"\n", caps.replace('"', "\\\"")));
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KEY: &str = "AQDSqgBrQrX1IRAArw68htNs2j6F4VXG7iDfWQ==";

    fn one(text: &str) -> Section {
        parse(text.as_bytes()).unwrap().into_values().next().unwrap()
    }

    #[test]
    fn what_ceph_authtool_wrote_reads_and_prints_the_same() {
        let text = format!(
            "[client.x]\n\tkey = {KEY}\n\tcaps mon = \"allow command 'x y'\"\n\tcaps osd = \"allow \
                rw pool=\\\"a b\\\"\"\n"
        );
        let read = parse(text.as_bytes()).unwrap();
        let (entity, s) = read.into_iter().next().unwrap();
        assert_eq!(s.caps["osd"], "allow rw pool=\"a b\"");
        let user = User { key: s.key.unwrap(), pending_key: None, caps: s.caps };
        assert_eq!(section(&entity, &user, true), text);
        assert_eq!(section(&entity, &user, false), format!("[client.x]\n\tkey = {KEY}\n"));
    }

    #[test]
    fn lenient_forms_read_as_ceph_reads_them() {
        let s = one(&format!(
            "[client.x]\nkey = {KEY}\ncaps mon = allow r # c\ncaps osd=allow w ; z\n"
        ));
        assert_eq!((s.caps["mon"].as_str(), s.caps["osd"].as_str()), ("allow r", "allow w"));
        assert_eq!(
            one(&format!("[client.x]\n\tcaps_mon = \"allow r\"\n  key={KEY}")).caps["mon"],
            "allow r"
        );
        assert_eq!(one("[client.x]\ncaps mon = allow\\\n r\n").caps["mon"], "allow r");
        assert_eq!(one("[client.x]\ncaps mon = 'allow r'\n").caps["mon"], "allow r");
        assert_eq!(one("[client.x] # me\nauid = 3\n").key, None);
        assert!(parse(b"").unwrap().is_empty());
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, error) in [
            ("[client.x]\nfoo = bar\n", "line 2: error setting modifier for [client.x] type=foo"),
            ("[client.x]\n\nkey AQ\n", "line 3 is neither [entity] nor name = value"),
            ("key = x\n", "line 1: a value outside of any [entity]"),
            ("[client.x]\nkey = AQDS\n", "line 2: bad key: it is too short"),
            ("[nobody]\n", "line 1: 'nobody' is not an entity name (type.id)"),
            ("[client.x\nkey=a\n", "line 1 is neither [entity] nor name = value"),
            ("[client.x]\ncaps mon = \"allow\n", "line 2: the quote is not closed"),
            ("[client.x]\ncaps mon = \"allow\" r\n", "line 2 is neither [entity] nor name = value"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), error);
        }
        assert_eq!(parse(&[0xff]), Err(KeyringError::NotText));
        assert_eq!(
            parse(&vec![b'#'; MAX_KEYRING + 1]),
            Err(KeyringError::TooLong(MAX_KEYRING + 1))
        );
    }
}
