//! The one place that draws random numbers.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// Fills `bytes` from the kernel's generator.
///
/// # Errors
/// When the kernel has none to give (never, after the machine has started).
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        at += getrandom(&mut bytes[at..], GetRandomFlags::empty())?;
    }
    Ok(())
}

/// A random number that is not 0.
///
/// # Errors
/// As [`fill`].
pub fn cookie() -> io::Result<u64> {
    loop {
        let mut b = [0; 8];
        fill(&mut b)?;
        let n = u64::from_le_bytes(b);
        if n != 0 {
            return Ok(n);
        }
    }
}
