//! The lanes of a warp.

/// Number of lanes of a warp.
pub(crate) const WARP: usize = 32;

/// The values of each lane; `None` for a lane that does not take part.
pub(crate) type Lanes = [Option<Vec<u64>>; WARP];
