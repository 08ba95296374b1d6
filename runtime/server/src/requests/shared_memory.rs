//! The shared-memory extension is not supported: shared memory by name over an open port has been
//! an attack vector in other servers. No region can be registered, so every list is empty, and
//! unregistering an unknown region succeeds.

use super::error::{Kind, RequestError};

/// The answer for a region that is not registered, as all are.
pub(crate) fn unknown(region: &str) -> RequestError {
    RequestError::bad_request(format!("unknown shared memory region `{region}`"))
}

/// The answer for the registration of a region.
pub(crate) fn refused(region: &str) -> RequestError {
    RequestError::new(
        Kind::Unsupported,
        format!(
            "cannot register shared memory region `{region}`: shared memory is not supported; send the tensors in the \
            request"
        ),
    )
}
