//! Partitions of a device's compute units, which the driver calls green contexts. They came with
//! CUDA 12.4, their streams with CUDA 12.5.
//!
//! A partition belongs to the primary context, which it shares with all memory, modules and events;
//! only its streams are its own. Launches in its streams run on its compute units only. The driver
//! rounds up the number of compute units to the granularity of the hardware.

use crate::context::Context;
use crate::error::{CudaError, status};
use crate::functions::Functions;
use atoll_cuda_api::constants::{CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM};
use atoll_cuda_api::types::{CUdevResource, CUdevResourceDesc, CUgreenCtx, CUresult, DriverHandle};
use std::ops::Range;
use std::sync::Arc;

/// A resource with extra space, because CUDA 13's has 152 bytes. Only the driver writes it.
#[repr(C, align(16))]
struct Resource {
    resource: CUdevResource,
    _more: [u8; 112],
}

impl Resource {
    const EMPTY: Resource = {
        let resource = CUdevResource { kind: 0, internal: [0; 92], sm_count: 0, rest: [0; 44] };
        Resource { resource, _more: [0; 112] }
    };

    fn compute_units(&self) -> u32 {
        self.resource.sm_count
    }

    /// The address for the driver, including the extra space.
    fn place(&mut self) -> *mut CUdevResource {
        (&raw mut *self).cast()
    }
}

/// Why a partition cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// The driver is too old.
    #[error(
        "this NVIDIA driver cannot divide a GPU: that needs CUDA 12.5, and it supports {}.{}",
        .0 / 1000,
        .0 % 1000 / 10
    )]
    NotSupported(u32),
    /// The GPU has fewer compute units.
    #[error("the GPU has {all} compute units, not {wanted}")]
    TooMany {
        /// The requested number.
        wanted: u32,
        /// The number of compute units.
        all: u32,
    },
    /// The range does not fit the granularity.
    #[error(
        "this GPU is divided into groups of {step} compute units: a partition must begin and end at multiples of \
         {step} up to {end}, but {}..{} does not",
        .wanted.start,
        .wanted.end
    )]
    Misaligned {
        /// The requested range.
        wanted: Range<u32>,
        /// Size of a group.
        step: u32,
        /// The end of the last group.
        end: u32,
    },
    /// The other partition takes all compute units.
    #[error("a part of {taken} compute units leaves none of the GPU's over")]
    NothingLeft {
        /// The number that the other partition takes.
        taken: u32,
    },
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// A part of a device's compute units.
#[derive(Debug)]
pub struct Partition {
    pub(crate) context: Arc<Context>,
    pub(crate) handle: CUgreenCtx,
    compute_units: u32,
}

impl Partition {
    /// A partition of at least this many compute units.
    pub fn new(context: &Arc<Context>, compute_units: u32) -> Result<Arc<Partition>, PartitionError> {
        let (part, _) = split(context, compute_units)?;
        Self::of(context, &mut [part.resource])
    }

    /// The compute units that [`Partition::new`] with the same number leaves over.
    pub fn rest_of(context: &Arc<Context>, compute_units: u32) -> Result<Arc<Partition>, PartitionError> {
        let (_, rest) = split(context, compute_units)?;
        match rest.compute_units() {
            0 => Err(PartitionError::NothingLeft { taken: compute_units }),
            _ => Self::of(context, &mut [rest.resource]),
        }
    }

    /// A range of the device's compute units, in the order in which the driver divides them. It
    /// must begin and end at multiples of [`Partition::step`].
    pub fn range(context: &Arc<Context>, wanted: Range<u32>) -> Result<Arc<Partition>, PartitionError> {
        let Some(step) = Partition::step(context)? else {
            return Err(PartitionError::NotSupported(context.driver().version()?));
        };
        let mut groups = groups(context, step)?;
        let end = groups.len() as u32 * step;
        let is_whole = [wanted.start, wanted.end].iter().all(|bound| bound.is_multiple_of(step));
        if wanted.is_empty() || !is_whole || wanted.end > end {
            return Err(PartitionError::Misaligned { wanted, step, end });
        }
        Self::of(context, &mut groups[(wanted.start / step) as usize..(wanted.end / step) as usize])
    }

