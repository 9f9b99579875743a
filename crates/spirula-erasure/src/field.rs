//! GF(2⁸) with the polynomial x⁸+x⁴+x³+x²+1 (0x11d), by scalars.

/// The polynomial's low byte.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator 2, twice around, and their logarithms.
const TABLES: ([u8; 512], [u8; 256]) = {
    let (mut exp, mut log) = ([0; 512], [0; 256]);
    let (mut x, mut i) = (1u8, 0);
    while i < 255 {
        exp[i] = x;
        exp[i + 255] = x;
        log[x as usize] = i as u8;
        x = (x << 1) ^ (if x & 0x80 != 0 { POLYNOMIAL } else { 0 });
        i += 1;
    }
    (exp, log)
};

/// The product.
pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.0[TABLES.1[a as usize] as usize + TABLES.1[b as usize] as usize]
}

/// The inverse; of 0, which has none, 0.
pub(crate) const fn inv(a: u8) -> u8 {
    if a == 0 { 0 } else { TABLES.0[255 - TABLES.1[a as usize] as usize] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: shift, add, reduce.
    fn slow(a: u8, b: u8) -> u8 {
        (0..8).rev().fold(0, |acc: u8, bit| {
            let doubled = (acc << 1) ^ if acc & 0x80 != 0 { POLYNOMIAL } else { 0 };
            doubled ^ if b >> bit & 1 == 1 { a } else { 0 }
        })
    }

    #[test]
    fn products_are_those_of_the_definition_and_inverses_undo_them() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow(a, b), "{a} {b}");
            }
            assert_eq!(mul(a, inv(a)), u8::from(a != 0));
        }
    }
}
