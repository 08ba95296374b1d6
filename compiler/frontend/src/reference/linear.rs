//! Convolution and matrix product.

use super::pointwise::{Operands, Scalar, collect};
use super::{broadcast_indices, strides};
use crate::tensor::Tensor;
use crate::tensor_graph::{Conv, MatMul, PointProgram};
use atoll_kgraph::DType;

/// Applies the epilogue to accumulated sums and rounds.
fn finish(epilogue: &PointProgram, sums: &[f64], extras: &[&Tensor], dtype: DType, shape: &[usize]) -> Tensor {
    let operands = Operands::new(extras, shape);
    collect(dtype, shape, sums.iter().enumerate().map(|(i, sum)| operands.apply(epilogue, Some(Scalar::Float(*sum)), i)))
}

pub(super) fn conv(conv: &Conv, x: &Tensor, w: &Tensor, extras: &[&Tensor], dtype: DType, shape: &[usize]) -> Tensor {
    let (input, weights) = (x.to_f64(), w.to_f64());
    let [channels, height, width] = [x.shape[1], x.shape[2], x.shape[3]];
    let [filters, per_group, kernel_h, kernel_w] = [w.shape[0], w.shape[1], w.shape[2], w.shape[3]];
    let [out_h, out_w] = [shape[2], shape[3]];
    let filters_per_group = filters / conv.groups as usize;
    let mut sums = vec![0.0; shape.iter().product()];
    for (plane, sums) in sums.chunks_mut((out_h * out_w).max(1)).enumerate() {
        let (image, filter) = (plane / filters, plane % filters);
        let group = filter / filters_per_group;
        for c in 0..per_group {
            let source = &input[(image * channels + group * per_group + c) * height * width..][..height * width];
            let kernel = &weights[(filter * per_group + c) * kernel_h * kernel_w..][..kernel_h * kernel_w];
            for (tap, weight) in kernel.iter().enumerate() {
                let columns = axis(conv, 1, tap % kernel_w);
                for (oh, row) in sums.chunks_mut(out_w.max(1)).enumerate() {
                    let Some(ih) = axis(conv, 0, tap / kernel_w).source(oh, height) else { continue };
                    add_row(row, *weight, &source[ih * width..][..width], columns);
                }
            }
        }
    }
    finish(&conv.epilogue, &sums, extras, dtype, shape)
}

/// How output positions map to input positions along one axis, for one tap of the window.
#[derive(Clone, Copy)]
struct Axis {
    stride: usize,
    offset: isize,
}

fn axis(conv: &Conv, axis: usize, tap: usize) -> Axis {
    Axis { stride: conv.strides[axis] as usize, offset: (tap * conv.dilations[axis] as usize) as isize - conv.pads[axis] as isize }
}

impl Axis {
    fn source(self, output: usize, extent: usize) -> Option<usize> {
        (output * self.stride).checked_add_signed(self.offset).filter(|i| *i < extent)
    }
}

fn add_row(row: &mut [f64], weight: f64, source: &[f64], columns: Axis) {
    let first = (0..row.len()).position(|i| columns.source(i, source.len()).is_some());
    let Some((first, from)) = first.and_then(|i| Some((i, columns.source(i, source.len())?))) else { return };
    for (sum, x) in row[first..].iter_mut().zip(source[from..].iter().step_by(columns.stride)) {
        *sum += weight * x;
    }
}

pub(super) fn matmul(matmul: &MatMul, a: &Tensor, b: &Tensor, extras: &[&Tensor], dtype: DType, shape: &[usize]) -> Tensor {
    let rank = shape.len();
    let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
    let inner = if matmul.transpose_a { a.shape[a.shape.len() - 2] } else { a.shape[a.shape.len() - 1] };
    let a_matrices = broadcast_indices(&a.shape[..a.shape.len() - 2], &shape[..rank - 2]);
    let b_matrices = broadcast_indices(&b.shape[..b.shape.len() - 2], &shape[..rank - 2]);
    let (a_values, b_values) = (a.to_f64(), b.to_f64());
    let [a_row, a_inner] = if matmul.transpose_a { [1, rows] } else { [inner, 1] };
    let mut sums = vec![0.0; shape.iter().product()];
    for (batch, sums) in sums.chunks_mut((rows * columns).max(1)).enumerate() {
        let a = &a_values[a_matrices[batch] * rows * inner..][..rows * inner];
        let b = &b_values[b_matrices[batch] * inner * columns..][..inner * columns];
        let b = if matmul.transpose_b { transposed(b, columns, inner) } else { b.to_vec() };
        for (m, row) in sums.chunks_mut(columns.max(1)).enumerate() {
            for k in 0..inner {
                let factor = a[m * a_row + k * a_inner];
                row.iter_mut().zip(&b[k * columns..]).for_each(|(sum, b)| *sum += factor * b);
            }
        }
    }
    finish(&matmul.epilogue, &sums, extras, dtype, shape)
}

fn transposed(matrix: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    let step = strides(&[rows, columns])[0];
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * step + c])).collect()
}
