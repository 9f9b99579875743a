//! AES256-CTS-HMAC-SHA384-192 (RFC 8009): key type `aes256k`.
//!
//! Encryption is CBC with cipher text stealing (CS3: the last two blocks always change places) over
//! a random 16-byte confounder and the plain text, initial vector zero; then HMAC-SHA-384 over the
//! vector and the cipher text, cut to 24 bytes. Both keys are derived from the base key and a usage
//! number, so that what was encrypted for one purpose opens for no other.

use aes::Aes256;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use ring::hmac;
use zeroize::Zeroizing;

/// Bytes of the base key.
pub(crate) const KEY_LEN: usize = 32;
const CONFOUNDER: usize = 16;
const MAC: usize = 24;
const BLOCK: usize = 16;

/// KDF-HMAC-SHA2 of RFC 8009 §3: the first `N` bytes, `N` ≤ 48.
fn derive<const N: usize>(base: &[u8; KEY_LEN], usage: u32, purpose: u8) -> Zeroizing<[u8; N]> {
    let mut c = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA384, base));
    c.update(&1u32.to_be_bytes());
    c.update(&usage.to_be_bytes());
    c.update(&[purpose, 0]);
    c.update(&((N * 8) as u32).to_be_bytes());
    let mut out = Zeroizing::new([0; N]);
    for (to, from) in out.iter_mut().zip(c.sign().as_ref()) {
        *to = *from;
    }
    out
}

fn mac(base: &[u8; KEY_LEN], usage: u32, cipher: &[u8]) -> hmac::Tag {
    let key = derive::<MAC>(base, usage, 0x55);
    let mut c = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA384, key.as_ref()));
    c.update(&[0; BLOCK]);
    c.update(cipher);
    c.sign()
}

/// Encrypts `plain` for `usage`. The confounder must be fresh random bytes.
pub(crate) fn encrypt(
    base: &[u8; KEY_LEN],
    usage: u32,
    confounder: [u8; CONFOUNDER],
    plain: &[u8],
) -> Vec<u8> {
    let ke = derive::<32>(base, usage, 0xaa);
    let len = CONFOUNDER + plain.len();
    let mut out = Vec::with_capacity(len.next_multiple_of(BLOCK) + MAC);
    out.extend(confounder);
    out.extend(plain);
    out.resize(len.next_multiple_of(BLOCK), 0);
    let mut cbc = cbc::Encryptor::<Aes256>::new((&*ke).into(), &[0; BLOCK].into());
    for block in out.chunks_exact_mut(BLOCK) {
        cbc.encrypt_block_mut(block.into());
    }
    if out.len() > BLOCK {
        // The last block whole, then as much of the one before it as there is plain text.
        let last = out.len() - BLOCK;
        let (head, tail) = out.split_at_mut(last);
        if let Some(before) = head.last_chunk_mut::<BLOCK>() {
            before.swap_with_slice(tail);
        }
        out.truncate(len);
    }
    let tag = mac(base, usage, &out);
    out.extend(tag.as_ref().iter().take(MAC));
    out
}

