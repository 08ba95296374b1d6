//! Timelines: one row per compute unit, one box per activity. Bars of quantities are drawn in the
//! same way.
//!
//! Written by hand, because plotters aligns to whole pixels and has no tooltips. The rows of a
//! large GPU are thinner than four pixels, and the tooltip of a box names its kernel.

use super::plot::COLOURS;
use std::fmt::Write;

const WIDTH: f64 = 1100.0;
/// Space for the names of rows, and to the right.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 20.0;
/// Space for title and legend, and for the axis.
const TOP: f64 = 64.0;
const BOTTOM: f64 = 46.0;

/// Maximum height of all rows together, and of one row.
const ROWS_HEIGHT_MAX: f64 = 480.0;
const ROW_HEIGHT_MAX: f64 = 34.0;

/// Minimum width of a box in pixels, so that short activities stay visible.
const BOX_WIDTH_MIN: f64 = 0.4;

/// Approximate number of axis marks.
const TICKS: f64 = 10.0;

const STYLE: &str = "\
text { font: 12px sans-serif; fill: #1b1b1b } .title { font-weight: bold } .grid { stroke: #ddd; stroke-width: 1 } \
.mark { stroke: #1b1b1b; stroke-dasharray: 4 3 }
.box { stroke: white; stroke-width: 0.3 } .cut { stroke: black; stroke-width: 1.2 }";

/// A timeline to draw.
#[derive(Debug, Default)]
pub struct Gantt {
    /// Title of the picture.
    pub title: String,
    /// Names of the rows from top to bottom; may be empty.
    pub rows: Vec<String>,
    /// Groups in the order of the legend; each has a colour.
    pub groups: Vec<String>,
    /// Activities.
    pub boxes: Vec<Ran>,
    /// Named moments, in milliseconds.
    pub marks: Vec<(f64, String)>,
    /// Beginning and end, in milliseconds.
    pub window: (f64, f64),
    /// Title of the axis, if it is not the time since the start.
    pub axis: Option<String>,
}

/// An activity.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Position of its top, in rows.
    pub row: f64,
    /// Height in rows.
    pub height: f64,
    /// Beginning in milliseconds.
    pub begin: f64,
    /// End in milliseconds.
    pub end: f64,
    /// Index into [`Gantt::groups`].
    pub group: usize,
    /// Text of the tooltip.
    pub label: String,
    /// Whether it was stopped before its end.
    pub was_stopped: bool,
}

impl Gantt {
    /// A bar from 0 for each value, with its name and the index of its group. `axis` has the unit.
    pub fn bars(title: &str, axis: &str, groups: Vec<String>, bars: &[(String, usize, f64)]) -> Gantt {
        let bar = |(row, (name, group, value)): (usize, &(String, usize, f64))| Ran {
            row: row as f64,
            height: 0.8,
            begin: 0.0,
            end: *value,
            group: *group,
            label: format!("{name}: {value:.3}"),
            was_stopped: false,
        };
        Gantt {
            title: title.to_owned(),
            rows: bars.iter().map(|(name, ..)| name.clone()).collect(),
            groups,
            boxes: bars.iter().enumerate().map(bar).collect(),
            marks: Vec::new(),
            window: (0.0, bars.iter().map(|(.., value)| *value).fold(0.0, f64::max)),
            axis: Some(axis.to_owned()),
        }
    }

