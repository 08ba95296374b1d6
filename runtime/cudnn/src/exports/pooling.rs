//! Pooling.

use super::values::sum_of;
use super::{descriptor, entry_points, operand};
use crate::checks::{DIMENSIONS_MAX, give, is_among, read, write};
use crate::descriptors::{Id, Pooling, get, set};
use crate::handle::with;
use crate::point::Numbers;
use crate::tensor::Tensor;
use crate::window::{pool, pooled};
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::c_int;

descriptor! { Pooling: cudnnCreatePoolingDescriptor cudnnDestroyPoolingDescriptor }

/// A descriptor with valid values.
fn checked(pooling: Pooling) -> Result<Pooling, Status> {
    is_among(pooling.mode, 4)?;
    is_among(pooling.nan, 2)?;
    let is_below = |values: &[c_int; DIMENSIONS_MAX], least| values[..pooling.rank].iter().any(|value| *value < least);
    if is_below(&pooling.window, 1) || is_below(&pooling.padding, 0) || is_below(&pooling.stride, 1) {
        return Err(Status::InvalidValue);
    }
    Ok(pooling)
}

entry_points! {
    fn cudnnSetPooling2dDescriptor(
        id: Id<Pooling>, mode: c_int, nan: c_int, window_h: c_int, window_w: c_int, pad_h: c_int, pad_w: c_int,
        stride_h: c_int, stride_w: c_int
    ) {
        let two = |first, second| [first, second, 0, 0, 0, 0, 0, 0];
        let (window, padding, stride) = (two(window_h, window_w), two(pad_h, pad_w), two(stride_h, stride_w));
        set(id, checked(Pooling { mode, nan, rank: 2, window, padding, stride })?)
    }

    fn cudnnGetPooling2dDescriptor(
        id: Id<Pooling>, mode: At<c_int>, nan: At<c_int>, window_h: At<c_int>, window_w: At<c_int>,
        pad_h: At<c_int>, pad_w: At<c_int>, stride_h: At<c_int>, stride_w: At<c_int>
    ) {
        let known = get(id)?;
        if known.rank != 2 {
            return Err(Status::InvalidValue);
        }
        let Pooling { window, padding, stride, .. } = known;
        give(mode, known.mode)?;
        give(nan, known.nan)?;
        let values = [window[0], window[1], padding[0], padding[1], stride[0], stride[1]];
        let at = [window_h, window_w, pad_h, pad_w, stride_h, stride_w];
        at.into_iter().zip(values).try_for_each(|(at, value)| give(at, value))
    }

    fn cudnnSetPoolingNdDescriptor(
        id: Id<Pooling>, mode: c_int, nan: c_int, count: c_int, window: At<c_int>, padding: At<c_int>,
        stride: At<c_int>
    ) {
        let rank = match usize::try_from(count) {
            Ok(rank @ 1..=6) => rank,
            _ => return Err(Status::InvalidValue),
        };
        let (window, padding, stride) = (read(window, rank, 1)?, read(padding, rank, 0)?, read(stride, rank, 1)?);
        set(id, checked(Pooling { mode, nan, rank, window, padding, stride })?)
    }

    fn cudnnGetPoolingNdDescriptor(
        id: Id<Pooling>, wanted: c_int, mode: At<c_int>, nan: At<c_int>, count: At<c_int>, window: At<c_int>,
        padding: At<c_int>, stride: At<c_int>
    ) {
        let known = get(id)?;
        let wanted = usize::try_from(wanted).map_err(|_| Status::InvalidValue)?.min(known.rank);
        give(mode, known.mode)?;
        give(nan, known.nan)?;
        give(count, known.rank as c_int)?;
        write(window, &known.window[..wanted])?;
        write(padding, &known.padding[..wanted])?;
        write(stride, &known.stride[..wanted])
    }

    fn cudnnGetPooling2dForwardOutputDim(
        id: Id<Pooling>, x: Id<Tensor>, n: At<c_int>, c: At<c_int>, h: At<c_int>, w: At<c_int>
    ) {
        let x = get(x)?;
        let sizes = pooled(&get(id)?, &x)?;
        if x.rank != 4 {
            return Err(Status::InvalidValue);
        }
        [n, c, h, w].into_iter().zip(sizes).try_for_each(|(at, size)| at.set(size))
    }

    fn cudnnGetPoolingNdForwardOutputDim(id: Id<Pooling>, x: Id<Tensor>, count: c_int, sizes: At<c_int>) {
        let x = get(x)?;
        let found = pooled(&get(id)?, &x)?;
        if usize::try_from(count) != Ok(x.rank) {
            return Err(Status::InvalidValue);
        }
        write(sizes, &found[..x.rank])
    }

    fn cudnnPoolingForward(
        handle: HandleId, id: Id<Pooling>, alpha: At<u8>, x: Id<Tensor>, x_at: u64, beta: At<u8>, y: Id<Tensor>,
        y_at: u64
    ) {
        const NAME: &str = "cudnnPoolingForward";
        let pooling = get(id)?;
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        let sum = sum_of(NAME, &x.tensor)?;
        let numbers = Numbers::new(sum, alpha, beta)?;
        with(handle, |call| pool(call, NAME, &pooling, (x, y), numbers))
    }
}
