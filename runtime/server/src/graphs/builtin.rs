//! Built-in stages: small computations between functions, on FP32 tensors, along the last axis.

use atoll_core::graphs::{Form, Size, TensorSpec};
use atoll_engine::OutputTensor;
use atoll_protocol::DataType;
use std::cmp::Ordering;

/// An input of a built-in stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Dimensions, outermost first.
    pub(crate) shape: &'a [i64],
    /// FP32 elements.
    pub(crate) bytes: &'a [u8],
}

/// A built-in function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    /// `y`: the softmax; each row adds up to 1.
    Softmax,
    /// `y`: the largest element.
    Max,
    /// `y`: the index of the largest element, the first of equal ones, INT64.
    Argmax,
    /// `values` and `indices` of the largest elements, the largest first.
    TopK(u64),
    /// `y`: the mean of all inputs, element by element.
    Average,
}

const NAMES: &str = "softmax, max, argmax, top_k, average, decode_image, resize_image, tokenize";

impl Builtin {
    pub(crate) fn parse(name: &str, k: Option<u64>) -> Result<Builtin, String> {
        match (name, k) {
            ("top_k", Some(k)) if k > 0 => Ok(Builtin::TopK(k)),
            ("top_k", _) => Err("`top_k` needs `k`, a number above 0".into()),
            (_, Some(_)) => Err("`k` belongs to the built-in `top_k`".into()),
            ("softmax", None) => Ok(Builtin::Softmax),
            ("max", None) => Ok(Builtin::Max),
            ("argmax", None) => Ok(Builtin::Argmax),
            ("average", None) => Ok(Builtin::Average),
            _ => Err(format!("there is no built-in `{name}`; there are {NAMES}")),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Builtin::Softmax => "softmax",
            Builtin::Max => "max",
            Builtin::Argmax => "argmax",
            Builtin::TopK(_) => "top_k",
            Builtin::Average => "average",
        }
    }

    /// Its inputs and outputs for these sources, each with the name of the input and the form of
    /// the tensor. A form is `None` if the source does not exist.
    pub(crate) fn signature(
        self,
        sources: &[(String, Option<Form>)],
    ) -> Result<(Vec<TensorSpec>, Vec<TensorSpec>), String> {
        if self != Builtin::Average && (sources.len() != 1 || sources[0].0 != "x") {
            return Err(format!("`{}` has one input, `x`", self.name()));
        }
        let Some((_, first)) = sources.first() else { return Err("`average` needs at least one input".into()) };
        let shape = first.as_ref().map_or(&[][..], |form| &form.shape);
        let tensor = |name: &str, element: &str, shape: &[Size]| TensorSpec {
            name: name.into(),
            form: Form { element: element.into(), shape: shape.to_vec() },
        };
        if first.is_some() && shape.is_empty() && self != Builtin::Average {
            return Err(format!("`{}` needs a tensor of one dimension or more", self.name()));
        }
        let inputs = sources.iter().map(|(name, _)| tensor(name, "FP32", shape)).collect();
        let outer = &shape[..shape.len().saturating_sub(1)];
        let outputs = match self {
            Builtin::Softmax | Builtin::Average => vec![tensor("y", "FP32", shape)],
            Builtin::Max => vec![tensor("y", "FP32", outer)],
            Builtin::Argmax => vec![tensor("y", "INT64", outer)],
            Builtin::TopK(k) => {
                if let Some(Size::Fixed(size)) = shape.last().filter(|size| matches!(size, Size::Fixed(n) if *n < k)) {
                    return Err(format!("`k = {k}` is more than the {size} elements of the last axis"));
                }
                let kept = [outer, &[Size::Fixed(k)]].concat();
                vec![tensor("indices", "INT64", &kept), tensor("values", "FP32", &kept)]
            }
        };
        Ok((inputs, outputs))
    }

