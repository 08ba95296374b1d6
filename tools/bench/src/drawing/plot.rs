//! Line plots, drawn with plotters. This module chooses the axis marks.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::ops::Range;

/// Width of the plot without its legend, in pixels.
const WIDTH: u32 = 530;
const HEIGHT_MIN: u32 = 420;
/// Space above the plot for the title, to the left for the y axis, and below for the x axis.
const TOP: u32 = 30;
const LEFT: u32 = 68;
const BOTTOM: u32 = 48;
/// Space at the edges.
const MARGIN: u32 = 8;
/// Font sizes in plotters' units, which are 1.24 times those of the SVG.
const TITLE_SIZE: u32 = 17;
const TEXT_SIZE: u32 = 15;
/// Upper bounds of the character widths of title and text.
const TITLE_CHARACTER_WIDTH: u32 = 9;
const CHARACTER_WIDTH: u32 = 7;
/// Legend: length of the line sample, and height of a row.
const SAMPLE_WIDTH: u32 = 26;
const ROW_HEIGHT: u32 = 18;
/// An axis with more decades than this has no marks between powers of ten.
const FINE_DECADES_MAX: f64 = 4.0;
/// Dash and gap of dashed lines.
const DASH: (u32, u32) = (6, 4);

/// A palette for colour-blind readers (Okabe and Ito).
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    BLACK,
];
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Logarithmic, with marks at powers of two.
    Binary,
    /// Logarithmic, with marks at powers of ten, which are also its ends.
    Decimal,
    /// Logarithmic, with marks at 1, 2 and 5 times powers of ten.
    Fine,
    /// Linear from 0 to 1, labelled in percent.
    Share,
}

/// An axis.

#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// Title, with the unit.
    pub title: &'a str,
    /// Scale of the values.
    pub scale: AxisScale,
}

/// One line of a plot.
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Lines of the same group have the same colour.
    pub group: usize,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Points; positive on logarithmic axes, 0 to 1 on an axis of shares.
    pub points: Vec<(f64, f64)>,
}

