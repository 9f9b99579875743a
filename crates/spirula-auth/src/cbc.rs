//! AES-128-CBC with PKCS#7 padding and Ceph's constant initial vector: key type `aes`.
//!
//! It authenticates nothing: whoever flips a bit of the cipher text flips one of the plain text.
//! Therefore only client keys of old releases use it, only in the exchange those releases speak,
//! and never for tickets.

use aes::Aes128;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};

/// Ceph's constant initial vector.
const IV: &[u8; 16] = b"cephsageyudagreg";

/// Encrypts with padding.
pub(crate) fn encrypt(key: &[u8; 16], plain: &[u8]) -> Vec<u8> {
    cbc::Encryptor::<Aes128>::new(key.into(), IV.into()).encrypt_padded_vec_mut::<Pkcs7>(plain)
}

/// Decrypts; `None` if the length or the padding is wrong.
pub(crate) fn decrypt(key: &[u8; 16], cipher: &[u8]) -> Option<Vec<u8>> {
    cbc::Decryptor::<Aes128>::new(key.into(), IV.into())
        .decrypt_padded_vec_mut::<Pkcs7>(cipher)
        .ok()
}
