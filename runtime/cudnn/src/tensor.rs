//! Tensors: sizes and strides, and how kernels go through them.

use crate::checks::{DIMENSIONS_MAX, element_bytes, number_of, refused};
use atoll_cuda_library::{Number, Status};
use std::ffi::c_int;

/// Elements of a tensor at most, as in cuDNN.
const ELEMENTS_MAX: u64 = i32::MAX as u64;

/// `cudnnTensorFormat_t`: the order of dimensions in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Nchw = 0,
    /// Channels are adjacent.
    Nhwc = 1,
}

impl Format {
    /// The format of the header's number; that of vectors of channels is not supported.
    pub(crate) fn of(name: &'static str, number: c_int) -> Result<Format, Status> {
        match number {
            0 => Ok(Format::Nchw),
            1 => Ok(Format::Nhwc),
            2 => Err(refused(name, "vectors of channels")),
            _ => Err(Status::InvalidValue),
        }
    }
}

/// A descriptor of a tensor. Without dimensions it is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// `cudnnDataType_t`.
    pub(crate) data_type: c_int,
    pub(crate) rank: usize,
    pub(crate) sizes: [c_int; DIMENSIONS_MAX],
    /// In elements.
    pub(crate) strides: [c_int; DIMENSIONS_MAX],
}

impl Tensor {
    /// A tensor with given strides. A size or stride that is not positive is an error.
    pub(crate) fn new(
        data_type: c_int,
        rank: usize,
        sizes: [c_int; DIMENSIONS_MAX],
        strides: [c_int; DIMENSIONS_MAX],
    ) -> Result<Tensor, Status> {
        element_bytes(data_type)?;
        let are_valid = |values: &[c_int]| values.iter().all(|value| *value > 0);
        if !are_valid(&sizes[..rank]) || strides[..rank].iter().any(|stride| *stride < 0) {
            return Err(Status::InvalidValue);
        }
        let made = Tensor { data_type, rank, sizes, strides };
        if made.span().max(made.count()) > ELEMENTS_MAX {
            return Err(Status::NotSupported);
        }
        Ok(made)
    }

    /// A tensor without gaps.
    pub(crate) fn packed(
        data_type: c_int,
        format: Format,
        rank: usize,
        sizes: [c_int; DIMENSIONS_MAX],
    ) -> Result<Tensor, Status> {
        let mut strides = [0; DIMENSIONS_MAX];
        let mut next: c_int = 1;
        // From the dimension whose elements are adjacent to the batch.
        let channels_first = (format == Format::Nhwc && rank > 1).then_some(1);
        let others = (0..rank).rev().filter(|dimension| Some(*dimension) != channels_first);
        for dimension in channels_first.into_iter().chain(others) {
            strides[dimension] = next;
            next = next.checked_mul(sizes[dimension]).ok_or(Status::NotSupported)?;
        }
        Tensor::new(data_type, rank, sizes, strides)
    }

    /// The number of elements.
    pub(crate) fn count(&self) -> u64 {
        let sizes = self.sizes[..self.rank].iter().map(|size| u64::from(size.unsigned_abs()));
        sizes.fold(1, u64::saturating_mul)
    }

    /// Elements from the first to the last one, both included.
    fn span(&self) -> u64 {
        let reach =
            |(size, stride): (&c_int, &c_int)| u64::from((size - 1).unsigned_abs()) * u64::from(stride.unsigned_abs());
        self.sizes[..self.rank].iter().zip(&self.strides[..self.rank]).map(reach).fold(1, u64::saturating_add)
    }

    /// The bytes from the first to the end of the last element.
    pub(crate) fn bytes(&self) -> Result<usize, Status> {
        if self.rank == 0 { Ok(0) } else { Ok(self.span() as usize * element_bytes(self.data_type)?) }
    }

    /// The type of the elements in kernels. A tensor that is not set is an error.
    pub(crate) fn number(&self, name: &'static str) -> Result<Number, Status> {
        if self.rank == 0 { Err(Status::InvalidValue) } else { number_of(name, self.data_type) }
    }

    /// Whether both have the same sizes.
    pub(crate) fn has_sizes_of(&self, other: &Tensor) -> bool {
        self.rank == other.rank && self.sizes[..self.rank] == other.sizes[..self.rank]
    }

    /// The stride of a dimension in bytes.
    pub(crate) fn step(&self, dimension: usize, number: Number) -> i64 {
        i64::from(self.strides[dimension]) * number.bytes()
    }

    /// The strides in bytes for a tensor of the given sizes: 0 where this one has one element instead.
    /// Other sizes are an error.
    pub(crate) fn steps_for(&self, whole: &Tensor, number: Number) -> Result<Vec<i64>, Status> {
        if self.rank != whole.rank {
            return Err(Status::InvalidValue);
        }
        (0..self.rank)
            .map(|dimension| match self.sizes[dimension] {
                size if size == whole.sizes[dimension] => Ok(self.step(dimension, number)),
                1 => Ok(0),
                _ => Err(Status::InvalidValue),
            })
            .collect()
    }
}

