//! Factors: `alpha` and `beta`, which are in the program's memory, in f64 if the tensors are, else in
//! f32.

use atoll_cuda_library::{At, Number, Status};

/// The bits of a number in the type in which a kernel computes.
pub(crate) fn bits(sum: Number, value: f64) -> u64 {
    if sum == Number::F64 { value.to_bits() } else { (value as f32).to_bits().into() }
}

/// The bits of a factor; null is an error.
pub(crate) fn factor(sum: Number, at: At<u8>) -> Result<u64, Status> {
    if sum == Number::F64 { at.cast::<u64>().get() } else { at.cast::<u32>().get().map(u64::from) }
}

/// Whether these are the bits of 0 or -0.
pub(crate) fn is_zero(sum: Number, bits: u64) -> bool {
    if sum == Number::F64 { bits << 1 == 0 } else { (bits as u32) << 1 == 0 }
}