/// Decrypts what [`encrypt`] made for the same usage; `None` if it is anything else.
pub(crate) fn decrypt(base: &[u8; KEY_LEN], usage: u32, sealed: &[u8]) -> Option<Vec<u8>> {
    let (cipher, tag) = sealed.split_at_checked(sealed.len().checked_sub(MAC)?)?;
    if cipher.len() < CONFOUNDER {
        return None;
    }
    let expected = mac(base, usage, cipher);
    // Constant time: differences are collected, not searched.
    if expected.as_ref().iter().zip(tag).fold(0, |d, (a, b)| d | (a ^ b)) != 0 {
        return None;
    }
    let ke = derive::<32>(base, usage, 0xaa);
    let len = cipher.len();
    let mut buf = cipher.to_vec();
    if len > BLOCK {
        // Undo the stealing: the short piece is the beginning of the block before the last; its
        // missing end is what the last block decrypts to there.
        let short = match len % BLOCK {
            0 => BLOCK,
            n => n,
        };
        let swapped_at = len - short - BLOCK;
        let (_, rest) = buf.split_at_mut_checked(swapped_at)?;
        let (whole, piece) = rest.split_at_mut_checked(BLOCK)?;
        let mut last = [0; BLOCK];
        last.copy_from_slice(whole);
        let mut before = last;
        cbc::Decryptor::<Aes256>::new((&*ke).into(), &[0; BLOCK].into())
            .decrypt_block_mut((&mut before).into());
        for (to, from) in before.iter_mut().zip(piece.iter()) {
            *to = *from;
        }
        buf.truncate(swapped_at);
        buf.extend(before);
        buf.extend(last);
    }
    let mut cbc = cbc::Decryptor::<Aes256>::new((&*ke).into(), &[0; BLOCK].into());
    for block in buf.chunks_exact_mut(BLOCK) {
        cbc.decrypt_block_mut(block.into());
    }
    buf.truncate(len);
    buf.drain(..CONFOUNDER);
    Some(buf)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn hex(s: &str) -> Vec<u8> {
        let s: String = s.split_whitespace().collect();
        (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
    }

    /// RFC 8009 appendix A, aes256-cts-hmac-sha384-192.
    const BASE: &str = "6D404D37FAF79F9DF0D33568D320669800EB4836472EA8A026D16B7182460C52";

    #[test]
    fn keys_derive_as_in_the_rfc() {
        let base: [u8; 32] = hex(BASE).try_into().unwrap();
        assert_eq!(
            derive::<24>(&base, 2, 0x99).as_slice(),
            hex("EF5718BE86CC84963D8BBB5031E9F5C4BA41F28FAF69E73D")
        );
        assert_eq!(
            derive::<32>(&base, 2, 0xaa).as_slice(),
            hex("56AB22BEE63D82D7BC5227F6773F8EA7A5EB1C825160C38312980C442E5C7E49")
        );
        assert_eq!(
            derive::<24>(&base, 2, 0x55).as_slice(),
            hex("69B16514E3CD8E56B82010D5C73012B622C4D00FFC23ED1F")
        );
    }

    #[test]
    fn the_rfcs_encryptions_hold_both_ways() {
        let base: [u8; 32] = hex(BASE).try_into().unwrap();
        for (plain, confounder, cipher) in [
            (
                "",
                "F764E9FA15C276478B2C7D0C4E5F58E4",
                "41F53FA5BFE7026D91FAF9BE959195A058707273A96A40F0A01960621AC612748B9BBFBE7EB4CE3C",
            ),
            (
                "000102030405",
                "B80D3251C1F6471494256FFE712D0B9A",
                "4ED7B37C2BCAC8F74F23C1CF07E62BC7B75FB3F637B9F559C7F664F69EAB7B6092237526EA0D1F61CB20D69D10F2",
            ),
            (
                "000102030405060708090A0B0C0D0E0F",
                "53BF8A0D105265D4E276428624CE5E63",
                "BC47FFEC7998EB91E8115CF8D19DAC4BBBE2E163E87DD37F49BECA92027764F68CF51F14D798C2273F35DF574D1F932E40C4FF255B36A266",
            ),
            (
                "000102030405060708090A0B0C0D0E0F1011121314",
                "763E65367E864F02F55153C7E3B58AF1",
                "40013E2DF58E8751957D2878BCD2D6FE101CCFD556CB1EAE79DB3C3EE86429F2B2A602AC86FEF6ECB647D6295FAE077A1FEB517508D2C16B4192E01F62",
            ),
        ] {
            let sealed = encrypt(&base, 2, hex(confounder).try_into().unwrap(), &hex(plain));
            assert_eq!(sealed, hex(cipher), "plain text {plain}");
            assert_eq!(decrypt(&base, 2, &sealed).unwrap(), hex(plain));
        }
    }

    #[test]
    fn every_length_comes_back_and_no_flipped_bit_does() {
        let base = [7; 32];
        for len in 0..70 {
            let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut sealed = encrypt(&base, 16, [len as u8; 16], &plain);
            assert_eq!(sealed.len(), 40 + plain.len());
            assert_eq!(decrypt(&base, 16, &sealed).unwrap(), plain);
            assert_eq!(decrypt(&base, 17, &sealed), None, "another usage");
            for i in 0..sealed.len() {
                sealed[i] ^= 1 << (i % 8);
                assert_eq!(decrypt(&base, 16, &sealed), None, "length {len}, byte {i}");
                sealed[i] ^= 1 << (i % 8);
            }
            for cut in 0..sealed.len() {
                assert_eq!(decrypt(&base, 16, &sealed[..cut]), None);
            }
        }
    }
}
