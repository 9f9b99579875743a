//! Answers to requests that changed something, kept for whoever asks again.
//!
//! A client that lost its monitor, or its answer, sends its request again with the same
//! transaction id, perhaps to another monitor under another leader. The answers are part of the
//! agreed state, so that the change is made once and the answer is the first one. Bounded by
//! number and bytes, oldest out first; and by number for each client, so that none pushes out the
//! answers of all others.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::collections::BTreeMap;

/// Answers kept.
const KEEP: usize = 1000;
/// Answers kept of one client.
const KEEP_OF_ONE: usize = 256;
/// Bytes of answers kept.
const KEEP_BYTES: usize = 4 << 20;

/// One request and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Who asked.
    pub global_id: u64,
    /// Message type of the request.
    pub kind: u16,
    /// Its transaction id.
    pub tid: u64,
    /// 0 or −errno.
    pub ret: i32,
    /// Status text.
    pub rs: String,
    /// Output.
    pub data: Bytes,
}

impl Encode for Done {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.global_id);
            o.u16(self.kind);
            o.u64(self.tid);
            o.i32(self.ret);
            o.str(&self.rs);
            o.blob(&self.data);
        });
    }
}

impl Decode for Done {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("Done", 1, |d, _| {
            Ok(Self {
                global_id: d.u64()?,
                kind: d.u16()?,
                tid: d.u64()?,
                ret: d.i32()?,
                rs: d.get()?,
                data: d.bytes()?,
            })
        })
    }
}

/// The kept answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoneTable {
    rows: BTreeMap<u64, Done>,
    by_request: BTreeMap<(u64, u16, u64), u64>,
    bytes: usize,
}

impl DoneTable {
    /// From stored rows.
    pub fn from_rows(rows: BTreeMap<u64, Done>) -> Self {
        let mut out = Self::default();
        rows.into_iter().for_each(|(seq, d)| out.put(seq, d));
        out
    }

    /// Rows by number.
    pub fn rows(&self) -> &BTreeMap<u64, Done> {
        &self.rows
    }

    /// The answer a request got before.
    pub fn find(&self, global_id: u64, kind: u16, tid: u64) -> Option<&Done> {
        self.rows.get(self.by_request.get(&(global_id, kind, tid))?)
    }

    /// Keeps an answer, letting the oldest go.
    pub fn push(&mut self, done: Done) {
        let seq = self.rows.last_key_value().map_or(1, |(s, _)| s + 1);
        let client = done.global_id;
        self.put(seq, done);
        let of_it = || {
            self.by_request
                .range((client, 0, 0)..=(client, u16::MAX, u64::MAX))
                .map(|(_, seq)| *seq)
        };
        if of_it().count() > KEEP_OF_ONE
            && let Some(oldest) = of_it().min()
        {
            self.remove(oldest);
        }
        while self.rows.len() > KEEP || (self.bytes > KEEP_BYTES && self.rows.len() > 1) {
            let Some(oldest) = self.rows.first_key_value().map(|(s, _)| *s) else { break };
            self.remove(oldest);
        }
    }

    /// Puts a row in its place.
    pub fn put(&mut self, seq: u64, done: Done) {
        self.remove(seq);
        self.bytes += done.data.len() + done.rs.len();
        self.by_request.insert((done.global_id, done.kind, done.tid), seq);
        self.rows.insert(seq, done);
    }

    /// Removes a row.
    pub fn remove(&mut self, seq: u64) {
        if let Some(old) = self.rows.remove(&seq) {
            self.bytes -= old.data.len() + old.rs.len();
            self.by_request.remove(&(old.global_id, old.kind, old.tid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_answers_go_first_and_rows_restore_the_table() {
        let mut t = DoneTable::default();
        for tid in 0..KEEP as u64 + 5 {
            let data = Bytes::from(vec![0; 10]);
            t.push(Done {
                global_id: 7 + tid % 5,
                kind: 50,
                tid,
                ret: 0,
                rs: tid.to_string(),
                data,
            });
        }
        assert_eq!(t.rows().len(), KEEP);
        assert!(t.find(7 + 4, 50, 4).is_none());
        assert_eq!(t.find(7, 50, 5).unwrap().rs, "5");
        assert!(t.find(8, 50, 5).is_none());
        assert_eq!(DoneTable::from_rows(t.rows().clone()), t);
        let huge = Done {
            global_id: 1,
            kind: 1,
            tid: 1,
            ret: 0,
            rs: String::new(),
            data: vec![0; KEEP_BYTES].into(),
        };
        t.push(huge.clone());
        assert_eq!((t.rows().len(), t.find(1, 1, 1)), (1, Some(&huge)));
    }

    #[test]
    fn a_client_pushes_out_its_own_answers_only() {
        let mut t = DoneTable::default();
        let of = |global_id, tid| Done {
            global_id,
            kind: 50,
            tid,
            ret: 0,
            rs: String::new(),
            data: Bytes::new(),
        };
        t.push(of(6, 1));
        // The numbers of requests need not grow.
        (0..3 * KEEP as u64).rev().for_each(|tid| t.push(of(7, tid)));
        t.push(of(8, 1));
        assert_eq!(t.rows().len(), KEEP_OF_ONE + 2);
        assert!(t.find(6, 50, 1).is_some());
        assert!(t.find(7, 50, 0).is_some() && t.find(7, 50, KEEP_OF_ONE as u64 - 1).is_some());
        assert!(t.find(7, 50, KEEP_OF_ONE as u64).is_none());
        assert_eq!(DoneTable::from_rows(t.rows().clone()), t);
    }
}