type Drawn<T> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Draws a plot with two axes as SVG.
pub fn plot(title: &str, axes: [Axis<'_>; 2], lines: &[Line]) -> String {
    let mut text = String::new();
    draw(&mut text, title, axes, lines).expect("drawing into memory cannot fail");
    text
}

fn draw(text: &mut String, title: &str, axes: [Axis<'_>; 2], lines: &[Line]) -> Drawn<()> {
    let longest = lines.iter().map(|line| line.name.chars().count() as u32).max();
    let legend_width = longest.map_or(0, |longest| SAMPLE_WIDTH + 3 * MARGIN + longest * CHARACTER_WIDTH);
    let width = (WIDTH + legend_width).max(LEFT + title.chars().count() as u32 * TITLE_CHARACTER_WIDTH);
    let height = HEIGHT_MIN.max(TOP + (lines.len() as u32 + 1) * ROW_HEIGHT);
    let root = SVGBackend::with_string(text, (width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let font = || ("sans-serif", TEXT_SIZE).into_text_style(&root);
    let bold = ("sans-serif", TITLE_SIZE).into_font().style(FontStyle::Bold).into_text_style(&root);
    root.draw_text(title, &bold, (LEFT as i32, MARGIN as i32))?;

    let points = || lines.iter().flat_map(|line| &line.points);
    let [x, y] = axes.map(|axis| axis.scale);
    let mut chart = ChartBuilder::on(&root.margin(TOP, MARGIN, MARGIN, width - WIDTH + 2 * MARGIN))
        .x_label_area_size(BOTTOM)
        .y_label_area_size(LEFT - MARGIN)
        .build_cartesian_2d(x.spread(points().map(|point| point.0)), y.spread(points().map(|point| point.1)))?;
    chart
        .configure_mesh()
        .axis_style(TRANSPARENT)
        .set_all_tick_mark_size(4)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .label_style(font())
        .axis_desc_style(font())
        .x_desc(axes[0].title)
        .y_desc(axes[1].title)
        .draw()?;
    for line in lines {
        match line.dashed {
            true => {
                chart.draw_series(DashedLineSeries::new(line.points.iter().copied(), DASH.0, DASH.1, line.style()))?
            }
            false => chart.draw_series(LineSeries::new(line.points.iter().copied(), line.style()))?,
        };
    }
    legend(&root, lines, font())
}

/// The legend, to the right of the plot.
fn legend(root: &DrawingArea<SVGBackend<'_>, Shift>, lines: &[Line], font: TextStyle<'_>) -> Drawn<()> {
    for (row, line) in lines.iter().enumerate() {
        let (x, y) = ((WIDTH + MARGIN) as i32, (TOP + MARGIN) as i32 + (ROW_HEIGHT * row as u32) as i32);
        let sample = [(x, y), (x + SAMPLE_WIDTH as i32, y)];
        match line.dashed {
            true => root.draw(&DashedPathElement::new(sample, DASH.0, DASH.1, line.style()))?,
            false => root.draw(&PathElement::new(sample, line.style()))?,
        }
        root.draw_text(&line.name, &font, (x + (SAMPLE_WIDTH + MARGIN) as i32, y - 6))?;
    }
    root.present()
}

impl Line {
    fn style(&self) -> ShapeStyle {
        COLOURS[self.group % COLOURS.len()].stroke_width(2)
    }
}

/// An axis and its ends. The ends are positions (see [`AxisScale::place`]), not values.
struct Spread {
    scale: AxisScale,
    ends: (f64, f64),
}

impl Ranged for Spread {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (self.scale.place(*value) - self.ends.0) / (self.ends.1 - self.ends.0);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.scale.marks(self.ends)
    }

    fn range(&self) -> Range<f64> {
        self.scale.value(self.ends.0)..self.scale.value(self.ends.1)
    }
}

impl ValueFormatter<f64> for Spread {
    fn format_ext(&self, value: &f64) -> String {
        match self.scale {
            AxisScale::Share => format!("{:.0} %", value * 100.0),
            _ => format!("{}", (value * 1e9).round() / 1e9),
        }
    }
}

impl AxisScale {
    /// An axis that covers these values.
    fn spread(self, values: impl Iterator<Item = f64>) -> Spread {
        Spread { scale: self, ends: self.ends(values.map(|value| self.place(value))) }
    }

    /// Position of a value on the axis, in units in which the axis is linear.
    fn place(self, value: f64) -> f64 {
        match self {
            AxisScale::Binary => value.log2(),
            AxisScale::Decimal | AxisScale::Fine => value.log10(),
            AxisScale::Share => value,
        }
    }

    /// The value at a position.
    fn value(self, place: f64) -> f64 {
        match self {
            AxisScale::Binary => place.exp2(),
            AxisScale::Decimal | AxisScale::Fine => 10_f64.powf(place),
            AxisScale::Share => place,
        }
    }

    /// Ends of an axis that covers these positions.
    fn ends(self, places: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = range(places);
        match self {
            AxisScale::Binary => (low, high),
            AxisScale::Decimal => (low.floor(), high.ceil()),
            AxisScale::Fine => {
                let marks = || fine_marks(low.floor(), high.ceil()).map(f64::log10);
                (
                    marks().filter(|mark| *mark <= low).last().unwrap_or(low),
                    marks().find(|mark| *mark >= high).unwrap_or(high),
                )
            }
            AxisScale::Share => (0.0, 1.0),
        }
    }

    /// The values to mark between two positions.
    fn marks(self, (low, high): (f64, f64)) -> Vec<f64> {
        let powers =
            |base: f64| (low.ceil() as i32..=high.floor() as i32).map(move |exponent| base.powi(exponent)).collect();
        match self {
            AxisScale::Binary => powers(2.0),
            AxisScale::Decimal => powers(10.0),
            AxisScale::Fine if high - low > FINE_DECADES_MAX => powers(10.0),
            AxisScale::Fine => fine_marks(low.floor(), high.ceil())
                .filter(|value| (low - 1e-9..=high + 1e-9).contains(&value.log10()))
                .collect(),
            AxisScale::Share => (0..=5).map(|fifth| f64::from(fifth) / 5.0).collect(),
        }
    }
}

/// 1, 2 and 5 times the powers of ten between two exponents.
fn fine_marks(low: f64, high: f64) -> impl Iterator<Item = f64> {
    (low as i32..=high as i32).flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(exponent)))
}

/// The smallest and the largest value; never an empty range.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    match low < high {
        true => (low, high),
        false if low.is_finite() => (low - 0.5, low + 0.5),
        false => (0.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, group: usize, dashed: bool, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), group, dashed, points }
    }

    #[test]
    fn every_point_is_drawn_inside_the_frame() {
        let scales = [AxisScale::Binary, AxisScale::Decimal, AxisScale::Fine];
        for scales in scales.into_iter().flat_map(|x| [[x, AxisScale::Decimal], [x, AxisScale::Share]]) {
            for points in [vec![(1.0, 1.0), (64.0, 0.01)], vec![(4.0, 1.0)], vec![(0.003, 0.5), (0.0031, 0.6)], vec![]]
            {
                let axes = scales.map(|scale| Axis { title: "axis", scale });
                let text = plot("t", axes, &[line("a < b", 0, false, points.clone())]);
                assert!(text.contains("a &lt; b") && !text.contains("NaN") && !text.contains("inf"), "{text}");
                let [x, y] =
                    [scales[0].spread(points.iter().map(|p| p.0)), scales[1].spread(points.iter().map(|p| p.1))];
                for point in points {
                    let pixels = [x.map(&point.0, (0, 100)), y.map(&point.1, (100, 0))];
                    assert!(pixels.iter().all(|pixel| (0..=100).contains(pixel)), "{scales:?}: {pixels:?}");
                }
            }
        }
    }

    #[test]
    fn fine_axes_end_at_marks() {
        let marks = |low: f64, high: f64| {
            let spread = AxisScale::Fine.spread([low, high].into_iter());
            spread.scale.marks(spread.ends).iter().map(|mark| spread.format_ext(mark)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(marks(3.1, 9.0), "2 5 10");
        assert_eq!(marks(0.03, 0.6), "0.02 0.05 0.1 0.2 0.5 1");
        assert_eq!(marks(0.002, 30.0), "0.01 0.1 1 10", "more would not be legible");
    }

    #[test]
    fn a_plot_as_svg() {
        let axes =
            [Axis { title: "clients", scale: AxisScale::Binary }, Axis { title: "share", scale: AxisScale::Share }];
        let lines = [
            line("shared", 0, false, vec![(1.0, 0.1), (2.0, 0.4), (8.0, 1.0)]),
            line("exclusive", 1, true, vec![(1.0, 0.1), (2.0, 0.2)]),
        ];
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("plot.svg", plot("Requests & answers", axes, &lines));
        });
    }
}
