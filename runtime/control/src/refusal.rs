//! Refusals: errors that the daemon returns for a request.

use serde::{Deserialize, Serialize};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Who has to act.
    pub kind: RefusalKind,
    /// The message for the user.
    pub message: String,
}

/// Who has to act on a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// The request is wrong; retrying does not help.
    BadRequest,
    /// There is no such function, graph, instance, lease or object, or it belongs to another
    /// tenant. The answer does not reveal which.
    NotFound,
    /// The peer may not do this.
    Denied,
    /// The tenant has exhausted a limit.
    Quota,
    /// The daemon is overloaded; retry later.
    Busy,
    /// The deadline passed.
    Deadline,
    /// The function failed on the device.
    Function,
    /// The daemon or its machine failed.
    Daemon,
}

impl RefusalKind {
    /// Whether the client has to change its request.
    pub fn is_clients(self) -> bool {
        matches!(self, RefusalKind::BadRequest | RefusalKind::NotFound | RefusalKind::Denied)
    }
}
