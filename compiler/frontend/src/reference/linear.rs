//! Convolution and matrix product.

use super::pointwise::{Operands, Scalar, collect};
use super::{ReferenceError, broadcast_indices, for_each_index, strides};
use crate::tensor::{Data, Tensor, wrap_int};
use crate::tensor_graph::{Conv, MatMul, PointProgram};
use atoll_kgraph::DType;

/// Applies the epilogue to accumulated sums of type `ty`, and rounds.
fn finish(
    epilogue: &PointProgram,
    ty: DType,
    sums: &[Scalar],
    extras: &[&Tensor],
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, ReferenceError> {
    let operands = Operands::new(extras, shape);
    let elements = sums.iter().enumerate().map(|(i, sum)| operands.apply(epilogue, Some((ty, *sum)), i));
    let elements = elements.collect::<Result<Vec<Scalar>, _>>()?;
    Ok(collect(dtype, shape, elements.into_iter()))
}

pub(super) fn conv(
    conv: &Conv,
    x: &Tensor,
    w: &Tensor,
    extras: &[&Tensor],
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, ReferenceError> {
    let (input, weights) = (x.to_f64(), w.to_f64());
    let (channels, extents, kernel) = (x.shape[1], &x.shape[2..], &w.shape[2..]);
    let (filters, per_group) = (w.shape[0], w.shape[1]);
    let (image_size, kernel_size) = (extents.iter().product::<usize>(), kernel.iter().product::<usize>());
    let filters_per_group = filters / conv.groups as usize;
    let mut sums = vec![0.0; shape.iter().product()];
    for (plane, sums) in sums.chunks_mut(shape[2..].iter().product::<usize>().max(1)).enumerate() {
        let (image, filter) = (plane / filters, plane % filters);
        let group = filter / filters_per_group;
        for c in 0..per_group {
            let source = &input[(image * channels + group * per_group + c) * image_size..][..image_size];
            let factors = &weights[(filter * per_group + c) * kernel_size..][..kernel_size];
            add_channel(conv, sums, &shape[2..], source, extents, factors, kernel);
        }
    }
    let sums: Vec<Scalar> = sums.into_iter().map(Scalar::Float).collect();
    finish(&conv.epilogue, x.dtype, &sums, extras, dtype, shape)
}

/// Adds the products of one channel to the sums of one filter, row by row and tap by tap.
fn add_channel(
    conv: &Conv,
    sums: &mut [f64],
    shape: &[usize],
    source: &[f64],
    extents: &[usize],
    factors: &[f64],
    kernel: &[usize],
) {
    let last = shape.len() - 1;
    let (row_size, width) = (shape[last].max(1), extents[last]);
    let rows: Vec<Vec<usize>> = all_indices(&shape[..last]);
    for (tap, factor) in all_indices(kernel).iter().zip(factors) {
        let along = |i: usize| axis(conv, i, tap[i]);
        for (row, sums) in rows.iter().zip(sums.chunks_mut(row_size)) {
            let line = (0..last).try_fold(0, |line, i| Some(line * extents[i] + along(i).source(row[i], extents[i])?));
            if let Some(line) = line {
                add_row(sums, *factor, &source[line * width..][..width], along(last));
            }
        }
    }
}

/// All indices of a shape in order.
fn all_indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut indices = Vec::new();
    for_each_index(shape, |index| indices.push(index.to_vec()));
    indices
}

/// How output positions map to input positions along one axis, for one tap of the window.
#[derive(Clone, Copy)]
struct Axis {
    stride: usize,
    offset: isize,
}

fn axis(conv: &Conv, axis: usize, tap: usize) -> Axis {
    Axis {
        stride: conv.strides[axis] as usize,
        offset: (tap * conv.dilations[axis] as usize) as isize - conv.pads[axis] as isize,
    }
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

pub(super) fn matmul(
    matmul: &MatMul,
    a: &Tensor,
    b: &Tensor,
    extras: &[&Tensor],
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, ReferenceError> {
    let sums: Vec<Scalar> = match (&a.data, &b.data) {
        (Data::Int(x), Data::Int(y)) => {
            let sums = products(matmul, [a, b], x, y, shape, |sum, x, y| sum.wrapping_add(x.wrapping_mul(y)));
            sums.into_iter().map(|sum| Scalar::Int(wrap_int(a.dtype, sum))).collect()
        }
        _ => {
            let sums = products(matmul, [a, b], &a.to_f64(), &b.to_f64(), shape, |sum, x, y| sum + x * y);
            sums.into_iter().map(Scalar::Float).collect()
        }
    };
    finish(&matmul.epilogue, a.dtype, &sums, extras, dtype, shape)
}

/// The sum of products for every element.
fn products<T: Copy + Default>(
    matmul: &MatMul,
    [a, b]: [&Tensor; 2],
    a_values: &[T],
    b_values: &[T],
    shape: &[usize],
    add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let rank = shape.len();
    let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
    let inner = if matmul.transpose_a { a.shape[a.shape.len() - 2] } else { a.shape[a.shape.len() - 1] };
    let a_matrices = broadcast_indices(&a.shape[..a.shape.len() - 2], &shape[..rank - 2]);
    let b_matrices = broadcast_indices(&b.shape[..b.shape.len() - 2], &shape[..rank - 2]);
    let [a_row, a_inner] = if matmul.transpose_a { [1, rows] } else { [inner, 1] };
    let mut sums = vec![T::default(); shape.iter().product()];
    for (batch, sums) in sums.chunks_mut((rows * columns).max(1)).enumerate() {
        let a = &a_values[a_matrices[batch] * rows * inner..][..rows * inner];
        let b = &b_values[b_matrices[batch] * inner * columns..][..inner * columns];
        let b = if matmul.transpose_b { transposed(b, columns, inner) } else { b.to_vec() };
        for (m, row) in sums.chunks_mut(columns.max(1)).enumerate() {
            for k in 0..inner {
                let factor = a[m * a_row + k * a_inner];
                row.iter_mut().zip(&b[k * columns..]).for_each(|(sum, b)| *sum = add(*sum, factor, *b));
            }
        }
    }
    sums
}

fn transposed<T: Copy>(matrix: &[T], rows: usize, columns: usize) -> Vec<T> {
    let step = strides(&[rows, columns])[0];
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * step + c])).collect()
}
