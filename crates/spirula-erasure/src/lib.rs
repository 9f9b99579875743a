//! Reed–Solomon codes over GF(2⁸): `k` data shards, `m` parity shards, any `k` of them enough.
//!
//! Pure arithmetic on byte slices of equal length; who holds which shard, and how an object is
//! cut into stripes, is the placement group's business. Parity of a part of a stripe can be
//! brought up to date from the *change* of one data shard ([`Code::update`]), which is what
//! partial overwrites need and what no crate offers.
//!
//! * [`Code`] — a code of given `k` and `m`; [`Recovery`] — the plan for one pattern of losses
//! * `field` — GF(2⁸) by scalars; `matrix` — generator and inverse; `kernel` — the SIMD loops
//!
//! The field's polynomial is 0x11d and the generator is the identity above the Cauchy matrix
//! `1 / (i ⊕ j)` for parity row `i = k…k+m−1` and data column `j`: what ISA-L's
//! `gf_gen_cauchy1_matrix` makes, so that parities are the same bytes as ISA-L's. Every square
//! part of a Cauchy matrix has an inverse, hence every pattern of at most `m` losses can be
//! repaired.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod field;
mod kernel;
mod matrix;

use kernel::Coefficient;
use matrix::Matrix;

/// Most shards of a code, data and parity together.
pub const SHARDS_MAX: usize = 255;

/// Why a code or a call is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErasureError {
    /// No code has such numbers.
    #[error("k={k} m={m}: k must be at least 1, and k+m at most {SHARDS_MAX}")]
    Shape {
        /// Data shards.
        k: usize,
        /// Parity shards.
        m: usize,
    },
    /// Other than as many slices as the code says.
    #[error("{got} {what} given, {want} needed")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many were given.
        got: usize,
        /// How many it takes.
        want: usize,
    },
    /// Slices of one call differ in length.
    #[error("slices of {a} and {b} bytes in one call")]
    Length {
        /// One length.
        a: usize,
        /// Another.
        b: usize,
    },
    /// A shard number beyond `k+m`, or twice the same.
    #[error("shard {0} does not exist or is named twice")]
    Shard(usize),
}

/// A code: `k` data shards and `m` parity shards, numbered `0…k` and `k…k+m`.
#[derive(Clone, Debug)]
pub struct Code {
    k: usize,
    m: usize,
    /// Parity rows, `m` of `k` coefficients.
    parity: Vec<Vec<Coefficient>>,
}

/// How to make certain shards from certain `k` others. Made by [`Code::recovery`].
#[derive(Clone, Debug)]
pub struct Recovery {
    rows: Vec<Vec<Coefficient>>,
    from: usize,
}

impl Code {
    /// The code of `k` data and `m` parity shards.
    ///
    /// # Errors
    /// [`ErasureError::Shape`].
    pub fn new(k: usize, m: usize) -> Result<Self, ErasureError> {
        if k == 0 || k.saturating_add(m) > SHARDS_MAX {
            return Err(ErasureError::Shape { k, m });
        }
        let generator = Matrix::generator(k, m);
        let parity = (k..k + m).map(|i| coefficients(generator.row(i))).collect();
        Ok(Self { k, m, parity })
    }

