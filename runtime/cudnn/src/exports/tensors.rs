//! Descriptors of tensors.

use super::{descriptor, entry_points};
use crate::checks::{DIMENSIONS_MAX, give, read, write};
use crate::descriptors::{Id, get, set};
use crate::tensor::{Format, Tensor};
use atoll_cuda_library::{At, Status};
use std::ffi::c_int;

descriptor! { Tensor: cudnnCreateTensorDescriptor cudnnDestroyTensorDescriptor }

/// An array of a descriptor with four values.
fn four(values: [c_int; 4]) -> [c_int; DIMENSIONS_MAX] {
    let mut all = [1; DIMENSIONS_MAX];
    all[..4].copy_from_slice(&values);
    all
}

/// A number of dimensions: 3 to 8.
pub(super) fn rank(count: c_int) -> Result<usize, Status> {
    match usize::try_from(count) {
        Ok(rank @ 3..=DIMENSIONS_MAX) => Ok(rank),
        _ => Err(Status::NotSupported),
    }
}

entry_points! {
    fn cudnnSetTensor4dDescriptor(
        id: Id<Tensor>, format: c_int, data_type: c_int, n: c_int, c: c_int, h: c_int, w: c_int
    ) {
        let format = Format::of("cudnnSetTensor4dDescriptor", format)?;
        set(id, Tensor::packed(data_type, format, 4, four([n, c, h, w]))?)
    }

    fn cudnnSetTensor4dDescriptorEx(
        id: Id<Tensor>, data_type: c_int, n: c_int, c: c_int, h: c_int, w: c_int, n_stride: c_int, c_stride: c_int,
        h_stride: c_int, w_stride: c_int
    ) {
        let strides = four([n_stride, c_stride, h_stride, w_stride]);
        set(id, Tensor::new(data_type, 4, four([n, c, h, w]), strides)?)
    }

    fn cudnnGetTensor4dDescriptor(
        id: Id<Tensor>, data_type: At<c_int>, n: At<c_int>, c: At<c_int>, h: At<c_int>, w: At<c_int>,
        n_stride: At<c_int>, c_stride: At<c_int>, h_stride: At<c_int>, w_stride: At<c_int>
    ) {
        let tensor = get(id)?;
        if tensor.rank != 4 {
            return Err(Status::InvalidValue);
        }
        give(data_type, tensor.data_type)?;
        for (index, at) in [n, c, h, w].into_iter().enumerate() {
            give(at, tensor.sizes[index])?;
        }
        for (index, at) in [n_stride, c_stride, h_stride, w_stride].into_iter().enumerate() {
            give(at, tensor.strides[index])?;
        }
        Ok(())
    }

    fn cudnnSetTensorNdDescriptor(
        id: Id<Tensor>, data_type: c_int, count: c_int, sizes: At<c_int>, strides: At<c_int>
    ) {
        let rank = rank(count)?;
        set(id, Tensor::new(data_type, rank, read(sizes, rank, 1)?, read(strides, rank, 1)?)?)
    }

    fn cudnnSetTensorNdDescriptorEx(
        id: Id<Tensor>, format: c_int, data_type: c_int, count: c_int, sizes: At<c_int>
    ) {
        let format = Format::of("cudnnSetTensorNdDescriptorEx", format)?;
        let rank = rank(count)?;
        set(id, Tensor::packed(data_type, format, rank, read(sizes, rank, 1)?)?)
    }

    fn cudnnGetTensorNdDescriptor(
        id: Id<Tensor>, wanted: c_int, data_type: At<c_int>, count: At<c_int>, sizes: At<c_int>, strides: At<c_int>
    ) {
        let tensor = get(id)?;
        let wanted = usize::try_from(wanted).map_err(|_| Status::InvalidValue)?.min(tensor.rank);
        give(data_type, tensor.data_type)?;
        give(count, tensor.rank as c_int)?;
        write(sizes, &tensor.sizes[..wanted])?;
        write(strides, &tensor.strides[..wanted])
    }

    fn cudnnGetTensorSizeInBytes(id: Id<Tensor>, bytes: At<usize>) {
        bytes.set(get(id)?.bytes()?)
    }
}
