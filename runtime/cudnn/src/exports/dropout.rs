//! Dropout that drops nothing, as inference uses it.

use super::values::sum_of;
use super::{descriptor, entry_points, operand};
use crate::checks::{give, refused};
use crate::descriptors::{Dropout, Id, get, set};
use crate::handle::{state, with};
use crate::kernels::{Activation, Point};
use crate::point::{Numbers, launch};
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Status};

descriptor! { Dropout: cudnnCreateDropoutDescriptor cudnnDestroyDropoutDescriptor }

/// The bytes of the states, which are never read.
const STATES_BYTES: usize = 256;

/// Sets a descriptor. The states must be large enough unless there are none.
fn define(
    id: Id<Dropout>,
    handle: HandleId,
    probability: f32,
    (states, bytes): (u64, usize),
    seed: u64,
) -> Result<(), Status> {
    state(handle, |_| ())?;
    if !(0.0..=1.0).contains(&probability) || (states != 0 && bytes < STATES_BYTES) {
        return Err(Status::InvalidValue);
    }
    set(id, Dropout { probability, states, seed })
}

entry_points! {
    fn cudnnDropoutGetStatesSize(handle: HandleId, bytes: At<usize>) {
        state(handle, |_| ())?;
        bytes.set(STATES_BYTES)
    }

    /// A bit for each element.
    fn cudnnDropoutGetReserveSpaceSize(x: Id<Tensor>, bytes: At<usize>) {
        bytes.set(get(x)?.count().div_ceil(8) as usize)
    }

    fn cudnnSetDropoutDescriptor(
        id: Id<Dropout>, handle: HandleId, probability: f32, states: u64, bytes: usize, seed: u64
    ) {
        define(id, handle, probability, (states, bytes), seed)
    }

    fn cudnnRestoreDropoutDescriptor(
        id: Id<Dropout>, handle: HandleId, probability: f32, states: u64, bytes: usize, seed: u64
    ) {
        define(id, handle, probability, (states, bytes), seed)
    }

    fn cudnnGetDropoutDescriptor(
        id: Id<Dropout>, handle: HandleId, probability: At<f32>, states: At<u64>, seed: At<u64>
    ) {
        state(handle, |_| ())?;
        let known = get(id)?;
        give(probability, known.probability)?;
        give(states, known.states)?;
        give(seed, known.seed)
    }

    /// The reserve space is not written: the gradient of dropout is not supported.
    fn cudnnDropoutForward(
        handle: HandleId, id: Id<Dropout>, x: Id<Tensor>, x_at: u64, y: Id<Tensor>, y_at: u64, _reserve: u64,
        _bytes: usize
    ) {
        const NAME: &str = "cudnnDropoutForward";
        if get(id)?.probability != 0.0 {
            return Err(refused(NAME, "probabilities other than 0"));
        }
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        if !x.tensor.has_sizes_of(&y.tensor) {
            return Err(Status::InvalidValue);
        }
        let numbers = Numbers::unchanged(sum_of(NAME, &y.tensor)?);
        let op = Point::Copy(Activation::Identity);
        with(handle, |call| launch(call, NAME, op, (&[x], &[]), y, numbers))
    }
}
