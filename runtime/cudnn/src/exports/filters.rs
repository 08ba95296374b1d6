//! Descriptors of filters.

use super::tensors::rank;
use super::{descriptor, entry_points};
use crate::checks::{give, read, write};
use crate::descriptors::{Filter, Id, get, set};
use crate::tensor::{Format, Tensor};
use atoll_cuda_library::{At, Status};
use std::ffi::c_int;

descriptor! { Filter: cudnnCreateFilterDescriptor cudnnDestroyFilterDescriptor }

entry_points! {
    fn cudnnSetFilter4dDescriptor(
        id: Id<Filter>, data_type: c_int, format: c_int, k: c_int, c: c_int, h: c_int, w: c_int
    ) {
        let format = Format::of("cudnnSetFilter4dDescriptor", format)?;
        let tensor = Tensor::packed(data_type, format, 4, [k, c, h, w, 1, 1, 1, 1])?;
        set(id, Filter { tensor, format })
    }

    fn cudnnGetFilter4dDescriptor(
        id: Id<Filter>, data_type: At<c_int>, format: At<c_int>, k: At<c_int>, c: At<c_int>, h: At<c_int>,
        w: At<c_int>
    ) {
        let filter = get(id)?;
        if filter.tensor.rank != 4 {
            return Err(Status::InvalidValue);
        }
        give(data_type, filter.tensor.data_type)?;
        give(format, filter.format as c_int)?;
        for (index, at) in [k, c, h, w].into_iter().enumerate() {
            give(at, filter.tensor.sizes[index])?;
        }
        Ok(())
    }

    fn cudnnSetFilterNdDescriptor(
        id: Id<Filter>, data_type: c_int, format: c_int, count: c_int, sizes: At<c_int>
    ) {
        let format = Format::of("cudnnSetFilterNdDescriptor", format)?;
        let rank = rank(count)?;
        let tensor = Tensor::packed(data_type, format, rank, read(sizes, rank, 1)?)?;
        set(id, Filter { tensor, format })
    }

    fn cudnnGetFilterNdDescriptor(
        id: Id<Filter>, wanted: c_int, data_type: At<c_int>, format: At<c_int>, count: At<c_int>, sizes: At<c_int>
    ) {
        let filter = get(id)?;
        let wanted = usize::try_from(wanted).map_err(|_| Status::InvalidValue)?.min(filter.tensor.rank);
        give(data_type, filter.tensor.data_type)?;
        give(format, filter.format as c_int)?;
        give(count, filter.tensor.rank as c_int)?;
        write(sizes, &filter.tensor.sizes[..wanted])
    }

    fn cudnnGetFilterSizeInBytes(id: Id<Filter>, bytes: At<usize>) {
        bytes.set(get(id)?.tensor.bytes()?)
    }
}
