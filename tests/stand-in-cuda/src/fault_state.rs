//! The fault state of a context.

use crate::status::Status;
use crate::table::Handle;
use atoll_cuda_api::types::CUresult;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// Whether a context works, has faulted, or was destroyed.
#[derive(Debug)]
pub(crate) struct FaultState {
    pub(crate) context: Handle,
    /// The first fault; 0 if there was none. Never reset.
    fault: AtomicI32,
    is_destroyed: AtomicBool,
}

impl FaultState {
    pub(crate) fn new(context: Handle) -> FaultState {
        FaultState { context, fault: AtomicI32::new(0), is_destroyed: AtomicBool::new(false) }
    }

    /// The error that every call returns after a fault.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.fault.load(SeqCst) {
            0 if self.is_destroyed.load(SeqCst) => Err(Status::ContextIsDestroyed),
            0 => Ok(()),
            number => Err(Status::of_number(number).unwrap_or(Status::Unknown)),
        }
    }

    /// Records a fault. Returns true if it is the first. A launch that ends because its context was
    /// destroyed has not faulted.
    pub(crate) fn fail(&self, status: Status) -> bool {
        !self.is_destroyed.load(SeqCst) && self.fault.compare_exchange(0, status as CUresult, SeqCst, SeqCst).is_ok()
    }

    pub(crate) fn end(&self) {
        self.is_destroyed.store(true, SeqCst);
    }
}
