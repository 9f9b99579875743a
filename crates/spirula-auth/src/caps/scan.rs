//! The scanner under the four grammars: ordered alternatives with backtracking, so that what is
//! accepted, and where reading stops, are Ceph's.

use super::CapsError;
use super::network::Network;

/// A position in a text. Each reading function moves it only if it succeeds.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    text: &'a str,
    pub at: usize,
}

pub(crate) fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-')
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

impl<'a> Scan<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub fn peek(&self) -> Option<u8> {
        self.rest().bytes().next()
    }

    /// Runs `f`; goes back if it gives nothing.
    pub fn attempt<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mut inner = *self;
        let out = f(&mut inner)?;
        *self = inner;
        Some(out)
    }

    /// A literal.
    pub fn lit(&mut self, s: &str) -> Option<()> {
        if !self.rest().starts_with(s) {
            return None;
        }
        self.at += s.len();
        Some(())
    }

    /// As many bytes as satisfy `f`, at least one. Only ASCII bytes may satisfy it.
    pub fn many(&mut self, f: impl Fn(u8) -> bool) -> Option<&'a str> {
        let n = self.rest().bytes().take_while(|b| f(*b)).count();
        let out = self.rest().get(..n).filter(|s| !s.is_empty())?;
        self.at += n;
        Some(out)
    }

    /// White space, at least one.
    pub fn spaces(&mut self) -> Option<()> {
        self.many(is_space).map(|_| ())
    }

    /// Spaces and tabs, if any.
    pub fn blanks(&mut self) {
        let _ = self.many(|b| matches!(b, b' ' | b'\t'));
    }

    /// White space, if any.
    pub fn maybe_spaces(&mut self) {
        let _ = self.spaces();
    }

    /// `=` or white space: what stands between a keyword and its value.
    pub fn is(&mut self) -> Option<()> {
        self.lit("=").or_else(|| self.spaces())
    }

    fn quoted(&mut self, empty_too: bool) -> Option<&'a str> {
        self.attempt(|s| {
            let quote = s.peek().filter(|b| matches!(b, b'"' | b'\''))?;
            s.at += 1;
            let n = s.rest().bytes().position(|b| b == quote)?;
            let out = s.rest().get(..n).filter(|o| empty_too || !o.is_empty())?;
            s.at += n + 1;
            Some(out)
        })
    }

    /// A quoted string that is not empty, or a word.
    pub fn str(&mut self) -> Option<&'a str> {
        self.quoted(false).or_else(|| self.many(is_word))
    }

    /// A quoted string that may be empty, or a word.
    pub fn maybe_empty_str(&mut self) -> Option<&'a str> {
        self.quoted(true).or_else(|| self.many(is_word))
    }

    /// ` network A/N`.
    pub fn network(&mut self) -> Option<Network> {
        self.attempt(|s| {
            s.spaces()?;
            s.lit("network")?;
            s.spaces()?;
            s.many(|b| b.is_ascii_hexdigit() || matches!(b, b'/' | b'.' | b':' | b']' | b'['))
                .map(Network::new)
        })
    }

    /// `*` or `all`.
    pub fn wildcard(&mut self) -> Option<()> {
        self.lit("*").or_else(|| self.lit("all"))
    }

    /// `*`, `all`, or some of `r`, `w`, `x` in this order.
    pub fn rwx(&mut self) -> Option<super::Rwx> {
        if self.wildcard().is_some() {
            return Some(super::Rwx::ANY);
        }
        self.letters()
    }

    /// Some of `r`, `w`, `x` in this order.
    pub fn letters(&mut self) -> Option<super::Rwx> {
        let (r, w, x) = (self.lit("r").is_some(), self.lit("w").is_some(), self.lit("x").is_some());
        (r || w || x).then_some(super::Rwx { r, w, x, any: false })
    }
}

/// Reads grants separated by `separator` to the end of `text`.
pub(crate) fn grants<T>(
    service: &'static str,
    text: &str,
    mut grant: impl FnMut(&mut Scan<'_>) -> Option<T>,
    separator: impl Fn(&mut Scan<'_>) -> Option<()>,
) -> Result<Vec<T>, CapsError> {
    super::bounded(service, text)?;
    let mut s = Scan::new(text);
    let mut out = Vec::new();
    if let Some(first) = s.attempt(&mut grant) {
        out.push(first);
        while let Some(next) = s.attempt(|s| {
            separator(s)?;
            grant(s)
        }) {
            out.push(next);
        }
        s.maybe_spaces();
    }
    if out.is_empty() || s.at < text.len() {
        return Err(CapsError::Stopped { service, at: s.at, text: text.to_owned() });
    }
    Ok(out)
}

/// `,` or `;`.
pub(crate) fn comma(s: &mut Scan<'_>) -> Option<()> {
    s.lit(";").or_else(|| s.lit(","))
}

/// `,` or `;` between blanks (spaces only).
pub(crate) fn spaced_comma(s: &mut Scan<'_>) -> Option<()> {
    let _ = s.many(|b| b == b' ');
    comma(s)?;
    let _ = s.many(|b| b == b' ');
    Some(())
}
