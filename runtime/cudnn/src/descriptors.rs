//! Descriptors. The program has a number for each, never an address, so a wrong one is an error.

use crate::checks::DIMENSIONS_MAX;
use crate::tensor::{Format, Tensor};
use atoll_cuda_library::{At, Status};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A descriptor as the program has it; 0 is none.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Id<K>(usize, PhantomData<K>);

impl<K> Clone for Id<K> {
    fn clone(&self) -> Id<K> {
        *self
    }
}

impl<K> Copy for Id<K> {}

impl<K> Id<K> {
    /// Whether the program gave no descriptor.
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The first number, and the distance of numbers. Handles have others.
const FIRST_ID: usize = 0x4000_0000;
const ID_STEP: usize = 16;

/// Filters: sizes are those of output channels, input channels of a group, and space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) tensor: Tensor,
    pub(crate) format: Format,
}

/// Convolutions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution {
    /// Dimensions of space; 0 if it is not set.
    pub(crate) rank: usize,
    pub(crate) padding: [c_int; DIMENSIONS_MAX],
    pub(crate) stride: [c_int; DIMENSIONS_MAX],
    pub(crate) dilation: [c_int; DIMENSIONS_MAX],
    /// `cudnnConvolutionMode_t`: 0 turns the filter around.
    pub(crate) mode: c_int,
    pub(crate) compute_type: c_int,
    pub(crate) groups: c_int,
    /// Settings that have no effect but are kept.
    pub(crate) math_type: c_int,
    pub(crate) reorder_type: c_int,
}

impl Default for Convolution {
    fn default() -> Convolution {
        Convolution {
            rank: 0,
            padding: [0; DIMENSIONS_MAX],
            stride: [1; DIMENSIONS_MAX],
            dilation: [1; DIMENSIONS_MAX],
            mode: 0,
            compute_type: 0,
            groups: 1,
            math_type: 0,
            reorder_type: 0,
        }
    }
}

/// Pooling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pooling {
    /// `cudnnPoolingMode_t`.
    pub(crate) mode: c_int,
    /// `cudnnNanPropagation_t`.
    pub(crate) nan: c_int,
    /// Dimensions of space; 0 if it is not set.
    pub(crate) rank: usize,
    pub(crate) window: [c_int; DIMENSIONS_MAX],
    pub(crate) padding: [c_int; DIMENSIONS_MAX],
    pub(crate) stride: [c_int; DIMENSIONS_MAX],
}

/// Activations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Activation {
    /// `cudnnActivationMode_t`.
    pub(crate) mode: c_int,
    pub(crate) nan: c_int,
    pub(crate) coefficient: f64,
    pub(crate) swish_beta: f64,
}

/// Operations on two tensors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operation {
    /// `cudnnOpTensorOp_t`.
    pub(crate) operation: c_int,
    pub(crate) compute_type: c_int,
    pub(crate) nan: c_int,
}

/// Reductions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reduction {
    /// `cudnnReduceTensorOp_t`.
    pub(crate) operation: c_int,
    pub(crate) compute_type: c_int,
    pub(crate) nan: c_int,
    /// `cudnnReduceTensorIndices_t`, and the type of indices.
    pub(crate) indices: c_int,
    pub(crate) indices_type: c_int,
}

/// Local response normalization.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    /// Channels of a window.
    pub(crate) window: u32,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) k: f64,
}

impl Default for Response {
    fn default() -> Response {
        Response { window: 5, alpha: 1e-4, beta: 0.75, k: 2.0 }
    }
}

/// Dropout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dropout {
    /// The probability that a number becomes 0.
    pub(crate) probability: f32,
    /// The address of the states.
    pub(crate) states: u64,
    pub(crate) seed: u64,
}

/// A kind of descriptor.
pub(crate) trait Kind: Copy + Default {
    fn wrap(self) -> Descriptor;
    fn unwrap(descriptor: &Descriptor) -> Option<Self>;
}

/// Declares the kinds.
macro_rules! kinds {
    ($($kind:ident)+) => {
        /// A descriptor of any kind.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Descriptor {
            $($kind($kind)),+
        }

        $(impl Kind for $kind {
            fn wrap(self) -> Descriptor {
                Descriptor::$kind(self)
            }

            fn unwrap(descriptor: &Descriptor) -> Option<$kind> {
                if let Descriptor::$kind(found) = descriptor { Some(*found) } else { None }
            }
        })+
    };
}
kinds! { Tensor Filter Convolution Pooling Activation Operation Reduction Response Dropout }

/// The descriptors, and the next one's number.
struct Table {
    next: usize,
    known: BTreeMap<usize, Descriptor>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { next: FIRST_ID, known: BTreeMap::new() });

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a descriptor that is not set.
pub(crate) fn create<K: Kind>(created: At<Id<K>>) -> Result<(), Status> {
    created.is_wanted()?;
    let mut table = table();
    let id = table.next;
    table.next += ID_STEP;
    table.known.insert(id, K::default().wrap());
    drop(table);
    created.set(Id(id, PhantomData))
}

/// Destroys a descriptor; none is accepted.
pub(crate) fn destroy<K: Kind>(id: Id<K>) -> Result<(), Status> {
    if id.is_none() {
        return Ok(());
    }
    get(id)?;
    table().known.remove(&id.0);
    Ok(())
}

/// A descriptor's value. A number that is not one of a descriptor of this kind is an error.
pub(crate) fn get<K: Kind>(id: Id<K>) -> Result<K, Status> {
    table().known.get(&id.0).and_then(K::unwrap).ok_or(Status::InvalidValue)
}

/// Changes a descriptor.
pub(crate) fn change<K: Kind>(id: Id<K>, change: impl FnOnce(&mut K)) -> Result<(), Status> {
    let mut table = table();
    let descriptor = table.known.get_mut(&id.0).ok_or(Status::InvalidValue)?;
    let mut value = K::unwrap(descriptor).ok_or(Status::InvalidValue)?;
    change(&mut value);
    *descriptor = value.wrap();
    Ok(())
}

/// Sets a descriptor.
pub(crate) fn set<K: Kind>(id: Id<K>, value: K) -> Result<(), Status> {
    change(id, |known| *known = value)
}
