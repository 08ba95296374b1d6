//! The lanes of a warp.

/// Lanes of a warp.
pub(crate) const WARP: usize = 32;

/// The values of each lane, `None` for one that does not take part.
pub(crate) type Lanes = [Option<Vec<u64>>; WARP];