    /// Number of data shards.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Number of parity shards: so many may be lost.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Overwrites `parity` (`m` slices) with the parity of `data` (`k` slices).
    ///
    /// # Errors
    /// [`ErasureError::Count`], [`ErasureError::Length`]; nothing is written then.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), ErasureError> {
        check("data shards", data.len(), self.k)?;
        check("parity shards", parity.len(), self.m)?;
        apply(&self.parity, data, parity, false)
    }

    /// Brings `parity` (`m` slices) up to date after data shard `shard` changed by `delta`, the
    /// exclusive or of its old and new bytes.
    ///
    /// # Errors
    /// [`ErasureError::Shard`], [`ErasureError::Count`], [`ErasureError::Length`]; nothing is
    /// written then.
    pub fn update(
        &self,
        shard: usize,
        delta: &[u8],
        parity: &mut [&mut [u8]],
    ) -> Result<(), ErasureError> {
        if shard >= self.k {
            return Err(ErasureError::Shard(shard));
        }
        check("parity shards", parity.len(), self.m)?;
        let column: Vec<_> = self
            .parity
            .iter()
            .map(|row| row.get(shard..=shard).unwrap_or_default().to_vec())
            .collect();
        apply(&column, &[delta], parity, true)
    }

    /// The plan to make the shards `want` from the `k` shards `have`; both are shard numbers in
    /// the order in which the slices will be given.
    ///
    /// # Errors
    /// [`ErasureError::Count`] unless there are exactly `k` in `have`; [`ErasureError::Shard`].
    pub fn recovery(&self, have: &[usize], want: &[usize]) -> Result<Recovery, ErasureError> {
        check("shards to recover from", have.len(), self.k)?;
        for (n, &s) in have.iter().enumerate() {
            if s >= self.k + self.m || have.iter().take(n).any(|&t| t == s) {
                return Err(ErasureError::Shard(s));
            }
        }
        if let Some(&s) = want.iter().find(|&&s| s >= self.k + self.m) {
            return Err(ErasureError::Shard(s));
        }
        let generator = Matrix::generator(self.k, self.m);
        let inverse =
            generator.select(have).inverse().ok_or(ErasureError::Shape { k: self.k, m: self.m })?;
        let rows = generator.select(want).times(&inverse);
        Ok(Recovery {
            rows: (0..want.len()).map(|r| coefficients(rows.row(r))).collect(),
            from: self.k,
        })
    }
}

impl Recovery {
    /// Overwrites `out` with the wanted shards, from the shards `have`, in the plan's order.
    ///
    /// # Errors
    /// [`ErasureError::Count`], [`ErasureError::Length`]; nothing is written then.
    pub fn apply(&self, have: &[&[u8]], out: &mut [&mut [u8]]) -> Result<(), ErasureError> {
        check("shards to recover from", have.len(), self.from)?;
        check("shards to recover", out.len(), self.rows.len())?;
        apply(&self.rows, have, out, false)
    }
}

/// Overwrites `delta` with the exclusive or of itself and `old`: turns new bytes of a shard into
/// the change that [`Code::update`] takes.
///
/// # Errors
/// [`ErasureError::Length`]; nothing is written then.
pub fn xor(delta: &mut [u8], old: &[u8]) -> Result<(), ErasureError> {
    if delta.len() != old.len() {
        return Err(ErasureError::Length { a: delta.len(), b: old.len() });
    }
    delta.iter_mut().zip(old).for_each(|(d, o)| *d ^= o);
    Ok(())
}

/// Name of the instruction set the loops use here, for reports.
pub fn instruction_set() -> &'static str {
    kernel::best().name()
}

fn coefficients(row: &[u8]) -> Vec<Coefficient> {
    row.iter().map(|&c| Coefficient::new(c)).collect()
}

fn check(what: &'static str, got: usize, want: usize) -> Result<(), ErasureError> {
    if got == want { Ok(()) } else { Err(ErasureError::Count { what, got, want }) }
}

fn apply(
    rows: &[Vec<Coefficient>],
    input: &[&[u8]],
    out: &mut [&mut [u8]],
    add: bool,
) -> Result<(), ErasureError> {
    let a = input.first().map_or(0, |s| s.len());
    let lengths = input.iter().map(|s| s.len()).chain(out.iter().map(|s| s.len()));
    if let Some(b) = lengths.into_iter().find(|&b| b != a) {
        return Err(ErasureError::Length { a, b });
    }
    kernel::multiply(kernel::best(), rows, input, out, add);
    Ok(())
}

#[cfg(test)]
mod tests;
