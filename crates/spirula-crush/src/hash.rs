//! The 32-bit integer hash of CRUSH ("rjenkins1").
//!
//! Robert Jenkins' 1997 mixing function over two to five words and two constants, with the
//! seed 1315423911. The order of the mixes is part of the protocol.

const SEED: u32 = 1_315_423_911;
const X: u32 = 231_232;
const Y: u32 = 1232;

/// The only hash function a bucket can name.
pub const RJENKINS1: u8 = 0;

#[inline(always)]
fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    macro_rules! step {
        ($x:ident, $y:ident, $z:ident, $op:tt, $n:literal) => {
            *$x = $x.wrapping_sub(*$y).wrapping_sub(*$z) ^ (*$z $op $n);
        };
    }
    step!(a, b, c, >>, 13);
    step!(b, c, a, <<, 8);
    step!(c, a, b, >>, 13);
    step!(a, b, c, >>, 12);
    step!(b, c, a, <<, 16);
    step!(c, a, b, >>, 5);
    step!(a, b, c, >>, 3);
    step!(b, c, a, <<, 10);
    step!(c, a, b, >>, 15);
}

/// Hash of one word.
#[inline]
pub fn hash32_1(mut a: u32) -> u32 {
    let (mut b, mut x, mut y) = (a, X, Y);
    let mut h = SEED ^ a;
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    h
}

/// Hash of two words. Also gives a PG its placement seed and a device its rejection draw.
#[inline]
pub fn hash32_2(mut a: u32, mut b: u32) -> u32 {
    let (mut x, mut y) = (X, Y);
    let mut h = SEED ^ a ^ b;
    mix(&mut a, &mut b, &mut h);
    mix(&mut x, &mut a, &mut h);
    mix(&mut b, &mut y, &mut h);
    h
}

/// Hash of three words.
#[inline]
pub fn hash32_3(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    let (mut x, mut y) = (X, Y);
    let mut h = SEED ^ a ^ b ^ c;
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut c, &mut h);
    h
}

/// Hash of four words.
#[inline]
pub fn hash32_4(mut a: u32, mut b: u32, mut c: u32, mut d: u32) -> u32 {
    let (mut x, mut y) = (X, Y);
    let mut h = SEED ^ a ^ b ^ c ^ d;
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut d, &mut h);
    mix(&mut a, &mut x, &mut h);
    mix(&mut y, &mut b, &mut h);
    mix(&mut c, &mut x, &mut h);
    mix(&mut y, &mut d, &mut h);
    h
}

/// Hash of five words.
#[inline]
pub fn hash32_5(mut a: u32, mut b: u32, mut c: u32, mut d: u32, mut e: u32) -> u32 {
    let (mut x, mut y) = (X, Y);
    let mut h = SEED ^ a ^ b ^ c ^ d ^ e;
    mix(&mut a, &mut b, &mut h);
    mix(&mut c, &mut d, &mut h);
    mix(&mut e, &mut x, &mut h);
    mix(&mut y, &mut a, &mut h);
    mix(&mut b, &mut x, &mut h);
    mix(&mut y, &mut c, &mut h);
    mix(&mut d, &mut x, &mut h);
    mix(&mut y, &mut e, &mut h);
    h
}