    /// The size of a group of compute units: ranges begin and end at multiples of it. `None` if the
    /// driver cannot divide the device.
    pub fn step(context: &Arc<Context>) -> Result<Option<u32>, PartitionError> {
        if context.call("cuGreenCtxStreamCreate", |f| f.green_stream.map_or(status::NOT_SUPPORTED, |_| 0)).is_err() {
            return Ok(None);
        }
        match split(context, 1) {
            Ok((part, _)) => Ok(Some(part.compute_units()).filter(|step| *step > 0)),
            Err(PartitionError::NotSupported(_)) => Ok(None),
            // The device has fewer compute units than a group, or is an MPS share of a GPU.
            Err(PartitionError::Driver(error))
                if [status::INVALID_VALUE, status::INVALID_RESOURCE_CONFIGURATION].contains(&error.code) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A partition of the compute units of `parts`, which one split returned.
    fn of(context: &Arc<Context>, parts: &mut [CUdevResource]) -> Result<Arc<Partition>, PartitionError> {
        let compute_units = parts.iter().map(|part| part.sm_count).sum();
        let (mut description, mut handle) = (CUdevResourceDesc::NULL, CUgreenCtx::NULL);
        call(context, "cuDevResourceGenerateDesc", |f| {
            // SAFETY: reads resources that the driver wrote, and writes one handle.
            Some(unsafe { f.resource_describe?(&mut description, parts.as_mut_ptr(), parts.len() as u32) })
        })?;
        let create = |f: &Functions| {
            // SAFETY: the description is the driver's; writes one handle.
            Some(unsafe {
                f.green_create?(&mut handle, description, context.gpu().ordinal, CU_GREEN_CTX_DEFAULT_STREAM)
            })
        };
        call(context, "cuGreenCtxCreate", create)?;
        Ok(Arc::new(Partition { context: context.clone(), handle, compute_units }))
    }

    /// The number of its compute units.
    pub fn compute_units(&self) -> u32 {
        self.compute_units
    }
}

/// Splits the device's compute units: at least `compute_units`, always the same ones, and the rest.
fn split(context: &Context, compute_units: u32) -> Result<(Resource, Resource), PartitionError> {
    let mut all = all_units(context)?;
    if compute_units > all.compute_units() {
        return Err(PartitionError::TooMany { wanted: compute_units, all: all.compute_units() });
    }
    let (mut part, mut rest, mut groups) = (Resource::EMPTY, Resource::EMPTY, 1);
    let split = |f: &Functions| {
        // SAFETY: reads a resource that the driver wrote; writes one group, as requested, the
        // number of groups, and the rest.
        Some(unsafe { f.resource_split?(part.place(), &mut groups, all.place(), rest.place(), 0, compute_units) })
    };
    call(context, "cuDevSmResourceSplitByCount", split)?;
    Ok((part, rest))
}

/// Splits the device's compute units into as many groups of `step` as possible, always the same
/// ones. The driver does not split the result of a split again, so a range is a part of these
/// groups.
fn groups(context: &Context, step: u32) -> Result<Vec<CUdevResource>, PartitionError> {
    let (mut all, mut rest) = (all_units(context)?, Resource::EMPTY);
    let mut count = all.compute_units() / step.max(1);
    // There is extra space for the larger resources of other driver versions.
    let mut groups = vec![Resource::EMPTY.resource; 2 * count as usize + 1];
    let split = |f: &Functions| {
        // SAFETY: reads a resource that the driver wrote; writes at most `count` groups, their
        // number, and the rest.
        Some(unsafe { f.resource_split?(groups.as_mut_ptr(), &mut count, all.place(), rest.place(), 0, step) })
    };
    call(context, "cuDevSmResourceSplitByCount", split)?;
    groups.truncate(count as usize);
    // If the driver's resources have another size, they lie at other offsets. None of them is used
    // then.
    let is_group = |group: &CUdevResource| group.kind == CU_DEV_RESOURCE_TYPE_SM && group.sm_count == step;
    match groups.iter().all(is_group) {
        true => Ok(groups),
        false => Err(PartitionError::NotSupported(context.driver().version()?)),
    }
}

/// All compute units of the device.
fn all_units(context: &Context) -> Result<Resource, PartitionError> {
    let (mut all, ordinal) = (Resource::EMPTY, context.gpu().ordinal);
    call(context, "cuDeviceGetDevResource", |f| {
        // SAFETY: writes one resource, which fits, to the given address.
        Some(unsafe { f.device_resource?(ordinal, all.place(), CU_DEV_RESOURCE_TYPE_SM) })
    })?;
    Ok(all)
}

/// Calls a function that older drivers lack or do not support.
fn call(
    context: &Context,
    name: &'static str,
    call: impl FnOnce(&Functions) -> Option<CUresult>,
) -> Result<(), PartitionError> {
    match context.call(name, |f| call(f).unwrap_or(status::NOT_SUPPORTED)) {
        Err(error) if error.code == status::NOT_SUPPORTED => {
            Err(PartitionError::NotSupported(context.driver().version()?))
        }
        answer => Ok(answer?),
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and its streams, which keep it alive, are gone.
        self.context.release(|f| f.green_destroy.map_or(0, |destroy| unsafe { destroy(self.handle) }));
    }
}
