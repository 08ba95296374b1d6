//! Descriptors of convolutions, and the sizes of their outputs.

use super::{descriptor, entry_points};
use crate::checks::{DIMENSIONS_MAX, element_bytes, give, is_among, read, write};
use crate::convolve::output_sizes;
use crate::descriptors::{Convolution, Filter, Id, change, get};
use crate::tensor::Tensor;
use atoll_cuda_library::{At, Status};
use std::ffi::c_int;

descriptor! { Convolution: cudnnCreateConvolutionDescriptor cudnnDestroyConvolutionDescriptor }

/// Sets padding, stride and dilation along `rank` dimensions of space; the groups stay as they are.
fn shape(
    id: Id<Convolution>,
    rank: usize,
    [padding, stride, dilation]: [[c_int; DIMENSIONS_MAX]; 3],
    (mode, compute_type): (c_int, c_int),
) -> Result<(), Status> {
    is_among(mode, 2)?;
    element_bytes(compute_type)?;
    let is_below = |values: &[c_int; DIMENSIONS_MAX], least| values[..rank].iter().any(|value| *value < least);
    if is_below(&padding, 0) || is_below(&stride, 1) || is_below(&dilation, 1) {
        return Err(Status::InvalidValue);
    }
    change(id, |known| *known = Convolution { rank, padding, stride, dilation, mode, compute_type, ..*known })
}

/// An array with values for two dimensions.
fn two(first: c_int, second: c_int) -> [c_int; DIMENSIONS_MAX] {
    [first, second, 0, 0, 0, 0, 0, 0]
}

entry_points! {
    fn cudnnSetConvolution2dDescriptor(
        id: Id<Convolution>, pad_h: c_int, pad_w: c_int, stride_h: c_int, stride_w: c_int, dilation_h: c_int,
        dilation_w: c_int, mode: c_int, compute_type: c_int
    ) {
        let values = [two(pad_h, pad_w), two(stride_h, stride_w), two(dilation_h, dilation_w)];
        shape(id, 2, values, (mode, compute_type))
    }

    fn cudnnGetConvolution2dDescriptor(
        id: Id<Convolution>, pad_h: At<c_int>, pad_w: At<c_int>, stride_h: At<c_int>, stride_w: At<c_int>,
        dilation_h: At<c_int>, dilation_w: At<c_int>, mode: At<c_int>, compute_type: At<c_int>
    ) {
        let convolution = get(id)?;
        if convolution.rank != 2 {
            return Err(Status::InvalidValue);
        }
        let Convolution { padding, stride, dilation, .. } = convolution;
        for (at, value) in [
            (pad_h, padding[0]),
            (pad_w, padding[1]),
            (stride_h, stride[0]),
            (stride_w, stride[1]),
            (dilation_h, dilation[0]),
            (dilation_w, dilation[1]),
            (mode, convolution.mode),
            (compute_type, convolution.compute_type),
        ] {
            give(at, value)?;
        }
        Ok(())
    }

    fn cudnnSetConvolutionNdDescriptor(
        id: Id<Convolution>, count: c_int, padding: At<c_int>, stride: At<c_int>, dilation: At<c_int>, mode: c_int,
        compute_type: c_int
    ) {
        let rank = match usize::try_from(count) {
            Ok(rank @ 1..=6) => rank,
            _ => return Err(Status::InvalidValue),
        };
        let values = [read(padding, rank, 0)?, read(stride, rank, 1)?, read(dilation, rank, 1)?];
        shape(id, rank, values, (mode, compute_type))
    }

    fn cudnnGetConvolutionNdDescriptor(
        id: Id<Convolution>, wanted: c_int, count: At<c_int>, padding: At<c_int>, stride: At<c_int>,
        dilation: At<c_int>, mode: At<c_int>, compute_type: At<c_int>
    ) {
        let convolution = get(id)?;
        let wanted = usize::try_from(wanted).map_err(|_| Status::InvalidValue)?.min(convolution.rank);
        give(count, convolution.rank as c_int)?;
        write(padding, &convolution.padding[..wanted])?;
        write(stride, &convolution.stride[..wanted])?;
        write(dilation, &convolution.dilation[..wanted])?;
        give(mode, convolution.mode)?;
        give(compute_type, convolution.compute_type)
    }

    fn cudnnSetConvolutionGroupCount(id: Id<Convolution>, groups: c_int) {
        if groups < 1 {
            return Err(Status::InvalidValue);
        }
        change(id, |known| known.groups = groups)
    }

    fn cudnnGetConvolutionGroupCount(id: Id<Convolution>, groups: At<c_int>) {
        groups.set(get(id)?.groups)
    }

    /// The type has no effect: sums have the precision of f32 or f64.
    fn cudnnSetConvolutionMathType(id: Id<Convolution>, math_type: c_int) {
        is_among(math_type, 4)?;
        change(id, |known| known.math_type = math_type)
    }

    fn cudnnGetConvolutionMathType(id: Id<Convolution>, math_type: At<c_int>) {
        math_type.set(get(id)?.math_type)
    }

    /// The type has no effect: it is for vectors of channels.
    fn cudnnSetConvolutionReorderType(id: Id<Convolution>, reorder_type: c_int) {
        is_among(reorder_type, 2)?;
        change(id, |known| known.reorder_type = reorder_type)
    }

    fn cudnnGetConvolutionReorderType(id: Id<Convolution>, reorder_type: At<c_int>) {
        reorder_type.set(get(id)?.reorder_type)
    }

    fn cudnnGetConvolution2dForwardOutputDim(
        id: Id<Convolution>, x: Id<Tensor>, w: Id<Filter>, n: At<c_int>, c: At<c_int>, h: At<c_int>, width: At<c_int>
    ) {
        let tensor = get(x)?;
        let sizes = output_sizes(&get(id)?, &tensor, &get(w)?.tensor)?;
        if tensor.rank != 4 {
            return Err(Status::InvalidValue);
        }
        [n, c, h, width].into_iter().zip(sizes).try_for_each(|(at, size)| at.set(size))
    }

    fn cudnnGetConvolutionNdForwardOutputDim(
        id: Id<Convolution>, x: Id<Tensor>, w: Id<Filter>, count: c_int, sizes: At<c_int>
    ) {
        let tensor = get(x)?;
        let found = output_sizes(&get(id)?, &tensor, &get(w)?.tensor)?;
        if usize::try_from(count) != Ok(tensor.rank) {
            return Err(Status::InvalidValue);
        }
        write(sizes, &found[..tensor.rank])
    }
}
