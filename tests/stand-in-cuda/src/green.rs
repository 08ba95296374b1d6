//! Green contexts.

use crate::device::Part;
use std::sync::Arc;

/// A partition of a device's compute units.
#[derive(Debug)]
pub(crate) struct Green {
    pub(crate) ordinal: u32,
    pub(crate) part: Arc<Part>,
}
