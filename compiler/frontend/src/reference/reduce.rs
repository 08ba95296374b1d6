//! Reductions and normalisations.

use super::pointwise::{nan_max, nan_min};
use super::{for_each_index, strides};
use crate::tensor::{Data, Tensor, int_bounds};
use crate::tensor_graph::{Reduce, ReduceKind};
use atoll_kgraph::DType;

pub(super) fn reduce(reduce: &Reduce, input: &Tensor, shape: &[usize]) -> Tensor {
    // Strides of the result over the input's axes, with reduced axes kept with extent 1.
    let kept: Vec<usize> =
        input.shape.iter().enumerate().map(|(axis, dim)| if reduce.axes.contains(&axis) { 1 } else { *dim }).collect();
    let steps = strides(&kept);
    let mut groups = Vec::with_capacity(input.len());
    for_each_index(&input.shape, |index| {
        groups.push(
            index
                .iter()
                .enumerate()
                .filter(|(axis, _)| !reduce.axes.contains(axis))
                .map(|(axis, i)| i * steps[axis])
                .sum::<usize>(),
        );
    });
    let results: usize = kept.iter().product();
    let count: usize = reduce.axes.iter().map(|axis| input.shape[*axis]).product();
    match &input.data {
        Data::Float(values) => {
            Tensor::floats(input.dtype, shape.to_vec(), reduce_floats(reduce.kind, values, &groups, results, count))
        }
        Data::Int(values) => Tensor::ints(
            input.dtype,
            shape.to_vec(),
            reduce_ints(reduce.kind, input.dtype, values, &groups, results, count),
        ),
    }
}

fn reduce_floats(kind: ReduceKind, values: &[f64], groups: &[usize], results: usize, count: usize) -> Vec<f64> {
    let (start, step): (f64, fn(f64, f64) -> f64) = match kind {
        ReduceKind::Sum | ReduceKind::Mean => (0.0, |a, x| a + x),
        ReduceKind::SumSquare | ReduceKind::L2 => (0.0, |a, x| a + x * x),
        ReduceKind::Prod => (1.0, |a, x| a * x),
        ReduceKind::Max => (f64::NEG_INFINITY, nan_max),
        ReduceKind::Min => (f64::INFINITY, nan_min),
    };
    let mut sums = vec![start; results];
    values.iter().zip(groups).for_each(|(x, group)| sums[*group] = step(sums[*group], *x));
    match kind {
        ReduceKind::Mean => sums.iter_mut().for_each(|s| *s /= count as f64),
        ReduceKind::L2 => sums.iter_mut().for_each(|s| *s = s.sqrt()),
        _ => {}
    }
    sums
}

/// U64 is compared and divided as unsigned.
fn reduce_ints(
    kind: ReduceKind,
    ty: DType,
    values: &[i64],
    groups: &[usize],
    results: usize,
    count: usize,
) -> Vec<i64> {
    let (lowest, highest) = int_bounds(ty);
    let is_unsigned = ty == DType::U64;
    let (start, step): (i64, fn(i64, i64) -> i64) = match kind {
        ReduceKind::Sum | ReduceKind::Mean => (0, i64::wrapping_add),
        ReduceKind::SumSquare | ReduceKind::L2 => (0, |a, x| a.wrapping_add(x.wrapping_mul(x))),
        ReduceKind::Prod => (1, i64::wrapping_mul),
        ReduceKind::Max if is_unsigned => (0, |a, x| (a as u64).max(x as u64) as i64),
        ReduceKind::Max => (lowest, i64::max),
        ReduceKind::Min if is_unsigned => (-1, |a, x| (a as u64).min(x as u64) as i64),
        ReduceKind::Min => (highest, i64::min),
    };
    let mut sums = vec![start; results];
    values.iter().zip(groups).for_each(|(x, group)| sums[*group] = step(sums[*group], *x));
    match kind {
        ReduceKind::Mean if is_unsigned => {
            sums.iter_mut().for_each(|s| *s = (*s as u64).checked_div(count as u64).unwrap_or(0) as i64)
        }
        ReduceKind::Mean => sums.iter_mut().for_each(|s| *s = s.checked_div(count as i64).unwrap_or(0)),
        ReduceKind::L2 if is_unsigned => sums.iter_mut().for_each(|s| *s = (*s as u64 as f64).sqrt() as i64),
        ReduceKind::L2 => sums.iter_mut().for_each(|s| *s = (*s as f64).sqrt() as i64),
        _ => {}
    }
    sums
}

pub(super) fn softmax(axis: usize, log: bool, input: &Tensor) -> Tensor {
    let mut values = input.to_f64();
    let extent = input.shape[axis];
    let step: usize = input.shape[axis + 1..].iter().product();
    let outer: usize = input.shape[..axis].iter().product();
    for line in 0..outer * step {
        let first = line / step * step * extent + line % step;
        let at = |i: usize| first + i * step;
        let max = (0..extent).map(|i| values[at(i)]).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = (0..extent).map(|i| (values[at(i)] - max).exp()).sum();
        for i in 0..extent {
            let shifted = values[at(i)] - max;
            values[at(i)] = if log { shifted - sum.ln() } else { shifted.exp() / sum };
        }
    }
    Tensor::floats(input.dtype, input.shape.clone(), values)
}

pub(super) fn layer_norm(axis: usize, epsilon: f32, x: &Tensor, scale: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let mut values = x.to_f64();
    let row: usize = x.shape[axis..].iter().product();
    let scale = scale.to_f64();
    let bias = bias.map(Tensor::to_f64);
    for row in values.chunks_mut(row.max(1)) {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        let factor = 1.0 / (variance + f64::from(epsilon)).sqrt();
        for (i, x) in row.iter_mut().enumerate() {
            *x = (*x - mean) * factor * scale[i] + bias.as_ref().map_or(0.0, |b| b[i]);
        }
    }
    Tensor::floats(x.dtype, x.shape.clone(), values)
}
