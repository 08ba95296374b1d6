//! Every bound of decoding, with the reason for the number. The size of a body is bounded by
//! whoever reads it.

/// Inputs or outputs of one request: no known model has a tenth of it.
pub const TENSORS_MAX: usize = 1024;

/// Dimensions of a tensor, what kernel graphs allow.
pub const RANK_MAX: usize = 16;

/// Nesting of a JSON `data` array: as deep as a tensor can be.
pub const DATA_DEPTH_MAX: usize = RANK_MAX;

/// Classes that a classification answers with, at most; more than any label list is not worth a
/// string each.
pub const CLASSES_MAX: usize = 100_000;
