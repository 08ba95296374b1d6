//! Operators that only move elements.

use super::{ReferenceError, for_each_index, strides};
use crate::tensor::{Data, Tensor};
use crate::tensor_graph::PadMode;

/// Builds a tensor of `shape` whose element at an index is the input's element at `source(index)`.
fn moved(input: &Tensor, shape: &[usize], fill: f64, source: impl Fn(&[usize]) -> Option<usize>) -> Tensor {
    let mut indices = Vec::with_capacity(shape.iter().product());
    for_each_index(shape, |index| indices.push(source(index)));
    input.pick(shape.to_vec(), fill, indices.into_iter())
}

pub(super) fn gather(axis: usize, data: &Tensor, indices: &Tensor, shape: &[usize]) -> Result<Tensor, ReferenceError> {
    let Data::Int(indices_data) = &indices.data else {
        return Err(ReferenceError::Invalid("the indices of a gather are not integers".into()));
    };
    let extent = data.shape[axis];
    let resolved: Vec<usize> = indices_data
        .iter()
        .map(|index| {
            let at = if *index < 0 { index + extent as i64 } else { *index };
            usize::try_from(at)
                .ok()
                .filter(|at| *at < extent)
                .ok_or(ReferenceError::IndexOutOfRange { index: *index, extent })
        })
        .collect::<Result<_, _>>()?;
    let outer: usize = data.shape[..axis].iter().product();
    let inner: usize = data.shape[axis + 1..].iter().product();
    let resolved = &resolved;
    let sources = (0..outer)
        .flat_map(|o| resolved.iter().flat_map(move |at| (0..inner).map(move |i| Some((o * extent + at) * inner + i))));
    Ok(data.pick(shape.to_vec(), 0.0, sources))
}

pub(super) fn transpose(permutation: &[usize], input: &Tensor, shape: &[usize]) -> Tensor {
    let own = strides(&input.shape);
    moved(input, shape, 0.0, |index| Some(index.iter().zip(permutation).map(|(i, from)| i * own[*from]).sum()))
}

pub(super) fn slice(starts: &[i64], steps: &[i64], input: &Tensor, shape: &[usize]) -> Tensor {
    let own = strides(&input.shape);
    moved(input, shape, 0.0, |index| {
        Some(
            index
                .iter()
                .enumerate()
                .map(|(axis, i)| (starts[axis] + *i as i64 * steps[axis]) as usize * own[axis])
                .sum(),
        )
    })
}

pub(super) fn concat(axis: usize, inputs: &[&Tensor], shape: &[usize]) -> Tensor {
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    // Concatenates all inputs into one list, then picks the rows in turn.
    let data = match inputs.first().map(|t| &t.data) {
        Some(Data::Int(_)) => Data::Int(
            inputs.iter().flat_map(|t| if let Data::Int(v) = &t.data { v.clone() } else { Vec::new() }).collect(),
        ),
        _ => Data::Float(inputs.iter().flat_map(|t| t.to_f64()).collect()),
    };
    let mut starts = Vec::with_capacity(inputs.len());
    let mut total = 0;
    for tensor in inputs {
        starts.push(total);
        total += tensor.len();
    }
    let joined = Tensor { dtype: inputs[0].dtype, shape: vec![total], data };
    let starts = &starts;
    let indices = (0..outer).flat_map(|o| {
        inputs.iter().zip(starts).flat_map(move |(tensor, start)| {
            let row = tensor.shape[axis] * inner;
            (0..row).map(move |i| Some(start + o * row + i))
        })
    });
    joined.pick(shape.to_vec(), 0.0, indices)
}

pub(super) fn pad(before: &[i64], mode: PadMode, input: &Tensor, shape: &[usize]) -> Tensor {
    let own = strides(&input.shape);
    let fill = if let PadMode::Constant(value) = mode { value } else { 0.0 };
    moved(input, shape, fill, |index| {
        let mut source = 0;
        for (axis, i) in index.iter().enumerate() {
            let extent = input.shape[axis] as i64;
            let at = *i as i64 - before[axis];
            let at = match mode {
                PadMode::Constant(_) => Some(at).filter(|at| (0..extent).contains(at))?,
                PadMode::Edge => at.clamp(0, extent - 1),
                PadMode::Reflect => reflect(at, extent),
                PadMode::Wrap => at.rem_euclid(extent),
            };
            source += at as usize * own[axis];
        }
        Some(source)
    })
}

/// Mirrors at both ends as often as needed, without repeating the edge.
fn reflect(at: i64, extent: i64) -> i64 {
    let period = (2 * (extent - 1)).max(1);
    let at = at.rem_euclid(period);
    if at < extent { at } else { period - at }
}
