//! Text tables in the layout of Ceph's tools.

/// Where a cell's text sits in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Padded on the right.
    Left,
    /// Padded on both sides, the extra space on the right.
    Center,
    /// Padded on the left.
    Right,
}

#[derive(Clone, Debug)]
struct Column {
    heading: String,
    heading_align: Align,
    align: Align,
}

/// A table that grows row by row; every line, also the last column, is padded to the
/// column's width, as Ceph's is (trailing spaces included).
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    separator: String,
}

impl Default for TextTable {
    fn default() -> Self {
        Self::new()
    }
}

impl TextTable {
    /// An empty table, columns two spaces apart.
    pub fn new() -> Self {
        Self { columns: Vec::new(), rows: Vec::new(), separator: "  ".to_owned() }
    }

    /// Adds a column: heading, the heading's alignment, the cells' alignment.
    pub fn column(&mut self, heading: &str, heading_align: Align, align: Align) -> &mut Self {
        self.columns.push(Column { heading: heading.to_owned(), heading_align, align });
        self
    }

    /// Adds several columns of one alignment each.
    pub fn columns(&mut self, spec: &[(&str, Align, Align)]) -> &mut Self {
        for (heading, heading_align, align) in spec {
            self.column(heading, *heading_align, *align);
        }
        self
    }

    /// Replaces the separator between columns.
    pub fn separator(&mut self, separator: &str) -> &mut Self {
        separator.clone_into(&mut self.separator);
        self
    }

    /// Adds a row. Missing cells are empty; cells beyond the last column are dropped.
    pub fn row<I, S>(&mut self, cells: I) -> &mut Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
        self
    }

    /// Number of rows so far.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True without any row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths: Vec<usize> = self.columns.iter().map(|c| width(&c.heading)).collect();
        for row in &self.rows {
            for (w, cell) in widths.iter_mut().zip(row) {
                *w = (*w).max(width(cell));
            }
        }
        for (i, (column, w)) in self.columns.iter().zip(&widths).enumerate() {
            if i > 0 {
                f.write_str(&self.separator)?;
            }
            pad(f, &column.heading, *w, column.heading_align)?;
        }
        f.write_str("\n")?;
        for row in &self.rows {
            for (i, ((column, w), cell)) in self.columns.iter().zip(&widths).zip(row).enumerate() {
                if i > 0 {
                    f.write_str(&self.separator)?;
                }
                pad(f, cell, *w, column.align)?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// Ceph counts bytes here; characters keep names outside ASCII in line, and agree for the rest.
fn width(s: &str) -> usize {
    s.chars().count()
}

fn pad(f: &mut std::fmt::Formatter<'_>, s: &str, total: usize, align: Align) -> std::fmt::Result {
    let n = width(s);
    let (left, right) = match align {
        Align::Left => (0, total.saturating_sub(n)),
        Align::Right => (total.saturating_sub(n), 0),
        Align::Center => {
            let left = (total / 2).saturating_sub(n / 2);
            (left, total.saturating_sub(left + n))
        }
    };
    write!(f, "{:left$}{s}{:right$}", "", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Align::{Center, Left, Right};

    #[test]
    fn columns_are_two_spaces_apart_and_padded_to_the_widest_cell() {
        let mut t = TextTable::new();
        t.columns(&[("osd", Left, Right), ("commit_latency(ms)", Left, Right), ("X", Left, Left)]);
        t.row(["2", "0", "a"]).row(["10", "17", "long"]);
        assert_eq!(
            t.to_string(),
            "osd  commit_latency(ms)  X   \n  2                   0  a   \n 10                  \
                17  long\n"
        );
    }

    #[test]
    fn centred_cells_put_the_odd_space_right_and_short_rows_are_filled_up() {
        let mut t = TextTable::new();
        t.columns(&[("ABCD", Center, Center), ("E", Left, Left)]);
        t.row(["x"]);
        assert_eq!(t.to_string(), "ABCD  E\n  x    \n");
        assert_eq!(t.len(), 1);
    }
}
