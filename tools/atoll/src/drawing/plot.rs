//! Line plots with logarithmic axes.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Room for the axes' numbers and titles, and on the right for the names of lines.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 52.0;

/// Told apart by those who do not see red and green alike (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #1b1b1b } .title { font-weight: bold } .grid { stroke: #ddd; stroke-width: 1 }
.line { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 6 4 }";

/// One line of a plot.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Lines of one group have one colour.
    pub(crate) group: usize,
    pub(crate) dashed: bool,
    /// All positive.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot whose x axis is marked at powers of two and whose y axis is marked at powers of ten.
pub(crate) fn plot(title: &str, [x_title, y_title]: [&str; 2], lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let frame = Frame::new(points().map(|point| point.0), points().map(|point| point.1));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n<text class=\"title\" x=\"{LEFT}\" y=\"20\">{title}</text>\n"
    );
    frame.axes(&mut text, x_title, y_title);
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[line.group % COLOURS.len()];
        let dashed = if line.dashed { " dashed" } else { "" };
        let path: Vec<String> = line.points.iter().map(|&(x, y)| format!("{:.1},{:.1}", frame.x(x), frame.y(y))).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<polyline class=\"line{dashed}\" stroke=\"{colour}\" points=\"{}\"/>", path.join(" "));
        let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 8.0 + 18.0 * index as f64);
        let _ = writeln!(
            text,
            "<path class=\"line{dashed}\" stroke=\"{colour}\" d=\"M{x} {y}h26\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 32.0,
            y + 4.0,
            super::escaped(&line.name)
        );
    }
    text.push_str("</svg>\n");
    text
}

/// What the axes show, as exponents: of two, and of ten.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn new(x: impl Iterator<Item = f64>, y: impl Iterator<Item = f64>) -> Frame {
        let x = range(x.map(f64::log2));
        let y = range(y.map(f64::log10));
        Frame { x, y: (y.0.floor(), y.1.ceil()) }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (value.log2() - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value.log10() - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, text: &mut String, x_title: &str, y_title: &str) {
        let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
        for exponent in self.x.0.ceil() as i32..=self.x.1.floor() as i32 {
            let (value, x) = (2_f64.powi(exponent), self.x(2_f64.powi(exponent)));
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{x:.1} {top}V{bottom}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>",
                bottom + 18.0
            );
        }
        for exponent in self.y.0 as i32..=self.y.1 as i32 {
            let (value, y) = (10_f64.powi(exponent), self.y(10_f64.powi(exponent)));
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                left - 8.0,
                y + 4.0
            );
        }
        let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
        let _ = writeln!(text, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{x_title}</text>", middle.0, HEIGHT - 12.0);
        let _ = writeln!(text, "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{y_title}</text>", middle.1);
    }
}

/// From the least to the greatest value; never empty.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    match low < high {
        true => (low, high),
        false if low.is_finite() => (low - 0.5, low + 0.5),
        false => (0.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_inside_the_frame() {
        let line = |name: &str, points| Line { name: name.into(), group: 0, dashed: false, points };
        for points in [vec![(1.0, 1.0), (64.0, 0.01)], vec![(4.0, 1.0)], vec![]] {
            let text = plot("t", ["x", "y"], &[line("a < b", points.clone())]);
            assert!(text.contains("a &lt; b") && !text.contains("NaN") && !text.contains("inf"), "{text}");
            let frame = Frame::new(points.iter().map(|p| p.0), points.iter().map(|p| p.1));
            for (x, y) in points {
                assert!((LEFT..=WIDTH - RIGHT).contains(&frame.x(x)) && (TOP..=HEIGHT - BOTTOM).contains(&frame.y(y)));
            }
        }
    }
}
