//! Line plots.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Room for the axes' numbers and titles, and on the right for the names of lines.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 52.0;

/// Told apart by those who do not see red and green alike (Okabe and Ito).
pub(super) const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #1b1b1b } .title { font-weight: bold } .grid { stroke: #ddd; stroke-width: 1 }
.line { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 6 4 }";

/// How values of an axis lie on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Logarithmic, marked at powers of two.
    Binary,
    /// Logarithmic, marked at powers of ten, from one to another.
    Decimal,
    /// Logarithmic, marked at 1, 2 and 5 times powers of ten.
    Fine,
    /// Shares of a whole from 0 to 1, in percent.
    Share,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What it shows, with its unit.
    pub title: &'a str,
    /// How values are spread over it.
    pub scale: AxisScale,
}

/// One line of a plot.
pub struct Line {
    /// In the legend.
    pub name: String,
    /// Lines of one group have one colour.
    pub group: usize,
    /// Drawn with gaps.
    pub dashed: bool,
    /// All positive, or shares.
    pub points: Vec<(f64, f64)>,
}

/// A plot with an x axis and a y axis.
pub fn plot(title: &str, axes: [Axis<'_>; 2], lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let frame = Frame::new(axes.map(|axis| axis.scale), points().map(|point| point.0), points().map(|point| point.1));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n<text class=\"title\" x=\"{LEFT}\" y=\"20\">{title}</text>\n"
    );
    frame.axes(&mut text, axes.map(|axis| axis.title));
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

impl AxisScale {
    /// Where a value lies, in a measure in which the axis is even.
    fn place(self, value: f64) -> f64 {
        match self {
            AxisScale::Binary => value.log2(),
            AxisScale::Decimal | AxisScale::Fine => value.log10(),
            AxisScale::Share => value,
        }
    }

    /// The ends of an axis that shows these places.
    fn ends(self, places: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = range(places);
        match self {
            AxisScale::Binary => (low, high),
            AxisScale::Decimal => (low.floor(), high.ceil()),
            AxisScale::Fine => {
                let marks = || fine_marks(low.floor(), high.ceil()).map(f64::log10);
                (marks().filter(|mark| *mark <= low).last().unwrap_or(low), marks().find(|mark| *mark >= high).unwrap_or(high))
            }
            AxisScale::Share => (0.0, 1.0),
        }
    }

    /// The values that are marked between two places, and what is written beside them.
    fn marks(self, (low, high): (f64, f64)) -> Vec<(f64, String)> {
        let powers = |base: f64| (low.ceil() as i32..=high.floor() as i32).map(move |exponent| base.powi(exponent));
        let plain = |value: f64| (value, format!("{value}"));
        match self {
            AxisScale::Binary => powers(2.0).map(plain).collect(),
            AxisScale::Decimal => powers(10.0).map(plain).collect(),
            AxisScale::Fine => {
                let is_shown = |value: &f64| (low - 1e-9..=high + 1e-9).contains(&value.log10());
                fine_marks(low.floor(), high.ceil())
                    .filter(is_shown)
                    .map(|value| (value, format!("{}", (value * 1e9).round() / 1e9)))
                    .collect()
            }
            AxisScale::Share => (0..=5).map(|fifth| (f64::from(fifth) / 5.0, format!("{} %", fifth * 20))).collect(),
        }
    }
}

/// 1, 2 and 5 times the powers of ten between two exponents.
fn fine_marks(low: f64, high: f64) -> impl Iterator<Item = f64> {
    (low as i32..=high as i32).flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(exponent)))
}

/// What the axes show.
struct Frame {
    scales: [AxisScale; 2],
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn new(scales: [AxisScale; 2], x: impl Iterator<Item = f64>, y: impl Iterator<Item = f64>) -> Frame {
        let x = scales[0].ends(x.map(|value| scales[0].place(value)));
        let y = scales[1].ends(y.map(|value| scales[1].place(value)));
        Frame { scales, x, y }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (self.scales[0].place(value) - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (self.scales[1].place(value) - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, text: &mut String, [x_title, y_title]: [&str; 2]) {
        let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
        for (value, mark) in self.scales[0].marks(self.x) {
            let x = self.x(value);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{x:.1} {top}V{bottom}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{mark}</text>",
                bottom + 18.0
            );
        }
        for (value, mark) in self.scales[1].marks(self.y) {
            let y = self.y(value);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{left} {y:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
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
        let scales = [AxisScale::Binary, AxisScale::Decimal, AxisScale::Fine];
        for scales in scales.into_iter().flat_map(|x| [[x, AxisScale::Decimal], [x, AxisScale::Share]]) {
            for points in [vec![(1.0, 1.0), (64.0, 0.01)], vec![(4.0, 1.0)], vec![(0.003, 0.5), (0.0031, 0.6)], vec![]] {
                let axes = scales.map(|scale| Axis { title: "axis", scale });
                let text = plot("t", axes, &[line("a < b", points.clone())]);
                assert!(text.contains("a &lt; b") && !text.contains("NaN") && !text.contains("inf"), "{text}");
                let frame = Frame::new(scales, points.iter().map(|p| p.0), points.iter().map(|p| p.1));
                for (x, y) in points {
                    assert!((LEFT..=WIDTH - RIGHT).contains(&frame.x(x)) && (TOP..=HEIGHT - BOTTOM).contains(&frame.y(y)), "{scales:?}");
                }
            }
        }
    }

    #[test]
    fn fine_axes_end_at_marks() {
        let marks = |low: f64, high: f64| {
            let ends = AxisScale::Fine.ends([low, high].map(f64::log10).into_iter());
            AxisScale::Fine.marks(ends).into_iter().map(|mark| mark.1).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(marks(3.1, 9.0), "2 5 10");
        assert_eq!(marks(0.03, 0.6), "0.02 0.05 0.1 0.2 0.5 1");
    }
}
