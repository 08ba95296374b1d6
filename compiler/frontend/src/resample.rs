//! Maps output positions of a resize to coordinates of the input. Computed in f32, as in ONNX
//! Runtime.

use crate::tensor_graph::{CoordinateMode, ResizeMode};

/// The input coordinate of an output position; `scale` is output / input, as in the model.
pub(crate) fn coordinate(mode: CoordinateMode, scale: f32, output: usize, extent: usize, out_extent: usize) -> f32 {
    let at = output as f32;
    match mode {
        CoordinateMode::Asymmetric => at / scale,
        CoordinateMode::PytorchHalfPixel if out_extent <= 1 => 0.0,
        CoordinateMode::HalfPixel | CoordinateMode::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
        CoordinateMode::AlignCorners if out_extent <= 1 => 0.0,
        CoordinateMode::AlignCorners => at * (extent as f32 - 1.0) / (out_extent as f32 - 1.0),
    }
}

/// The input positions next to a coordinate, with their weights. Positions outside are clamped.
pub(crate) fn neighbours(mode: ResizeMode, coordinate: f32, extent: usize) -> Vec<(usize, f64)> {
    let last = extent.saturating_sub(1) as f32;
    let nearest = |position: f32| vec![(position.clamp(0.0, last) as usize, 1.0)];
    match mode {
        ResizeMode::NearestFloor => nearest(coordinate.floor()),
        ResizeMode::NearestCeil => nearest(coordinate.ceil()),
        ResizeMode::NearestRoundPreferFloor => nearest((coordinate - 0.5).ceil()),
        ResizeMode::NearestRoundPreferCeil => nearest((coordinate + 0.5).floor()),
        ResizeMode::Linear => {
            let clamped = coordinate.clamp(0.0, last);
            let low = clamped.floor();
            let part = f64::from(clamped - low);
            vec![(low as usize, 1.0 - part), ((low + 1.0).min(last) as usize, part)]
        }
    }
}