    /// Draws the timeline as SVG.
    pub fn svg(&self) -> String {
        let row_height = (ROWS_HEIGHT_MAX / self.rows.len().max(1) as f64).min(ROW_HEIGHT_MAX);
        let rows_height = row_height * self.rows.len() as f64;
        let height = TOP + rows_height + BOTTOM;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} \
            {height:.0}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"white\"/>\n<text class=\"title\" x=\"{LEFT}\" \
             y=\"20\">{title}</text>\n",
            title = escaped(&self.title)
        );
        self.legend(&mut text);
        self.axis(&mut text, TOP + rows_height);
        // Writing to a string cannot fail.
        for (row, name) in self.rows.iter().enumerate() {
            let y = TOP + row_height * (row as f64 + 0.5) + 4.0;
            let _ =
                writeln!(text, "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>", LEFT - 8.0, escaped(name));
        }
        for ran in self.boxes.iter().filter(|ran| ran.end > self.window.0 && ran.begin < self.window.1) {
            let (x, y) = (self.x(ran.begin), TOP + ran.row * row_height);
            let (width, height) = ((self.x(ran.end) - x).max(BOX_WIDTH_MIN), ran.height * row_height);
            let colour = colour(ran.group);
            let _ = writeln!(
                text,
                "<rect class=\"box\" fill=\"{colour}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
                height=\"{height:.2}\"><title>{}</title></rect>",
                escaped(&ran.label)
            );
            if ran.was_stopped {
                let _ = writeln!(text, "<path class=\"cut\" d=\"M{:.2} {y:.2}v{height:.2}\"/>", x + width);
            }
        }
        for (at, name) in self.marks.iter().filter(|(at, _)| (self.window.0..=self.window.1).contains(at)) {
            let x = self.x(*at);
            let _ = writeln!(
                text,
                "<path class=\"mark\" d=\"M{x:.1} {:.1}V{:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                TOP - 6.0,
                TOP + rows_height,
                TOP - 8.0,
                escaped(name)
            );
        }
        text.push_str("</svg>\n");
        text
    }

    fn x(&self, ms: f64) -> f64 {
        let (begin, end) = self.window;
        LEFT + ((ms.clamp(begin, end) - begin) / (end - begin).max(f64::MIN_POSITIVE)) * (WIDTH - LEFT - RIGHT)
    }

    fn legend(&self, text: &mut String) {
        let mut x = LEFT;
        for (group, name) in self.groups.iter().enumerate() {
            let colour = colour(group);
            let _ = writeln!(
                text,
                "<rect fill=\"{colour}\" x=\"{x:.0}\" y=\"30\" width=\"12\" height=\"12\"/><text x=\"{:.0}\" \
                y=\"40\">{}</text>",
                x + 17.0,
                escaped(name)
            );
            x += 40.0 + 7.0 * name.chars().count() as f64;
        }
    }

    fn axis(&self, text: &mut String, bottom: f64) {
        let (begin, end) = self.window;
        let step = round_step((end - begin) / TICKS);
        let mut tick = (begin / step).ceil() * step;
        while tick <= end + step * 1e-6 {
            let x = self.x(tick);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                (tick * 1e6).round() / 1e6
            );
            tick += step;
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            bottom + 36.0,
            escaped(self.axis.as_deref().unwrap_or("milliseconds since the start"))
        );
    }
}

/// The colour of a group in SVG notation.
fn colour(group: usize) -> String {
    let colour = COLOURS[group % COLOURS.len()];
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The smallest 1, 2 or 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|step| *step >= least).unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activities_are_clipped_to_the_window() {
        let ran = |row: f64, begin: f64, end: f64, was_stopped| Ran {
            row,
            height: 1.0,
            begin,
            end,
            group: row as usize,
            label: "a < b".into(),
            was_stopped,
        };
        let gantt = Gantt {
            title: "A under reset".into(),
            rows: vec!["compute unit 0".into(), "compute unit 1".into()],
            groups: vec!["RT".into(), "BE & co".into()],
            boxes: vec![ran(0.0, 0.0, 11.0, true), ran(1.0, 10.5, 99.0, false), ran(1.0, 0.0, 9.9, false)],
            marks: vec![(10.2, "preempt".into()), (30.0, "later".into())],
            window: (10.0, 12.0),
            axis: None,
        };
        let text = gantt.svg();
        assert_eq!(text.matches("class=\"box\"").count(), 2, "{text}");
        assert_eq!((text.matches("class=\"cut\"").count(), text.matches("class=\"mark\"").count()), (1, 1));
        assert!(text.contains("a &lt; b") && text.contains("BE &amp; co") && !text.contains("NaN"), "{text}");
        for (begin, width) in [(150.0, 465.0), (382.5, 697.5)] {
            assert!(
                text.contains(&format!("x=\"{begin:.2}\"")) && text.contains(&format!("width=\"{width:.2}\"")),
                "{text}"
            );
        }
        assert!(!Gantt::default().svg().contains("NaN"));
    }

    #[test]
    fn bars_begin_at_zero_and_the_longest_fills_the_axis() {
        let bars = [("a & b".to_owned(), 0, 1.0), ("c".to_owned(), 1, 4.0)];
        let text = Gantt::bars("memory", "MiB", vec!["own".into(), "shared".into()], &bars).svg();
        let whole = WIDTH - LEFT - RIGHT;
        for (name, width) in [("a &amp; b: 1.000", whole / 4.0), ("c: 4.000", whole)] {
            let bar = text.lines().find(|line| line.contains(name)).unwrap();
            assert!(
                bar.contains(&format!("x=\"{LEFT:.2}\"")) && bar.contains(&format!("width=\"{width:.2}\"")),
                "{bar}"
            );
        }
        assert!(text.contains(">MiB<") && !text.contains("milliseconds"));
    }

    #[test]
    fn marks_are_at_round_numbers() {
        assert_eq!([0.03, 0.2, 1.0, 7.0].map(round_step), [0.05, 0.2, 1.0, 10.0]);
    }
}
