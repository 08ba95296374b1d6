//! Whether a context's work is still done.

use crate::status::Status;
use crate::table::Handle;
use atoll_cuda_api::types::CUresult;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// What a fault, or its end, did to a context.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) context: Handle,
    /// What went wrong, for good; 0 while all is well.
    fault: AtomicI32,
    is_destroyed: AtomicBool,
}

impl Life {
    pub(crate) fn new(context: Handle) -> Life {
        Life { context, fault: AtomicI32::new(0), is_destroyed: AtomicBool::new(false) }
    }

    /// The error that every call gets since a kernel went wrong.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.fault.load(SeqCst) {
            0 if self.is_destroyed.load(SeqCst) => Err(Status::ContextIsDestroyed),
            0 => Ok(()),
            number => Err(Status::of_number(number).unwrap_or(Status::Unknown)),
        }
    }

    /// A kernel went wrong. Whether that is the first fault; what a destroyed context ends is
    /// nobody's mistake.
    pub(crate) fn fail(&self, status: Status) -> bool {
        !self.is_destroyed.load(SeqCst) && self.fault.compare_exchange(0, status as CUresult, SeqCst, SeqCst).is_ok()
    }

    pub(crate) fn end(&self) {
        self.is_destroyed.store(true, SeqCst);
    }
}