    /// The types of its outputs.
    pub(crate) fn output_types(self) -> &'static [DataType] {
        match self {
            Builtin::Softmax | Builtin::Max | Builtin::Average => &[DataType::Fp32],
            Builtin::Argmax => &[DataType::Int64],
            Builtin::TopK(_) => &[DataType::Int64, DataType::Fp32],
        }
    }

    /// Computes the outputs. The inputs have to be FP32. Checks sizes that were unknown when the
    /// graph was deployed.
    pub(crate) fn run(self, inputs: &[View<'_>]) -> Result<Vec<OutputTensor>, String> {
        let View { shape, bytes } = inputs[0];
        if self == Builtin::Average {
            return average(inputs);
        }
        let (&width, outer) = shape.split_last().ok_or("it needs a tensor of one dimension or more")?;
        let width = usize::try_from(width).ok().filter(|width| *width > 0).ok_or("the last axis is empty")?;
        let mut values = floats(bytes);
        let rows = values.chunks_exact(width);
        Ok(match self {
            Builtin::Softmax => {
                values.chunks_exact_mut(width).for_each(softmax);
                vec![of_floats(shape.to_vec(), values)]
            }
            Builtin::Max => vec![of_floats(outer.to_vec(), rows.map(|row| row[largest(row)]))],
            Builtin::Argmax => vec![of_indices(outer.to_vec(), rows.map(largest))],
            Builtin::TopK(k) => {
                let k = usize::try_from(k).ok().filter(|k| *k <= width);
                let k = k.ok_or_else(|| format!("`k` is more than the {width} elements of the last axis"))?;
                let kept = [outer, &[k as i64]].concat();
                let indices: Vec<Vec<usize>> = rows.clone().map(|row| top(row, k)).collect();
                let values = rows.zip(&indices).flat_map(|(row, indices)| indices.iter().map(|index| row[*index]));
                vec![of_indices(kept.clone(), indices.iter().flatten().copied()), of_floats(kept, values)]
            }
            Builtin::Average => unreachable!("handled above"),
        })
    }
}

