//! Base64 (RFC 4648, with padding), as keys are written.

use zeroize::Zeroize as _;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with padding.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let v = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let digit = DIGITS.get((v >> (18 - 6 * i) & 63) as usize).copied().unwrap_or(b'=');
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

fn value(c: u8) -> Option<u32> {
    Some(u32::from(match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

/// Decodes; `None` if `text` is not canonical base64 with padding (white space included).
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len() / 4 * 3);
    let groups = bytes.len() / 4;
    for (n, group) in bytes.chunks_exact(4).enumerate() {
        let pads = group.iter().rev().take_while(|c| **c == b'=').count();
        let mut v = group.iter().take(4 - pads).try_fold(0u32, |v, c| Some(v << 6 | value(*c)?));
        if pads > 2 || pads > 0 && n + 1 < groups {
            v = None;
        }
        // Bits that padding cuts off must be zero: one text per key.
        let group = v.map(|v| v << (6 * pads)).filter(|v| v & ((1 << (8 * pads)) - 1) == 0);
        let Some(v) = group else {
            out.zeroize();
            return None;
        };
        out.extend(v.to_be_bytes().iter().skip(1).take(3 - pads));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfcs_examples_hold_both_ways() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()));
        }
    }

    #[test]
    fn what_is_not_canonical_is_refused() {
        for bad in [
            "Z", "Zg", "Zg=", "Zg==Zg==", "Z===", "====", "Zh==", "Zm9=", "Zm9v\n", " Zm9", "Zm9*",
            "Zg===",
        ] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
