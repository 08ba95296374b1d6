//! All limits of decoding, with the reason for each number. The reader of a body limits its size.

/// Most inputs, or outputs, of a request. No known model has a tenth of it.
pub const TENSORS_MAX: usize = 1024;

/// Most dimensions of a tensor: the limit of kernel graphs.
pub const RANK_MAX: usize = 16;

/// Deepest nesting of a JSON `data` array: the rank of a tensor.
pub const DATA_DEPTH_MAX: usize = RANK_MAX;

/// Most classes of a classification. Each takes a string, and no list of labels is longer.
pub const CLASSES_MAX: usize = 100_000;
