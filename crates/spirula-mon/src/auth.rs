//! Entities, their keys and capabilities. Only kept and shown: sessions are not
//! authenticated in this version (`auth none`).

use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder};
use std::collections::BTreeMap;

/// One entity's key and capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthEntry {
    /// Key in Ceph's base64 form.
    pub key: String,
    /// Service (`mon`, `osd`…) → capability text.
    pub caps: BTreeMap<String, String>,
}

/// All entities by name (`client.admin`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthDb {
    /// By name.
    pub entries: BTreeMap<String, AuthEntry>,
    /// Counts changes.
    pub version: u64,
}

impl AuthDb {
    /// The entry as a keyring file's section.
    pub fn keyring_of(name: &str, e: &AuthEntry, with_caps: bool) -> String {
        let mut out = format!("[{name}]\n\tkey = {}\n", e.key);
        if with_caps {
            for (service, caps) in &e.caps {
                out.push_str(&format!("\tcaps {service} = \"{caps}\"\n"));
            }
        }
        out
    }
}

/// A key of Ceph's form (type 1, stamp, 16 secret bytes) in base64.
pub fn encode_key(secret: [u8; 16], created: spirula_encoding::UTime) -> String {
    let mut out = Encoder::new();
    out.u16(1);
    out.put(&created);
    out.u16(16);
    out.raw(&secret);
    base64(out.as_slice())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0u8; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let v = u32::from(group[0]) << 16 | u32::from(group[1]) << 8 | u32::from(group[2]);
        for i in 0..4 {
            let digit = DIGITS[(v >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

impl Encode for AuthDb {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.u64(self.version);
            o.list(&self.entries, |o, (name, e)| {
                o.str(name);
                o.str(&e.key);
                o.put(&e.caps);
            });
        });
    }
}

impl Decode for AuthDb {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.versioned("AuthDb", 1, |d, _| {
            let version = d.u64()?;
            let list = d.list(12, |d| Ok((d.get()?, AuthEntry { key: d.get()?, caps: d.get()? })))?;
            Ok(Self { version, entries: list.into_iter().collect() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_encoding::UTime;

    #[test]
    fn keys_have_cephs_form() {
        // A key from a real cluster: shared/protocol/traces/ceph-auth-config-misc.txt.
        let known = "AQAzogBrFtEyKBAA53AeWrlMY6yWyhl70kPoaw==";
        let key = encode_key([7; 16], UTime { sec: 1_795_203_635, nsec: 0 });
        assert_eq!(key.len(), known.len());
        assert_eq!(&key[..3], "AQA");
        assert!(key.ends_with("=="));
        assert_eq!(base64(b"Ma"), "TWE=");
        assert_eq!(base64(b"Man"), "TWFu");
    }
}
