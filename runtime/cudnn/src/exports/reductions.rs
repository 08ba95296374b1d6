//! Reductions.

use super::values::sum_of;
use super::{descriptor, entry_points, operand};
use crate::checks::{computes_in, element_bytes, give, is_among, refused};
use crate::descriptors::{Id, Reduction, get, set};
use crate::handle::{state, with};
use crate::kernels::{Combine, Rows};
use crate::point::Numbers;
use crate::rows::launch;
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Number};
use std::ffi::c_int;

descriptor! { Reduction: cudnnCreateReduceTensorDescriptor cudnnDestroyReduceTensorDescriptor }

/// `cudnnReduceTensorOp_t`: those that can have indices.
const MIN: c_int = 2;
const MAX: c_int = 3;
const MAX_MAGNITUDE: c_int = 4;

entry_points! {
    fn cudnnSetReduceTensorDescriptor(
        id: Id<Reduction>, operation: c_int, compute_type: c_int, nan: c_int, indices: c_int, indices_type: c_int
    ) {
        is_among(operation, 9)?;
        element_bytes(compute_type)?;
        is_among(nan, 2)?;
        is_among(indices, 2)?;
        is_among(indices_type, 4)?;
        set(id, Reduction { operation, compute_type, nan, indices, indices_type })
    }

    fn cudnnGetReduceTensorDescriptor(
        id: Id<Reduction>, operation: At<c_int>, compute_type: At<c_int>, nan: At<c_int>, indices: At<c_int>,
        indices_type: At<c_int>
    ) {
        let known = get(id)?;
        give(operation, known.operation)?;
        give(compute_type, known.compute_type)?;
        give(nan, known.nan)?;
        give(indices, known.indices)?;
        give(indices_type, known.indices_type)
    }

    /// Indices are not supported, so they need no memory.
    fn cudnnGetReductionIndicesSize(
        handle: HandleId, id: Id<Reduction>, a: Id<Tensor>, c: Id<Tensor>, bytes: At<usize>
    ) {
        state(handle, |_| ())?;
        let _ = (get(id)?, get(a)?, get(c)?);
        bytes.set(0)
    }

    fn cudnnGetReductionWorkspaceSize(
        handle: HandleId, id: Id<Reduction>, a: Id<Tensor>, c: Id<Tensor>, bytes: At<usize>
    ) {
        state(handle, |_| ())?;
        let _ = (get(id)?, get(a)?, get(c)?);
        bytes.set(0)
    }

    /// C = alpha * reduction(A) + beta * C, over the dimensions in which C has one element.
    fn cudnnReduceTensor(
        handle: HandleId, id: Id<Reduction>, _indices: u64, _indices_bytes: usize, _workspace: u64, _bytes: usize,
        alpha: At<u8>, a: Id<Tensor>, a_at: u64, beta: At<u8>, c: Id<Tensor>, c_at: u64
    ) {
        const NAME: &str = "cudnnReduceTensor";
        let reduction = get(id)?;
        let keeps_nan = reduction.nan != 0;
        if reduction.indices != 0 && matches!(reduction.operation, MIN | MAX | MAX_MAGNITUDE) {
            return Err(refused(NAME, "indices"));
        }
        let op = match reduction.operation {
            0 => Rows::Reduce(Combine::Add),
            1 => Rows::Reduce(Combine::Mul),
            MIN => Rows::Reduce(Combine::Min { keeps_nan }),
            MAX => Rows::Reduce(Combine::Max { keeps_nan }),
            MAX_MAGNITUDE => Rows::MaxMagnitude { keeps_nan },
            5 => Rows::Average,
            6 => Rows::Norm1,
            7 => Rows::Norm2,
            _ => Rows::ProductWithoutZeros,
        };
        let (a, c) = (operand(a, a_at)?, operand(c, c_at)?);
        let sum = sum_of(NAME, &a.tensor)?;
        // As in cuDNN, f64 is reduced in f64 whatever the descriptor says.
        if sum != Number::F64 {
            computes_in(NAME, a.tensor.number(NAME)?, reduction.compute_type)?;
        }
        let numbers = Numbers::new(sum, alpha, beta)?;
        let is_inner = |dimension: usize| c.tensor.sizes[dimension] == 1 && a.tensor.sizes[dimension] != 1;
        with(handle, |call| launch(call, NAME, op, (a, c), is_inner, numbers))
    }
}
