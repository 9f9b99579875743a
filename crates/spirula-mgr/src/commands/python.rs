//! Layouts of Ceph's Python manager modules: borderless tables, numbers cut to a width.

use spirula_format::TextTable;

/// A number in at most `width` characters, the last one a unit (`12288M`, `  722 `, `160.0k`).
/// `decimal` counts in thousands, else in 1024s.
pub(super) fn units(n: u64, width: usize, decimal: bool) -> String {
    let factor: u64 = if decimal { 1000 } else { 1024 };
    let names = [" ", "k", "M", "G", "T", "P", "E"];
    let digits = width.saturating_sub(1).max(1);
    let mut unit = 0;
    let mut whole = n;
    while whole.to_string().len() > digits && unit + 1 < names.len() {
        whole /= factor;
        unit += 1;
    }
    if unit == 0 {
        return format!("{n:>digits$} ");
    }
    let scaled = format!("{:.6}", n as f64 / (factor as f64).powi(unit as i32));
    let mut text: String = scaled.chars().take(digits).collect();
    if text.ends_with('.') {
        text.pop();
        text.insert(0, ' ');
    }
    text + names.get(unit).copied().unwrap_or_default()
}

/// A borderless table: every column two spaces wider than its text, also the last.
pub(super) fn table(t: &TextTable) -> String {
    t.to_string().lines().map(|line| format!("{line}  \n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_in_the_samples() {
        assert_eq!(units(0, 6, false), "    0 ");
        assert_eq!(units(722, 6, false), "  722 ");
        assert_eq!(units(10_000, 6, false), "10000 ");
        assert_eq!(units(11_124_006, 6, false), "10863k");
        assert_eq!(units(163_840, 6, false), "160.0k");
        assert_eq!(units(12_884_901_888, 6, false), "12288M");
        assert_eq!(units(304_390_144, 5, false), " 290M");
    }
}
