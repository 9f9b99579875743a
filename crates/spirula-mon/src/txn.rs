//! One durable change: keys set and keys removed, all or nothing.

use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A batch of key changes. Later entries for one key win.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonTxn {
    /// Key and new value; `None` removes the key.
    pub ops: Vec<(String, Option<Bytes>)>,
}

impl MonTxn {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Sets `key`.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Bytes>) {
        self.ops.push((key.into(), Some(value.into())));
    }

    /// Sets `key` to the wire form of `value`.
    pub fn put_encoded<T: Encode + ?Sized>(&mut self, key: impl Into<String>, value: &T) {
        self.put(key, spirula_encoding::to_vec(value));
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: impl Into<String>) {
        self.ops.push((key.into(), None));
    }
}

impl Encode for MonTxn {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.list(&self.ops, |o, (key, value)| {
                o.str(key);
                match value {
                    None => o.u8(0),
                    Some(v) => {
                        o.u8(1);
                        o.blob(v);
                    }
                }
            });
        });
    }
}

impl Decode for MonTxn {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("MonTxn", 1, |d, _| {
            let ops = d.list(5, |d| {
                let key = d.get()?;
                let value = match d.u8()? {
                    0 => None,
                    1 => Some(d.bytes()?),
                    v => return Err(DecodeError::Value { what: "MonTxn op", value: i64::from(v) }),
                };
                Ok((key, value))
            })?;
            Ok(Self { ops })
        })
    }
}
