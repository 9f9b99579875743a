//! The loops: rows of coefficients times shards, by the widest instructions there are.
//!
//! All kernels give the same bytes. Data is worked through in pieces that stay in the first
//! cache while several output rows use them.

#![allow(
    unsafe_code,
    reason = "vector instructions; every call is guarded by the detection in `best`"
)]

use crate::field::mul;
use std::sync::OnceLock;

/// Bytes of each shard per piece.
const PIECE: usize = 4096;
/// Output rows per pass: as many accumulators as fit in registers beside the rest.
const ROWS: usize = 4;

/// One factor, in the forms the kernels want.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coefficient {
    /// The multiplication as an 8×8 bit matrix, as GF2P8AFFINEQB takes it: the row for result
    /// bit `i` is byte `7 − i`.
    bits: u64,
    /// Products with 0…15, and with 0x00, 0x10 … 0xf0.
    nibbles: [[u8; 16]; 2],
}

impl Coefficient {
    pub fn new(factor: u8) -> Self {
        let mut bits = 0;
        for i in 0..8 {
            let row =
                (0..8).fold(0u64, |row, j| row | u64::from(mul(factor, 1 << j) >> i & 1) << j);
            bits |= row << (8 * (7 - i));
        }
        let table = |shift: u8| std::array::from_fn(|n| mul(factor, (n as u8) << shift));
        Self { bits, nibbles: [table(0), table(4)] }
    }
}

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Gfni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}

impl Isa {
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => "AVX-512 GFNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "NEON",
            Self::Scalar => "scalar",
        }
    }
}

/// What this machine has, best first.
pub(crate) fn available() -> Vec<Isa> {
    let mut all = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx512f") {
            all.push(Isa::Gfni);
        }
        if is_x86_feature_detected!("avx2") {
            all.push(Isa::Avx2);
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        all.push(Isa::Neon);
    }
    all.push(Isa::Scalar);
    all
}

/// The best there is on this machine.
pub(crate) fn best() -> Isa {
    static BEST: OnceLock<Isa> = OnceLock::new();
    *BEST.get_or_init(|| available().first().copied().unwrap_or(Isa::Scalar))
}

/// `out[r] = Σ rows[r][j] · input[j]`, or with `add` that much added to `out[r]`. All slices are
/// of one length, rows have as many coefficients as there are inputs (the caller has checked).
pub(crate) fn multiply(
    isa: Isa,
    rows: &[Vec<Coefficient>],
    input: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) {
    let len = out.first().map_or(0, |o| o.len());
    for at in (0..len).step_by(PIECE) {
        let end = (at + PIECE).min(len);
        for (rows, out) in rows.chunks(ROWS).zip(out.chunks_mut(ROWS)) {
            let done = vectors(isa, rows, input, out, at, end, add);
            scalar(rows, input, out, done, end, add);
        }
    }
}

/// Does what is a multiple of the vectors' width from `at`; returns where it ended.
fn vectors(
    isa: Isa,
    rows: &[Vec<Coefficient>],
    input: &[&[u8]],
    out: &mut [&mut [u8]],
    at: usize,
    end: usize,
    add: bool,
) -> usize {
    macro_rules! by_rows {
        ($isa:ident :: $kernel:ident) => {
            // SAFETY: `isa` comes from `available`, so the instructions exist; `at <= end` and
            // `end` is at most the length of every slice; `rows` and `out` have the same number
            // (1 to ROWS) of elements, each row one coefficient per input.
            unsafe {
                match rows.len() {
                    1 => $isa::$kernel::<1>(rows, input, out, at, end, add),
                    2 => $isa::$kernel::<2>(rows, input, out, at, end, add),
                    3 => $isa::$kernel::<3>(rows, input, out, at, end, add),
                    _ => $isa::$kernel::<4>(rows, input, out, at, end, add),
                }
            }
        };
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Gfni => by_rows!(x86::gfni),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => by_rows!(x86::avx2),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => by_rows!(arm::neon),
        Isa::Scalar => at,
    }
}

