//! The form of a command: what the `ceph` tool needs to know of it, its arguments, its answer.

use crate::event::Now;
use crate::mgr::Mgr;
use serde_json::{Map, Value, json};
use spirula_format::{Format, to_json};
use spirula_maps::FsMap;
use spirula_messages::cluster::control::{OsdForce, OsdScrub};
use spirula_types::{OsdId, errno};
use std::borrow::Cow;

/// Descriptor flag: served by the manager; the tool sends it here.
pub const FLAG_MGR: u32 = 8;
/// Descriptor flag: the tool asks again every second.
pub const FLAG_POLL: u32 = 16;

/// One command.
#[derive(Clone, Copy)]
pub(crate) struct CommandSpec {
    /// Words and arguments in Ceph's notation: `name=…,type=…[,n=N][,req=false][,strings=a|b]`.
    pub sig: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Module, for permissions.
    pub module: &'static str,
    /// `r`, `rw`.
    pub perm: &'static str,
    /// Flags besides [`FLAG_MGR`].
    pub flags: u32,
    /// Runs it.
    pub run: fn(&Ctx<'_>) -> Reply,
}

impl CommandSpec {
    /// The literal words, joined by spaces: `prefix` of a request.
    pub fn prefix(&self) -> String {
        self.sig.split_whitespace().filter(|w| !w.contains('=')).collect::<Vec<_>>().join(" ")
    }

    /// The first word of a list among these arguments that is no text, with the list's name: a
    /// command that skipped it would do something else than what it was asked for.
    pub fn no_word<'a>(&self, args: &'a Map<String, Value>) -> Option<(&'static str, &'a Value)> {
        self.sig.split_whitespace().filter(|w| w.split(',').any(|part| part == "n=N")).find_map(
            |word| {
                let name = word.split(',').find_map(|part| part.strip_prefix("name="))?;
                let words = match args.get(name)? {
                    Value::Null => return None,
                    Value::Array(items) => items.as_slice(),
                    one => std::slice::from_ref(one),
                };
                words.iter().find(|v| text(v).is_none()).map(|v| (name, v))
            },
        )
    }

    /// The descriptor the tool reads.
    pub fn descriptor(&self, flags: u32) -> Value {
        descriptor_of(self.sig, self.help, self.module, self.perm, flags)
    }
}

/// A descriptor as the tool reads it; all values are strings except the flags.
pub(super) fn descriptor_of(sig: &str, help: &str, module: &str, perm: &str, flags: u32) -> Value {
    let word = |word: &str| -> Value {
        if !word.contains('=') {
            return word.into();
        }
        let mut map = Map::new();
        for part in word.split(',') {
            let (k, v) = part.split_once('=').unwrap_or((part, ""));
            map.insert(k.to_owned(), v.into());
        }
        map.into()
    };
    let sig: Vec<Value> = sig.split_whitespace().map(word).collect();
    json!({"sig": sig, "help": help, "module": module, "perm": perm, "flags": flags})
}

/// What a running command sees.
pub(crate) struct Ctx<'a> {
    /// The manager.
    pub mgr: &'a Mgr,
    /// The present.
    pub now: Now,
    /// The request: a JSON object.
    pub args: &'a Map<String, Value>,
    /// Output form asked for.
    pub format: Format,
    /// The file systems that the asker may know of.
    pub fsmap: Cow<'a, FsMap>,
}

impl Ctx<'_> {
    /// A text argument; numbers count as text.
    pub fn str(&self, name: &str) -> Option<String> {
        text(self.args.get(name)?)
    }

    /// A whole number, also as text.
    pub fn int(&self, name: &str) -> Option<i64> {
        let v = self.args.get(name)?;
        v.as_i64().or_else(|| v.as_str()?.parse().ok())
    }

    /// A flag, also as text.
    pub fn bool(&self, name: &str) -> bool {
        match self.args.get(name) {
            Some(Value::Bool(b)) => *b,
            Some(Value::String(s)) => s == "true",
            _ => false,
        }
    }

    /// A list of texts; a lone text is a list of one. There is nothing else in it
    /// ([`CommandSpec::no_word`]).
    pub fn list(&self, name: &str) -> Vec<String> {
        match self.args.get(name) {
            Some(Value::Array(items)) => items.iter().filter_map(text).collect(),
            Some(v) => text(v).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// An OSD by number or as `osd.N`.
    pub fn osd(&self, name: &str) -> Option<OsdId> {
        parse_osd(&self.str(name)?)
    }

    /// JSON in the form asked for (pretty for plain), without a newline in compact form.
    pub fn json(&self, value: &Value) -> Reply {
        Reply::data(to_json(value, self.format))
    }
}

fn text(v: &Value) -> Option<String> {
    match v {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

/// `3` or `osd.3`.
pub(crate) fn parse_osd(s: &str) -> Option<OsdId> {
    s.strip_prefix("osd.").unwrap_or(s).parse().ok().filter(|n| *n >= 0)
}

/// What an OSD is to do because of a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    /// To scrub.
    Scrub(OsdScrub),
    /// To recover some PGs first.
    Force(OsdForce),
}

/// What a command gives back.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
    /// 0 or −errno.
    pub ret: i32,
    /// Status text (stderr).
    pub rs: String,
    /// Output (stdout).
    pub data: String,
    /// Orders to OSDs that follow from it.
    pub orders: Vec<(OsdId, Order)>,
    /// It asked what is done with block images: OSDs count that for a while.
    pub counts_images: bool,
}

impl Reply {
    /// Success with output.
    pub fn data(data: impl Into<String>) -> Self {
        Self { data: data.into(), ..Self::default() }
    }

    /// Success with a status text.
    pub fn ok(rs: impl Into<String>) -> Self {
        Self { rs: rs.into(), ..Self::default() }
    }

    /// Failure; `errno` positive.
    pub fn err(errno: i32, rs: impl Into<String>) -> Self {
        Self { ret: -errno, rs: rs.into(), ..Self::default() }
    }

    /// Bad argument.
    pub fn invalid(rs: impl Into<String>) -> Self {
        Self::err(errno::EINVAL, rs)
    }

    /// The same with a status text.
    #[must_use]
    pub fn with_rs(mut self, rs: impl Into<String>) -> Self {
        self.rs = rs.into();
        self
    }

    /// The same with another result.
    #[must_use]
    pub fn with_ret(mut self, ret: i32) -> Self {
        self.ret = ret;
        self
    }
}