fn average(inputs: &[View<'_>]) -> Result<Vec<OutputTensor>, String> {
    let shape = inputs[0].shape;
    if let Some(other) = inputs.iter().find(|input| input.shape != shape) {
        return Err(format!("its inputs have different shapes, {shape:?} and {:?}", other.shape));
    }
    let mut sums: Vec<f64> = floats(inputs[0].bytes).into_iter().map(f64::from).collect();
    for input in &inputs[1..] {
        sums.iter_mut().zip(floats(input.bytes)).for_each(|(sum, value)| *sum += f64::from(value));
    }
    let count = inputs.len() as f64;
    Ok(vec![of_floats(shape.to_vec(), sums.into_iter().map(|sum| (sum / count) as f32))])
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = (*value - most).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
}

/// The order of elements, the largest first. NaN counts as the largest, so that it is not hidden.
fn larger_first(a: f32, b: f32) -> Ordering {
    // Adding 0.0 turns -0.0 into 0.0, so that both zeros are equal.
    b.is_nan().cmp(&a.is_nan()).then((b + 0.0).total_cmp(&(a + 0.0)))
}

/// The index of the largest element, the first of equal ones.
fn largest(row: &[f32]) -> usize {
    let better = |best: usize, at: usize| if larger_first(row[at], row[best]).is_lt() { at } else { best };
    (1..row.len()).fold(0, better)
}

/// The indices of the largest elements, the largest first, and the first of equal ones.
fn top(row: &[f32], count: usize) -> Vec<usize> {
    let order = |a: &usize, b: &usize| larger_first(row[*a], row[*b]).then(a.cmp(b));
    let mut indices: Vec<usize> = (0..row.len()).collect();
    if count < indices.len() {
        indices.select_nth_unstable_by(count, order);
        indices.truncate(count);
    }
    indices.sort_unstable_by(order);
    indices
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn of_floats(shape: Vec<i64>, values: impl IntoIterator<Item = f32>) -> OutputTensor {
    let values = values.into_iter();
    let mut bytes = Vec::with_capacity(values.size_hint().0 * 4);
    values.for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    OutputTensor { shape, bytes }
}

fn of_indices(shape: Vec<i64>, indices: impl Iterator<Item = usize>) -> OutputTensor {
    OutputTensor { shape, bytes: indices.flat_map(|index| (index as i64).to_le_bytes()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[i64], values: &[f32]) -> OutputTensor {
        of_floats(shape.to_vec(), values.iter().copied())
    }

    fn view(tensor: &OutputTensor) -> View<'_> {
        View { shape: &tensor.shape, bytes: &tensor.bytes }
    }

    fn run(builtin: Builtin, inputs: &[&OutputTensor]) -> Vec<(Vec<i64>, Vec<f32>)> {
        let views: Vec<View<'_>> = inputs.iter().copied().map(view).collect();
        builtin.run(&views).unwrap().iter().map(|output| (output.shape.clone(), floats(&output.bytes))).collect()
    }

    #[test]
    fn rows_are_reduced_along_the_last_axis() {
        let x = tensor(&[2, 3], &[1.0, 3.0, 3.0, -1.0, -2.0, f32::NEG_INFINITY]);
        assert_eq!(run(Builtin::Max, &[&x]), [(vec![2], vec![3.0, -1.0])]);
        let indices = |builtin: Builtin| -> Vec<i64> {
            builtin.run(&[view(&x)]).unwrap()[0].bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
        };
        assert_eq!(indices(Builtin::Argmax), [1, 0], "the first of equal ones");
        assert_eq!(indices(Builtin::TopK(2)), [1, 2, 0, 1]);
        assert_eq!(run(Builtin::TopK(2), &[&x])[1], (vec![2, 2], vec![3.0, 3.0, -1.0, -2.0]));
        assert!(Builtin::TopK(4).run(&[view(&x)]).is_err());
    }

    #[test]
    fn softmax_adds_up_to_one_even_for_large_values() {
        let x = tensor(&[2, 2], &[1000.0, 1000.0, 0.0, 1.0]);
        let [(shape, y)] = &run(Builtin::Softmax, &[&x])[..] else { panic!("one output") };
        assert_eq!((shape.as_slice(), &y[..2]), (&[2, 2][..], &[0.5, 0.5][..]));
        assert!((y[2] + y[3] - 1.0).abs() < 1e-6 && (y[3] - 0.731_058_6).abs() < 1e-6);
    }

    #[test]
    fn averages_need_equal_shapes() {
        let (a, b) = (tensor(&[2], &[1.0, 2.0]), tensor(&[2], &[3.0, 6.0]));
        assert_eq!(run(Builtin::Average, &[&a, &b]), [(vec![2], vec![2.0, 4.0])]);
        assert!(Builtin::Average.run(&[view(&a), view(&tensor(&[1], &[1.0]))]).is_err());
    }

    #[test]
    fn the_largest_elements_are_those_of_a_sorted_row() {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few values, so that many are equal.
            [f32::NAN, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, 1.5, -2.0, 3.0][(state >> 29) as usize]
        };
        for width in 1..40 {
            let row: Vec<f32> = (0..width).map(|_| next()).collect();
            let mut sorted: Vec<usize> = (0..width).collect();
            sorted.sort_by(|a, b| larger_first(row[*a], row[*b]));
            assert_eq!(largest(&row), sorted[0], "{row:?}");
            (1..=width).for_each(|count| assert_eq!(top(&row, count), sorted[..count], "{count} of {row:?}"));
        }
    }

    #[test]
    fn nan_is_not_hidden() {
        let x = tensor(&[1, 3], &[1.0, f32::NAN, 2.0]);
        assert!(run(Builtin::Max, &[&x])[0].1[0].is_nan());
    }
}
