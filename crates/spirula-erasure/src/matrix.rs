//! Matrices over GF(2⁸): the generator, parts of it and their inverses.

use crate::field::{inv, mul};

/// A matrix, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    columns: usize,
    cells: Vec<u8>,
}

impl Matrix {
    fn zero(rows: usize, columns: usize) -> Self {
        Self { columns, cells: vec![0; rows * columns] }
    }

    /// `k+m` rows of `k`: the identity, and below it the Cauchy matrix `1 / (i ⊕ j)`.
    pub fn generator(k: usize, m: usize) -> Self {
        let mut g = Self::zero(k + m, k);
        for i in 0..k + m {
            for (j, cell) in g.row_mut(i).iter_mut().enumerate() {
                // i >= k > j, so the sum is never 0; both are below 256.
                *cell = if i < k { u8::from(i == j) } else { inv((i ^ j) as u8) };
            }
        }
        g
    }

    pub fn row(&self, r: usize) -> &[u8] {
        &self.cells[r * self.columns..(r + 1) * self.columns]
    }

    fn row_mut(&mut self, r: usize) -> &mut [u8] {
        &mut self.cells[r * self.columns..(r + 1) * self.columns]
    }

    /// The named rows.
    pub fn select(&self, rows: &[usize]) -> Self {
        Self {
            columns: self.columns,
            cells: rows.iter().flat_map(|&r| self.row(r).to_vec()).collect(),
        }
    }

    /// The product.
    pub fn times(&self, other: &Self) -> Self {
        let rows = self.cells.len() / self.columns.max(1);
        let mut out = Self::zero(rows, other.columns);
        for r in 0..rows {
            for (j, &c) in self.row(r).iter().enumerate() {
                for (cell, &o) in out.row_mut(r).iter_mut().zip(other.row(j)) {
                    *cell ^= mul(c, o);
                }
            }
        }
        out
    }

    /// The inverse of a square matrix, by Gauss and Jordan; `None` if it has none.
    pub fn inverse(&self) -> Option<Self> {
        let n = self.columns;
        let mut left = self.clone();
        let mut right = Self::zero(n, n);
        (0..n).for_each(|i| right.row_mut(i)[i] = 1);
        for c in 0..n {
            let pivot = (c..n).find(|&r| left.row(r)[c] != 0)?;
            for m in [&mut left, &mut right] {
                (0..n).for_each(|j| m.cells.swap(c * n + j, pivot * n + j));
            }
            let scale = inv(left.row(c)[c]);
            for m in [&mut left, &mut right] {
                m.row_mut(c).iter_mut().for_each(|x| *x = mul(*x, scale));
            }
            for r in (0..n).filter(|&r| r != c) {
                let factor = left.row(r)[c];
                for m in [&mut left, &mut right] {
                    for j in 0..n {
                        m.cells[r * n + j] ^= mul(factor, m.cells[c * n + j]);
                    }
                }
            }
        }
        Some(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        for (k, rows) in [(1, vec![3]), (4, vec![1, 3, 4, 5]), (8, vec![8, 9, 10, 0, 1, 2, 3, 4])] {
            let part = Matrix::generator(k, 3).select(&rows);
            let identity = Matrix::generator(k, 0);
            assert_eq!(part.times(&part.inverse().unwrap()), identity);
        }
        let singular = Matrix::generator(3, 1).select(&[0, 0, 1]);
        assert_eq!(singular.inverse(), None);
    }
}
