//! The banner: the first bytes of both sides, and what to say about bytes that are not one.

use crate::error::ProtocolError;
use bytes::{Buf, BytesMut};
use spirula_types::features::MSGR2_REVISION_1;

const MAGIC: &[u8; 8] = b"ceph v2\n";
/// Most bytes a banner's second part may have; ours has 16.
const MAX_PAYLOAD: usize = 1024;
/// Most bytes a banner may have.
pub(crate) const MAX_LEN: usize = 10 + MAX_PAYLOAD;

/// Our banner: 2.1 frames supported (unless switched off), nothing required.
pub(crate) fn write(frames_2_1: bool) -> [u8; 26] {
    let mut b = [0; 26];
    b[..8].copy_from_slice(MAGIC);
    b[8] = 16;
    b[10] = if frames_2_1 { MSGR2_REVISION_1 as u8 } else { 0 };
    b
}

/// Takes the peer's banner off `buf`; `None` if it is not complete. Returns the features
/// the peer supports.
///
/// # Errors
/// As soon as the bytes cannot become a banner, saying what they look like.
pub(crate) fn read(buf: &mut BytesMut, ours: u64) -> Result<Option<u64>, ProtocolError> {
    let n = buf.len().min(MAGIC.len());
    if buf.get(..n) != MAGIC.get(..n) {
        return Err(ProtocolError::NotMsgr2(guess(buf)));
    }
    let Some(&[lo, hi]) = buf.get(8..10) else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([lo, hi]));
    if len > MAX_PAYLOAD {
        return Err(ProtocolError::Banner("second part is too long"));
    }
    if len < 16 {
        return Err(ProtocolError::Banner("second part is too short"));
    }
    if buf.len() < 10 + len {
        return Ok(None);
    }
    buf.advance(10);
    let mut payload = buf.split_to(len);
    let supported = payload.get_u64_le();
    let required = payload.get_u64_le();
    if required & !ours != 0 {
        return Err(ProtocolError::BannerFeatures(required & !ours));
    }
    Ok(Some(supported))
}

/// What bytes that are not a banner may be.
fn guess(b: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 12] = [
        (b"ceph v0", "this is the old protocol, msgr1; connect to the v2 port"),
        (b"ceph ", "an unknown version of Ceph's protocol"),
        (b"GET ", "an HTTP request"),
        (b"POST", "an HTTP request"),
        (b"PUT ", "an HTTP request"),
        (b"HEAD", "an HTTP request"),
        (b"OPTI", "an HTTP request"),
        (b"DELE", "an HTTP request"),
        (b"PRI ", "an HTTP/2 request"),
        (b"HTTP", "an HTTP response"),
        (b"\x16\x03", "a TLS handshake"),
        (b"SSH-", "an SSH banner"),
    ];
    KNOWN
        .iter()
        .find(|(p, _)| b.starts_with(p))
        .map_or("unknown bytes in place of the banner", |(_, w)| w)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(b: &[u8]) -> Result<Option<u64>, ProtocolError> {
        read(&mut BytesMut::from(b), 1)
    }

    #[test]
    fn banner_round_trips_and_waits_for_all_its_bytes() {
        let b = write(true);
        assert_eq!(feed(&b), Ok(Some(1)));
        for n in 0..b.len() {
            assert_eq!(feed(&b[..n]), Ok(None), "{n} bytes");
        }
        assert_eq!(feed(&write(false)), Ok(Some(0)));
    }

    #[test]
    fn foreign_protocols_are_named() {
        let text = |b: &[u8]| feed(b).unwrap_err().to_string();
        assert!(text(b"GET / HTTP/1.1\r\n").contains("HTTP request"));
        assert!(text(b"POST /x").contains("HTTP request"));
        assert!(text(b"ceph v027").contains("msgr1"));
        assert!(text(b"ceph v3\n").contains("unknown version"));
        assert!(text(b"\x16\x03\x01\x02").contains("TLS"));
        assert!(text(&[0xff; 3]).contains("unknown bytes"));
    }

    #[test]
    fn unknown_required_features_are_refused() {
        let mut b = write(true);
        b[18] = 5;
        assert_eq!(feed(&b), Err(ProtocolError::BannerFeatures(4)));
    }
}
