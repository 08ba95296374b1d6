//! All limits of decoding, with the reason for each number. The reader of a body limits its size.

/// Inputs or outputs of one request; no known model has a tenth of that.
pub const TENSORS_MAX: usize = 1024;

/// Dimensions of a tensor; the limit of kernel graphs.
pub const RANK_MAX: usize = 16;

/// Nesting of a JSON `data` array; the rank of a tensor.
pub const DATA_DEPTH_MAX: usize = RANK_MAX;

/// Classes in one classification. Each costs a string, and no list of labels is longer.
pub const CLASSES_MAX: usize = 100_000;