fn scalar(
    rows: &[Vec<Coefficient>],
    input: &[&[u8]],
    out: &mut [&mut [u8]],
    at: usize,
    end: usize,
    add: bool,
) {
    if at >= end {
        return;
    }
    for (row, out) in rows.iter().zip(out) {
        let out = &mut out[at..end];
        if !add {
            out.fill(0);
        }
        for (c, data) in row.iter().zip(input) {
            for (o, &d) in out.iter_mut().zip(&data[at..end]) {
                *o ^= c.nibbles[0][usize::from(d & 15)] ^ c.nibbles[1][usize::from(d >> 4)];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Coefficient;
    use std::arch::x86_64::*;

    /// Two vectors of 64 bytes at a time.
    ///
    /// # Safety
    /// GFNI and AVX-512F exist; `at <= end <=` the length of every slice; `R` rows and outputs,
    /// and as many coefficients in each row as inputs.
    #[target_feature(enable = "gfni,avx512f")]
    pub unsafe fn gfni<const R: usize>(
        rows: &[Vec<Coefficient>],
        input: &[&[u8]],
        out: &mut [&mut [u8]],
        mut at: usize,
        end: usize,
        add: bool,
    ) -> usize {
        const WIDTH: usize = 128;
        while end - at >= WIDTH {
            let mut acc = [[_mm512_setzero_si512(); 2]; R];
            if add {
                for (a, o) in acc.iter_mut().zip(out.iter()) {
                    // SAFETY: `at + WIDTH <= end <= o.len()`; unaligned loads.
                    unsafe {
                        a[0] = _mm512_loadu_si512(o.as_ptr().add(at).cast());
                        a[1] = _mm512_loadu_si512(o.as_ptr().add(at + 64).cast());
                    }
                }
            }
            for (j, data) in input.iter().enumerate() {
                // SAFETY: as above.
                let x = unsafe {
                    [
                        _mm512_loadu_si512(data.as_ptr().add(at).cast()),
                        _mm512_loadu_si512(data.as_ptr().add(at + 64).cast()),
                    ]
                };
                for (a, row) in acc.iter_mut().zip(rows) {
                    // SAFETY: each row has a coefficient per input.
                    let m = _mm512_set1_epi64(unsafe { row.get_unchecked(j) }.bits as i64);
                    a[0] = _mm512_xor_si512(a[0], _mm512_gf2p8affine_epi64_epi8::<0>(x[0], m));
                    a[1] = _mm512_xor_si512(a[1], _mm512_gf2p8affine_epi64_epi8::<0>(x[1], m));
                }
            }
            for (a, o) in acc.iter().zip(out.iter_mut()) {
                // SAFETY: as above.
                unsafe {
                    _mm512_storeu_si512(o.as_mut_ptr().add(at).cast(), a[0]);
                    _mm512_storeu_si512(o.as_mut_ptr().add(at + 64).cast(), a[1]);
                }
            }
            at += WIDTH;
        }
        at
    }

    /// 32 bytes at a time, by tables of nibbles.
    ///
    /// # Safety
    /// AVX2 exists; the rest as for [`gfni`].
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2<const R: usize>(
        rows: &[Vec<Coefficient>],
        input: &[&[u8]],
        out: &mut [&mut [u8]],
        mut at: usize,
        end: usize,
        add: bool,
    ) -> usize {
        const WIDTH: usize = 32;
        let low = _mm256_set1_epi8(15);
        while end - at >= WIDTH {
            let mut acc = [_mm256_setzero_si256(); R];
            if add {
                for (a, o) in acc.iter_mut().zip(out.iter()) {
                    // SAFETY: `at + WIDTH <= end <= o.len()`; unaligned loads.
                    *a = unsafe { _mm256_loadu_si256(o.as_ptr().add(at).cast()) };
                }
            }
            for (j, data) in input.iter().enumerate() {
                // SAFETY: as above.
                let x = unsafe { _mm256_loadu_si256(data.as_ptr().add(at).cast()) };
                let nibbles =
                    [_mm256_and_si256(x, low), _mm256_and_si256(_mm256_srli_epi64::<4>(x), low)];
                for (a, row) in acc.iter_mut().zip(rows) {
                    // SAFETY: each row has a coefficient per input; its tables are 16 bytes long.
                    let tables = unsafe { &row.get_unchecked(j).nibbles };
                    for (table, n) in tables.iter().zip(nibbles) {
                        // SAFETY: 16 bytes, unaligned.
                        let t = _mm256_broadcastsi128_si256(unsafe {
                            _mm_loadu_si128(table.as_ptr().cast())
                        });
                        *a = _mm256_xor_si256(*a, _mm256_shuffle_epi8(t, n));
                    }
                }
            }
            for (a, o) in acc.iter().zip(out.iter_mut()) {
                // SAFETY: as above.
                unsafe { _mm256_storeu_si256(o.as_mut_ptr().add(at).cast(), *a) };
            }
            at += WIDTH;
        }
        at
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Coefficient;
    use std::arch::aarch64::*;

    /// 16 bytes at a time, by tables of nibbles.
    ///
    /// # Safety
    /// NEON exists; `at <= end <=` the length of every slice; `R` rows and outputs, and as many
    /// coefficients in each row as inputs.
    #[target_feature(enable = "neon")]
    pub unsafe fn neon<const R: usize>(
        rows: &[Vec<Coefficient>],
        input: &[&[u8]],
        out: &mut [&mut [u8]],
        mut at: usize,
        end: usize,
        add: bool,
    ) -> usize {
        const WIDTH: usize = 16;
        while end - at >= WIDTH {
            let mut acc = [vdupq_n_u8(0); R];
            if add {
                for (a, o) in acc.iter_mut().zip(out.iter()) {
                    // SAFETY: `at + WIDTH <= end <= o.len()`.
                    *a = unsafe { vld1q_u8(o.as_ptr().add(at)) };
                }
            }
            for (j, data) in input.iter().enumerate() {
                // SAFETY: as above.
                let x = unsafe { vld1q_u8(data.as_ptr().add(at)) };
                let nibbles = [vandq_u8(x, vdupq_n_u8(15)), vshrq_n_u8::<4>(x)];
                for (a, row) in acc.iter_mut().zip(rows) {
                    // SAFETY: each row has a coefficient per input; its tables are 16 bytes long.
                    let tables = unsafe { &row.get_unchecked(j).nibbles };
                    for (table, n) in tables.iter().zip(nibbles) {
                        // SAFETY: 16 bytes.
                        *a = veorq_u8(*a, vqtbl1q_u8(unsafe { vld1q_u8(table.as_ptr()) }, n));
                    }
                }
            }
            for (a, o) in acc.iter().zip(out.iter_mut()) {
                // SAFETY: as above.
                unsafe { vst1q_u8(o.as_mut_ptr().add(at), *a) };
            }
            at += WIDTH;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition.
    fn expected(
        rows: &[Vec<Coefficient>],
        input: &[Vec<u8>],
        before: &[Vec<u8>],
        add: bool,
    ) -> Vec<Vec<u8>> {
        let cell = |r: usize, i: usize| {
            let sum = rows[r].iter().zip(input).fold(0, |s, (c, d)| s ^ mul(c.nibbles[0][1], d[i]));
            sum ^ if add { before[r][i] } else { 0 }
        };
        (0..rows.len()).map(|r| (0..before[r].len()).map(|i| cell(r, i)).collect()).collect()
    }

    #[test]
    fn every_instruction_set_of_this_machine_gives_the_same_bytes_at_every_length() {
        for (case, len) in
            [0, 1, 15, 31, 64, 127, 128, 129, 1000, 4095, 4096, 4097, 9000].into_iter().enumerate()
        {
            for outputs in [1, 2, 3, 4, 5, 9] {
                let byte = |seed: usize, i: usize| (((seed * 131 + i) * 2_654_435_761) >> 13) as u8;
                let input: Vec<Vec<u8>> =
                    (0..5).map(|j| (0..len).map(|i| byte(j + case, i)).collect()).collect();
                let rows: Vec<Vec<Coefficient>> = (0..outputs)
                    .map(|r| (0..5).map(|j| Coefficient::new(byte(r, j))).collect())
                    .collect();
                let before: Vec<Vec<u8>> =
                    (0..outputs).map(|r| (0..len).map(|i| byte(r + 77, i)).collect()).collect();
                for add in [false, true] {
                    let want = expected(&rows, &input, &before, add);
                    for isa in available() {
                        let mut got = before.clone();
                        let mut out: Vec<&mut [u8]> =
                            got.iter_mut().map(Vec::as_mut_slice).collect();
                        let data: Vec<&[u8]> = input.iter().map(Vec::as_slice).collect();
                        multiply(isa, &rows, &data, &mut out, add);
                        assert!(
                            got == want,
                            "{} len {len} outputs {outputs} add {add}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
