//! Pooling and resampling.

use super::for_each_index;
use super::pointwise::nan_max;
use crate::resample;
use crate::tensor::Tensor;
use crate::tensor_graph::{Pool, PoolKind, Resize};

pub(super) fn pool(pool: &Pool, x: &Tensor, shape: &[usize]) -> Tensor {
    let values = x.to_f64();
    let extents = [x.shape[2], x.shape[3]];
    let mut results = Vec::with_capacity(shape.iter().product());
    for_each_index(shape, |index| {
        let plane = &values[(index[0] * x.shape[1] + index[1]) * extents[0] * extents[1]..];
        let [rows, columns] = [0, 1].map(|axis| taps(pool, axis, index[2 + axis], extents[axis]));
        let inside = rows.inside.iter().flat_map(|r| columns.inside.iter().map(move |c| plane[r * extents[1] + c]));
        results.push(match pool.kind {
            PoolKind::Max => inside.fold(f64::NEG_INFINITY, nan_max),
            PoolKind::Sum => inside.sum(),
            PoolKind::Average { count_include_pad: true } => {
                inside.sum::<f64>() / (rows.with_padding * columns.with_padding) as f64
            }
            PoolKind::Average { count_include_pad: false } => {
                inside.sum::<f64>() / (rows.inside.len() * columns.inside.len()) as f64
            }
        });
    });
    Tensor::floats(x.dtype, shape.to_vec(), results)
}

/// The window of an output element on one axis: the input positions that it covers, and the number
/// of positions including padding (but not beyond the padding).
struct Taps {
    inside: Vec<usize>,
    with_padding: usize,
}

fn taps(pool: &Pool, axis: usize, output: usize, extent: usize) -> Taps {
    let first = (output * pool.strides[axis] as usize) as i64 - i64::from(pool.pads[axis]);
    let positions = (0..i64::from(pool.window[axis])).map(|tap| first + tap * i64::from(pool.dilations[axis]));
    let end = extent as i64 + i64::from(pool.pads[axis + 2]);
    let (mut inside, mut with_padding) = (Vec::new(), 0);
    for at in positions.filter(|at| *at < end) {
        with_padding += 1;
        if (0..extent as i64).contains(&at) {
            inside.push(at as usize);
        }
    }
    Taps { inside, with_padding }
}

pub(super) fn resize(resize: &Resize, x: &Tensor, shape: &[usize]) -> Tensor {
    let values = x.to_f64();
    let extents = [x.shape[2], x.shape[3]];
    let mut results = Vec::with_capacity(shape.iter().product());
    for_each_index(shape, |index| {
        let plane = &values[(index[0] * x.shape[1] + index[1]) * extents[0] * extents[1]..];
        let [rows, columns] = [0, 1].map(|axis| {
            let (extent, out_extent) = (extents[axis], shape[2 + axis]);
            let coordinate =
                resample::coordinate(resize.coordinates, resize.scales[axis], index[2 + axis], extent, out_extent);
            resample::neighbours(resize.mode, coordinate, extent)
        });
        let weighted =
            rows.iter().flat_map(|(r, wr)| columns.iter().map(move |(c, wc)| plane[r * extents[1] + c] * wr * wc));
        results.push(weighted.sum());
    });
    Tensor::floats(x.dtype, shape.to_vec(), results)
}
