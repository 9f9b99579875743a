//! Charts as inline SVG: lines over a plain or logarithmic axis, and stacked states over time.
//!
//! Colours are those of the page's style sheet (`.s0`, `.s1`, …), so that a chart is legible in
//! light, in dark and on paper.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
/// Beside the states of PGs their names stand.
const LEGEND: f64 = 230.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
/// Colours that the style sheet has.
pub const COLOURS: usize = 8;

/// Text as XML takes it.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML knows no other control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A number as an axis shows it.
fn short(v: f64) -> String {
    let (v, unit) = match v.abs() {
        a if a >= 1e9 => (v / 1e9, "G"),
        a if a >= 1e6 => (v / 1e6, "M"),
        a if a >= 1e4 => (v / 1e3, "k"),
        _ => (v, ""),
    };
    let text =
        if v.abs() >= 100.0 || v.fract() == 0.0 { format!("{v:.0}") } else { format!("{v:.2}") };
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    };
    text + unit
}

/// What a chart is about.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below, and on the left.
    pub x: String,
    /// See `x`.
    pub y: String,
    /// The x axis is logarithmic.
    pub log_x: bool,
    /// Named lines.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// So many lines have each colour, the first of them whole, the others dashed; none is one.
    pub together: usize,
}

/// A step of 1, 2 or 5 and zeros, of which about five make `span`.
fn step(span: f64) -> f64 {
    let raw = (span / 5.0).max(1e-9);
    let ten = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * ten).find(|s| *s >= raw).unwrap_or(raw)
}

fn head(out: &mut String, title: &str, x: &str, y: &str) {
    let name = escape(title);
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\"><text \
            class=\"t\" x=\"{LEFT}\" y=\"16\">{name}</text>\
         <text class=\"a\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
         <text class=\"a\" transform=\"translate(12 {}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 6.0,
        escape(x),
        HEIGHT / 2.0,
        escape(y)
    );
}

impl Chart {
    /// The chart; empty where there is nothing to show.
    pub fn svg(&self) -> String {
        let points =
            || self.lines.iter().flat_map(|l| &l.1).filter(|p| p.0.is_finite() && p.1.is_finite());
        let tx = |x: f64| if self.log_x { x.max(1e-9).log10() } else { x };
        let (mut low, mut high, mut top) = (f64::MAX, f64::MIN, 0f64);
        for (x, y) in points() {
            (low, high, top) = (low.min(tx(*x)), high.max(tx(*x)), top.max(*y));
        }
        if low > high {
            return String::new();
        }
        if high - low < 1e-9 {
            (low, high) = (low - 0.5, high + 0.5);
        }
        // Above the lines there is room for their names.
        let names = self.lines.len().div_ceil(self.together.max(1));
        let taken = if self.lines.len() > 1 {
            (8.0 + 14.0 * names as f64) / (HEIGHT - TOP - BOTTOM)
        } else {
            0.05
        };
        let top = if top <= 0.0 { 1.0 } else { top / (1.0 - taken.min(0.4)) };
        let px = |x: f64| LEFT + (tx(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT);
        let py = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM);
        let mut out = String::new();
        head(&mut out, &self.title, &self.x, &self.y);
        let each = step(top);
        let mut y = 0.0;
        while y <= top {
            let at = py(y);
            let _ = write!(
                out,
                "<line class=\"g\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text \
                    class=\"a\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                short(y)
            );
            y += each;
        }
        let each = if self.log_x { 1.0 } else { step(high - low) };
        let mut x = (low / each).ceil() * each;
        while x <= high {
            let v = if self.log_x { 10f64.powf(x) } else { x };
            let at = LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT);
            let _ = write!(
                out,
                "<line class=\"g\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\"/><text \
                    class=\"a\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 15.0,
                short(v)
            );
            x += each;
        }
        let mut named = Vec::new();
        for (i, (name, line)) in self.lines.iter().enumerate() {
            let together = self.together.max(1);
            let colour = i / together % COLOURS;
            let dashed = if i % together > 0 { " h" } else { "" };
            let path: Vec<String> = line
                .iter()
                .filter(|p| p.0.is_finite() && p.1.is_finite())
                .map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y)))
                .collect();
            match &path[..] {
                [] => continue,
                [one] => {
                    let (cx, cy) = one.split_once(',').unwrap_or_default();
                    let _ = write!(
                        out,
                        "<circle class=\"d s{colour}\" cx=\"{cx}\" cy=\"{cy}\" r=\"3\"/>"
                    );
                }
                all => {
                    let _ = write!(
                        out,
                        "<polyline class=\"l s{colour}{dashed}\" points=\"{}\"/>",
                        all.join(" ")
                    );
                }
            }
            // Dashed lines have the colour of a whole one, which says whose they are.
            if dashed.is_empty() {
                named.push((colour, name));
            }
        }
        // A single line that is what the axis says needs no name.
        named.retain(|(_, name)| self.lines.len() > 1 || **name != self.y);
        // Names stand above all lines.
        for (i, (colour, name)) in named.into_iter().enumerate() {
            let _ = write!(
                out,
                "<text class=\"n s{colour}\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT - 4.0,
                TOP + 12.0 + 14.0 * i as f64,
                escape(name)
            );
        }
        out + "</svg>"
    }
}

