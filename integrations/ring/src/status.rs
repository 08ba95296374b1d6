//! Results of functions, and their messages.

use atoll_client::{ClientError, RefusalKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ATOLL_OK`.
const OK: c_int = 0;

/// A failure: its status, as in `enum atoll_status`, and its message.
pub(crate) struct Failed(c_int, String);

impl Failed {
    /// `ATOLL_ARGUMENT`.
    pub(crate) fn argument(message: impl Into<String>) -> Failed {
        Failed(11, message.into())
    }
}

impl From<ClientError> for Failed {
    fn from(error: ClientError) -> Failed {
        let status = match &error {
            ClientError::Refused(refusal) => match refusal.kind {
                RefusalKind::BadRequest => 1,
                RefusalKind::NotFound => 2,
                RefusalKind::Denied => 3,
                RefusalKind::Quota => 4,
                RefusalKind::Busy => 5,
                RefusalKind::Deadline => 6,
                RefusalKind::Function => 7,
                RefusalKind::Daemon => 8,
            },
            ClientError::RingFull(_) | ClientError::NoRoom { .. } => 10,
            ClientError::Call(_) => 11,
            _ => 9,
        };
        Failed(status, error.to_string())
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs a function of the interface. Keeps the message of a failure for `atoll_ring_error`.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Failed>) -> c_int {
    let panicked = || Failed(12, "internal error: the library panicked; please report this bug".into());
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()));
    let Err(Failed(status, message)) = result else { return OK };
    // Texts of the daemon may contain zero bytes.
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    MESSAGE.with_borrow_mut(|last| *last = message);
    status
}

/// The message of the last failure of this thread.
pub(crate) fn message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}