/// Returns an error if an input begins where the output does, and an element of the output is not in the
/// place of the same element of the input: a thread would overwrite what another one has yet to read.
/// Addresses, and strides in bytes along dimensions of these sizes.
pub(crate) fn check_in_place(
    sizes: &[c_int],
    (input, input_steps): (u64, &[i64]),
    (output, output_steps): (u64, &[i64]),
) -> Result<(), Status> {
    let differs = |((size, from), to): ((&c_int, &i64), &i64)| *size != 1 && from != to;
    if input == output && sizes.iter().zip(input_steps).zip(output_steps).any(differs) {
        return Err(Status::InvalidValue);
    }
    Ok(())
}

/// Dimensions through which a kernel goes, and the strides of each tensor in them, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) sizes: Vec<u32>,
    /// The strides of each tensor.
    pub(crate) steps: Vec<Vec<i64>>,
}

impl Space {
    /// The fewest dimensions, at least one, that have the same elements: those of size 1 are left out,
    /// and those that follow each other in all tensors are one. The dimensions are in the order of the
    /// strides of the last tensor.
    pub(crate) fn of(sizes: &[c_int], steps: &[Vec<i64>]) -> Space {
        let mut order: Vec<usize> = (0..sizes.len()).filter(|dimension| sizes[*dimension] != 1).collect();
        if let Some(last) = steps.last() {
            order.sort_by_key(|dimension| std::cmp::Reverse(last[*dimension]));
        }
        let mut space = Space { sizes: Vec::new(), steps: vec![Vec::new(); steps.len()] };
        for dimension in order {
            let size = sizes[dimension].unsigned_abs();
            let follows = space
                .steps
                .iter()
                .zip(steps)
                .all(|(known, all)| known.last().is_some_and(|outer| *outer == all[dimension] * i64::from(size)));
            match space.sizes.last_mut() {
                Some(outer) if follows => {
                    *outer *= size;
                    for (known, all) in space.steps.iter_mut().zip(steps) {
                        known.pop();
                        known.push(all[dimension]);
                    }
                }
                _ => {
                    space.sizes.push(size);
                    for (known, all) in space.steps.iter_mut().zip(steps) {
                        known.push(all[dimension]);
                    }
                }
            }
        }
        if space.sizes.is_empty() {
            space.sizes.push(1);
            space.steps.iter_mut().for_each(|steps| steps.push(0));
        }
        space
    }

    /// The number of dimensions.
    pub(crate) fn rank(&self) -> u32 {
        self.sizes.len() as u32
    }

    /// The number of elements.
    pub(crate) fn count(&self) -> u32 {
        self.sizes.iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_adjacent_in_their_format() {
        let sizes = [2, 3, 4, 5, 1, 1, 1, 1];
        let strides = |format| Tensor::packed(0, format, 4, sizes).expect("a tensor").strides;
        assert_eq!(strides(Format::Nchw)[..4], [60, 20, 5, 1]);
        assert_eq!(strides(Format::Nhwc)[..4], [60, 1, 15, 3]);
    }

    #[test]
    fn dimensions_that_follow_each_other_are_one() {
        let packed = vec![240, 80, 20, 4];
        assert_eq!(Space::of(&[2, 3, 4, 5], std::slice::from_ref(&packed)).sizes, [120]);
        // One value for each channel.
        let space = Space::of(&[2, 3, 4, 5], &[vec![0, 4, 0, 0], packed]);
        assert_eq!((space.sizes, space.steps[0].clone()), (vec![2, 3, 20], vec![0, 4, 0]));
        // Channels that are adjacent in both.
        let channels = vec![240, 4, 60, 12];
        assert_eq!(Space::of(&[2, 3, 4, 5], &[channels.clone(), channels]).sizes, [120]);
        assert_eq!(Space::of(&[1, 1], &[vec![7, 7]]).sizes, [1]);
    }

    #[test]
    fn an_output_in_place_of_an_input_has_its_strides() {
        let (sizes, packed, channels) = ([2, 3, 1, 4], [48, 16, 16, 4], [48, 4, 48, 12]);
        assert_eq!(check_in_place(&sizes, (64, &packed), (64, &[48, 16, 7, 4])), Ok(()));
        assert_eq!(check_in_place(&sizes, (64, &packed), (64, &channels)), Err(Status::InvalidValue));
        assert_eq!(check_in_place(&sizes, (64, &packed), (128, &channels)), Ok(()));
        // One element that is used for a whole dimension.
        assert_eq!(check_in_place(&sizes, (64, &[0, 16, 16, 4]), (64, &packed)), Err(Status::InvalidValue));
    }

    #[test]
    fn tensors_larger_than_those_of_cudnn_are_refused() {
        let sizes = [65_536, 65_536, 1, 1, 1, 1, 1, 1];
        assert_eq!(Tensor::packed(0, Format::Nchw, 4, sizes), Err(Status::NotSupported));
        assert_eq!(Tensor::packed(0, Format::Nchw, 4, [0; 8]), Err(Status::InvalidValue));
    }
}