/// States over time, stacked: at each time how many are in which state.
pub fn states(title: &str, samples: &[(f64, Vec<(String, f64)>)], end: f64) -> String {
    let mut names: Vec<&str> =
        samples.iter().flat_map(|s| s.1.iter().map(|(n, _)| n.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    // What is good is at the bottom.
    names.sort_by_key(|n| *n != "active+clean");
    let top = samples.iter().map(|s| s.1.iter().map(|(_, n)| n).sum::<f64>()).fold(0.0, f64::max);
    let from = samples.first().map_or(0.0, |s| s.0);
    if names.is_empty() || top <= 0.0 || end <= from {
        return String::new();
    }
    let px = |t: f64| LEFT + (t - from) / (end - from) * (WIDTH - LEFT - LEGEND);
    let tall = HEIGHT - TOP - BOTTOM;
    let mut out = String::new();
    head(&mut out, title, "seconds", "PGs");
    for (i, s) in samples.iter().enumerate() {
        let to = samples.get(i + 1).map_or(end, |n| n.0);
        let mut y = HEIGHT - BOTTOM;
        for (colour, name) in names.iter().enumerate() {
            let Some((_, n)) = s.1.iter().find(|(have, _)| have == name) else { continue };
            let h = n / top * tall;
            y -= h;
            let _ = write!(
                out,
                "<rect class=\"b s{}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                    height=\"{h:.1}\"/>",
                colour % COLOURS,
                px(s.0),
                (px(to) - px(s.0)).max(0.3)
            );
        }
    }
    let each = step(end - from);
    let mut x = (from / each).ceil() * each;
    while x <= end {
        let _ = write!(
            out,
            "<text class=\"a\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            px(x),
            HEIGHT - BOTTOM + 15.0,
            short(x)
        );
        x += each;
    }
    for (v, y) in [(0.0, HEIGHT - BOTTOM), (top, TOP)] {
        let _ = write!(
            out,
            "<text class=\"a\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            short(v)
        );
    }
    for (i, name) in names.iter().enumerate() {
        let _ = write!(
            out,
            "<text class=\"n s{}\" x=\"{}\" y=\"{}\">{}</text>",
            i % COLOURS,
            WIDTH - LEGEND + 8.0,
            TOP + 10.0 + 14.0 * i as f64,
            escape(name)
        );
    }
    out + "</svg>"
}

/// Ratios of two, a row each, on a logarithmic axis around 1: name, ratio, and whether it is more
/// than noise.
pub fn ratios(title: &str, first: &str, other: &str, rows: &[(String, f64, bool)]) -> String {
    const ROW: f64 = 17.0;
    /// Names stand on the left, the figures on the right.
    const NAMES: f64 = 430.0;
    const FIGURES: f64 = 70.0;
    const WIDTH: f64 = 940.0;
    let shown: Vec<_> = rows.iter().filter(|r| r.1.is_finite() && r.1 > 0.0).collect();
    if shown.is_empty() {
        return String::new();
    }
    // Whole doublings, at least one in each direction.
    let far = shown.iter().map(|r| r.1.log2().abs()).fold(0.0, f64::max).ceil().clamp(1.0, 8.0);
    let end = TOP + 18.0 + ROW * shown.len() as f64;
    let height = end + 24.0;
    let px = |ratio: f64| {
        let part = (ratio.log2().clamp(-far, far) + far) / (2.0 * far);
        NAMES + part * (WIDTH - NAMES - FIGURES)
    };
    let name = escape(title);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{name}\"><text \
            class=\"t\" x=\"12\" y=\"16\">{name}</text>\
         <text class=\"a\" x=\"{:.1}\" y=\"{}\" text-anchor=\"end\">← more: {}</text><text \
         class=\"a\" x=\"{:.1}\" y=\"{}\">more: {} →</text>",
        px(1.0) - 8.0,
        TOP + 8.0,
        escape(other),
        px(1.0) + 8.0,
        TOP + 8.0,
        escape(first)
    );
    let mut double = -far;
    while double <= far {
        let (ratio, class) = (2f64.powf(double), if double == 0.0 { "one" } else { "g" });
        let label =
            if ratio < 1.0 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.0}") };
        let _ = write!(
            out,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{end:.1}\"/>\
             <text class=\"a\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}×</text>",
            TOP + 14.0,
            end + 15.0,
            x = px(ratio)
        );
        double += 1.0;
    }
    for (i, (name, ratio, certain)) in shown.into_iter().enumerate() {
        let y = TOP + 18.0 + ROW * (i as f64 + 0.5);
        let class = match (certain, *ratio > 1.0) {
            (false, _) => "even",
            (true, true) => "good",
            (true, false) => "bad",
        };
        let (from, to) = (px(ratio.min(1.0)), px(ratio.max(1.0)));
        let _ = write!(
            out,
            "<text class=\"r\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"10\"/>\
             <text class=\"r\" x=\"{:.1}\" y=\"{:.1}\">{ratio:.2}×{}</text>",
            NAMES - 8.0,
            y + 4.0,
            escape(name),
            y - 5.0,
            (to - from).max(1.0),
            WIDTH - FIGURES + 8.0,
            y + 4.0,
            if *certain { "" } else { " ?" }
        );
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gives_nothing_and_text_is_escaped() {
        assert_eq!(Chart::default().svg(), "");
        assert_eq!(states("x", &[], 1.0), "");
        let c = Chart {
            title: "a < b & \"c\"".into(),
            lines: vec![
                ("one".into(), vec![(1.0, 5.0)]),
                ("two".into(), vec![(1.0, 1.0), (f64::NAN, 3.0), (100.0, 2e6)]),
            ],
            log_x: true,
            ..Chart::default()
        };
        let svg = c.svg();
        assert!(
            svg.contains("a &lt; b &amp; &quot;c&quot;")
                && !svg.contains("NaN")
                && svg.ends_with("</svg>"),
            "{svg}"
        );
        assert!(svg.contains("<circle") && svg.contains("<polyline"));
        assert_eq!(
            (short(1500.0), short(0.25), short(2e7), short(12_500.0)),
            ("1500".into(), "0.25".into(), "20M".into(), "12.50k".replace("0k", "k"))
        );
        let s = states(
            "t",
            &[(0.0, vec![("active+clean".into(), 8.0)]), (5.0, vec![("peering".into(), 8.0)])],
            10.0,
        );
        assert_eq!(s.matches("<rect").count(), 2);
    }
}
