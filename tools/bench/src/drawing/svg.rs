//! Pictures.

use super::escaped;
use super::layers::{LAYER_HEIGHT, Layout};
use super::outline::{Outline, Shape};
use std::fmt::Write;

/// Height of a box in pixels.
const BOX_HEIGHT: f64 = 26.0;

/// Colours that are told apart on light and dark grounds, and in print.
const STYLE: &str = "\
text { font: 11px monospace; text-anchor: middle; dominant-baseline: central; fill: #1b1b1b }
rect { stroke: #444; stroke-width: 1 }
path { fill: none; stroke: #888; stroke-width: 1.2 }
.input { fill: #cfe8ff } .output { fill: #d8f5d0 } .kernel { fill: #fff3d6 } .copy { fill: #eeeeee }";

pub(super) fn write(name: &str, outline: &Outline, layout: &Layout) -> String {
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
         <rect x=\"0\" y=\"0\" width=\"{width}\" height=\"{height}\" style=\"fill: white; stroke: none\"/>\n",
        escaped(name)
    );
    // Writing to a string cannot fail.
    for ((from, to), bends) in outline.edges.iter().zip(&layout.bends) {
        let _ = writeln!(text, "<path d=\"{}\"/>", curve(layout.centers[*from], bends, layout.centers[*to]));
    }
    for ((vertex, (x, y)), width) in outline.vertices.iter().zip(&layout.centers).zip(outline.widths()) {
        let (class, radius) = match vertex.shape {
            Shape::Input => ("input", BOX_HEIGHT / 2.0),
            Shape::Output => ("output", BOX_HEIGHT / 2.0),
            Shape::Kernel => ("kernel", 4.0),
            Shape::Copy => ("copy", 0.0),
        };
        let (left, top) = (x - width / 2.0, y - BOX_HEIGHT / 2.0);
        let _ = writeln!(
            text,
            "<g><title>{}</title><rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"{radius}\"/>\
             <text x=\"{x:.1}\" y=\"{y:.1}\">{}</text></g>",
            escaped(&vertex.label),
            escaped(&vertex.short_label())
        );
    }
    text.push_str("</svg>\n");
    text
}

/// From below one box, through the bends, to above another; vertical at both ends of every piece.
fn curve(from: (f64, f64), bends: &[(f64, f64)], to: (f64, f64)) -> String {
    let start = (from.0, from.1 + BOX_HEIGHT / 2.0);
    let end = (to.0, to.1 - BOX_HEIGHT / 2.0);
    let mut path = format!("M{:.1} {:.1}", start.0, start.1);
    let mut last = start;
    for point in bends.iter().copied().chain([end]) {
        let pull = (point.1 - last.1).min(LAYER_HEIGHT) / 2.0;
        let _ = write!(path, " C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}", last.0, last.1 + pull, point.0, point.1 - pull, point.0, point.1);
        last = point;
    }
    path
}
