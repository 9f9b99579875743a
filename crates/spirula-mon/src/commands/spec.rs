//! The form of a command: what the CLI needs to know of it, and what a handler returns.
//!
//! Descriptors travel as the JSON of `get_command_descriptions`
//! (`docs/protocol/mon.md` §3): literal words and argument objects, all values strings.

use crate::commands::args::Args;
use crate::mon::CommandCtx;
use bytes::Bytes;

/// Served by the active manager; the CLI sends it there.
pub const FLAG_MGR: u32 = 8;
/// Not shown in help.
pub const FLAG_HIDDEN: u32 = 32;
/// Served to `ceph tell mon.N`, too.
pub const FLAG_TELL: u32 = 1;
/// Superseded, still works.
pub const FLAG_DEPRECATED: u32 = 4;

/// Who may run it: `r`, `rw`, `rx`, `rwx`. A `w` command changes state and is ordered with
/// other changes.
pub type Perm = &'static str;

/// One command: signature and handler.
#[derive(Clone, Copy)]
pub struct CommandSpec {
    /// Words and arguments in Ceph's compact notation: words are bare; an argument is
    /// `name=…,type=…[,n=N][,req=false][,strings=a|b][,range=0|1][,goodchars=…]`.
    pub sig: &'static str,
    /// One line.
    pub help: &'static str,
    /// `osd`, `mon`, `config-key`, …
    pub module: &'static str,
    /// Who may run it.
    pub perm: Perm,
    /// `FLAG_*` bits.
    pub flags: u32,
    /// Runs it.
    pub run: Handler,
}

/// Runs a command.
pub type Handler = fn(&mut CommandCtx<'_>, &Args) -> CommandResult;

/// What a command gives back: result code, status text (stderr), output (stdout).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandResult {
    /// 0 or a negated errno.
    pub ret: i32,
    /// Status text.
    pub rs: String,
    /// Output.
    pub data: Bytes,
}

impl CommandResult {
    /// Success with a status text.
    pub fn ok(rs: impl Into<String>) -> Self {
        Self { ret: 0, rs: rs.into(), data: Bytes::new() }
    }
    /// Success with output.
    pub fn data(data: impl Into<Bytes>) -> Self {
        Self { ret: 0, rs: String::new(), data: data.into() }
    }
    /// Failure: `errno` positive as in `spirula_types::errno`.
    pub fn err(errno: i32, rs: impl Into<String>) -> Self {
        Self { ret: -errno, rs: rs.into(), data: Bytes::new() }
    }
    /// The same with another status text.
    #[must_use]
    pub fn with_rs(mut self, rs: impl Into<String>) -> Self {
        self.rs = rs.into();
        self
    }
}

impl CommandSpec {
    /// The literal words, joined by spaces: what `prefix` holds in a request.
    pub fn prefix(&self) -> String {
        let words: Vec<&str> = self.sig.split_whitespace().filter(|w| !w.contains('=')).collect();
        words.join(" ")
    }

    /// The descriptor the CLI reads.
    pub fn descriptor(&self) -> serde_json::Value {
        descriptor_of(self.sig, self.help, self.module, self.perm, self.flags)
    }
}

/// The descriptor of a command with that signature.
pub(super) fn descriptor_of(
    sig: &str,
    help: &str,
    module: &str,
    perm: &str,
    flags: u32,
) -> serde_json::Value {
    let sig: Vec<serde_json::Value> = sig.split_whitespace().map(word_descriptor).collect();
    serde_json::json!({ "sig": sig, "help": help, "module": module, "perm": perm, "flags": flags })
}

fn word_descriptor(word: &str) -> serde_json::Value {
    if !word.contains('=') {
        return word.into();
    }
    let mut map = serde_json::Map::new();
    for part in word.split(',') {
        // `key=value`; a lone key continues nothing and would be a table mistake.
        let (k, v) = part.split_once('=').unwrap_or((part, ""));
        map.insert(k.to_owned(), v.into());
    }
    map.into()
}
