//! The parts of a binding: the work of each step, and the memory that its launches refer to.

use atoll_core::DeviceOffset;
use atoll_device::{AddressRange, AddressSlots, DeviceInfo};
use atoll_kgraph::expr::EvalError;
use atoll_kgraph::{DType, LayoutError, fence_params};
use std::ops::Range;

/// The allocation that an offset is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The memory of the invocation.
    Invocation,
    /// A constant, by its index in [`atoll_kgraph::Bundle::constants`].
    Constant(u32),
    /// The state buffers of the session.
    State,
    /// The memory of the tenant's domain.
    Domain,
    /// The address space of the device itself.
    Device,
    /// No allocation: the value is the size of the domain's memory minus one.
    Mask,
}

/// The address ranges that fenced kernels may access. The base of the tenant's memory is not part
/// of it: it is known only for an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FenceRanges {
    /// Address mask of the tenant's memory, on a device that keeps constants apart.
    pub(crate) memory_mask: u64,
    /// The range of the constants; `None` if they are in the memory of the tenant, of which only the
    /// device knows the mask.
    pub(crate) constants: Option<AddressRange>,
}

impl FenceRanges {
    /// The ranges on a device.
    pub(crate) fn of(device: &DeviceInfo) -> FenceRanges {
        let memory_mask = device.memory_range(DeviceOffset(0)).mask();
        FenceRanges { memory_mask, constants: device.constants_range() }
    }

    /// The addresses among the parameters of a fence, by their offsets in [`fence_params`].
    pub(super) fn addresses(self) -> [(u32, Site); 2] {
        let own = Site { space: Space::Domain, offset: 0 };
        let constants = self.constants.map_or(own, |range| Site { space: Space::Device, offset: range.base.0 });
        [(fence_params::BASE, own), (fence_params::CONSTANTS_BASE, constants)]
    }

    /// The masks among them; `None` for [`Space::Mask`].
    pub(super) fn masks(self) -> [(u32, Option<u64>); 2] {
        let own = self.constants.map(|_| self.memory_mask);
        [(fence_params::MASK, own), (fence_params::CONSTANTS_MASK, self.constants.map(AddressRange::mask))]
    }
}

/// A place in device memory, as an offset into an allocation that is made later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) space: Space,
    pub(crate) offset: u64,
}

/// The work of one step of a task.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Launch(LaunchTemplate),
    Copy {
        from: Site,
        to: Site,
        bytes: u64,
    },
    /// Reads a size back from the device, by the index of its [`atoll_kgraph::ReadBack`]. It
    /// determines the later steps.
    ReadBack(u32),
    /// Chooses the step that follows, by the index of its item in [`super::Binding::flow`].
    Border(usize),
    /// Fills with a pattern of eight bytes.
    Fill {
        to: Site,
        pattern: [u8; 8],
        bytes: u64,
    },
}

/// A launch without its addresses and its epoch.
#[derive(Clone, Debug)]
pub(crate) struct LaunchTemplate {
    /// Index of the node, for messages.
    pub(crate) node: u32,
    /// The module of its kernel, as an index in [`super::Binding::code`]; `None` for the module of
    /// the function.
    pub(crate) code: Option<u32>,
    pub(crate) kernel: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) evicted_word: u64,
    pub(crate) address_slots: AddressSlots,
    /// Range of its parameter block in [`super::Binding::params`].
    pub(crate) params: Range<usize>,
    /// Offset of the issued epoch in the parameter block.
    pub(crate) issued_epoch: Option<usize>,
    /// Whether it has an evicted word and a progress map.
    pub(crate) keeps_progress: bool,
    /// Whether it must run to completion, even if its kernel checks the epoch.
    pub(crate) stays: bool,
    /// Whether its blocks may be interrupted and run again.
    pub(crate) may_run_again: bool,
}

/// An address or a mask in a parameter block, written once memory is allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    /// Byte offset in [`super::Binding::params`].
    pub(crate) at: usize,
    pub(crate) site: Site,
}

/// The reasons why a function cannot run with these symbols.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("{node}: {source}")]
    Value { node: String, source: EvalError },
    #[error("node {node} computes {value} for the size `{size}`, which has to be {min} to {max}")]
    Size { node: String, size: String, value: i64, min: i64, max: i64 },
    #[error("node {node} has nothing to do and computes no size `{size}`")]
    NoSize { node: String, size: String },
    #[error("{node}: {value} does not fit an argument of type {dtype:?}")]
    Literal { node: String, value: i64, dtype: DType },
}
