//! Tests of the classes on an object in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod basic;
mod corpus;
mod garbage;
mod gateway;
mod golden;
mod images;
mod memory;
mod recorded;

use crate::{Caller, Stop, find};
use bytes::Bytes;
pub(crate) use memory::Memory;
use spirula_encoding::{Encoder, UTime};
use spirula_types::{EntityAddr, EntityName, errno};

impl Memory {
    pub fn new() -> Self {
        let addr = EntityAddr::v2("127.0.0.1:0".parse().unwrap(), 77);
        let now = UTime { sec: 1_000, nsec: 5 };
        Self {
            caller: Caller { name: EntityName::client(1), addr },
            now,
            largest: 128 << 20,
            ..Self::default()
        }
    }

    /// Calls a method: its result, negative if it fails, and its output. A failure changes nothing.
    pub fn call(&mut self, class: &str, method: &str, input: &[u8]) -> (i32, Bytes) {
        let (_, method) = find(class.as_bytes(), method.as_bytes()).unwrap();
        let mut after = self.clone();
        match method.run(&mut after, Bytes::copy_from_slice(input)) {
            (Ok(_), out) if !method.flags.write && after.unlike(self) => {
                assert_eq!(
                    (class, method.name),
                    ("hello", "bad_writer"),
                    "no other does what it is not registered for"
                );
                (-errno::EIO, out)
            }
            (Ok(result), out) => {
                *self = after;
                (result, out)
            }
            (Err(Stop::Errno(e)), out) => (-e, out),
            (Err(Stop::Later), _) => panic!("waits for nothing"),
        }
    }

    /// Calls a method as another client.
    pub fn as_client(&mut self, number: u64) -> &mut Self {
        self.caller.name = EntityName::client(number);
        self
    }
}

/// Input of a method: a versioned struct, or plain fields with version 0.
pub(crate) fn input(version: u8, body: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut out = Encoder::new();
    if version > 0 {
        out.versioned(version, 1, body)
    } else {
        body(&mut out)
    }
    out.into_vec()
}
