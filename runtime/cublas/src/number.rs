//! Types of numbers, and factors.

use atoll_cuda_library::{At, Number, Status, half};
use std::ffi::c_int;

/// The type of `cudaDataType`; `None` if it is not supported.
pub(crate) fn number_of(data_type: c_int) -> Option<Number> {
    Some(match data_type {
        0 => Number::F32,
        1 => Number::F64,
        2 => Number::F16,
        3 => Number::S8,
        10 => Number::S32,
        14 => Number::Bf16,
        _ => return None,
    })
}

/// The types of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types {
    /// Of A and B.
    pub(crate) input: Number,
    /// Of C and D.
    pub(crate) output: Number,
    /// In which products are summed.
    pub(crate) sum: Number,
    /// Of alpha and beta.
    pub(crate) scale: Number,
}

impl Types {
    /// All types are the same one.
    pub(crate) const fn all(number: Number) -> Types {
        Types { input: number, output: number, sum: number, scale: number }
    }

    /// f16 in memory, with factors of f16.
    pub(crate) const HALF: Types =
        Types { input: Number::F16, output: Number::F16, sum: Number::F32, scale: Number::F16 };

    /// The types for `cublasComputeType_t` and the types of A, B and C; `None` if the combination is
    /// not supported.
    pub(crate) fn of(compute: c_int, [a, b, c]: [c_int; 3]) -> Option<Types> {
        use Number::{Bf16, F16, F32, F64, S8, S32};
        let (input, output) = (number_of(a)?, number_of(c)?);
        if a != b {
            return None;
        }
        let (sum, scale) = match (compute, input, output) {
            (64 | 65, F16, F16) => (F32, F16),
            (68 | 69 | 74 | 75 | 77 | 78, F32, F32)
            | (68 | 69, F16, F16 | F32)
            | (68 | 69, Bf16, Bf16 | F32)
            | (68 | 69, S8, F32) => (F32, F32),
            (70 | 71, F64, F64) => (F64, F64),
            (72 | 73, S8, S32) => (S32, S32),
            _ => return None,
        };
        Some(Types { input, output, sum, scale })
    }
}

/// Alpha and beta of a call, as a kernel gets them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    /// The bits of the numbers in the type of sums, or their addresses.
    pub(crate) alpha: u64,
    pub(crate) beta: u64,
    /// Whether they are addresses of device memory.
    pub(crate) on_device: bool,
    /// Whether beta is a number even so.
    pub(crate) beta_is_number: bool,
    types: Types,
}

impl Factors {
    /// Reads the factors of a call; null is an error.
    pub(crate) fn new(types: Types, on_device: bool, alpha: At<u8>, beta: At<u8>) -> Result<Factors, Status> {
        let read = |at: At<u8>| if on_device { at.is_wanted().map(|()| at.address()) } else { bits(types, at) };
        Ok(Factors { alpha: read(alpha)?, beta: read(beta)?, on_device, beta_is_number: false, types })
    }

    /// Alpha of a call, and 1 for beta.
    pub(crate) fn with_one(types: Types, on_device: bool, alpha: At<u8>) -> Result<Factors, Status> {
        let factors = Factors::new(types, on_device, alpha, alpha)?;
        Ok(Factors { beta: one(types.sum), beta_is_number: true, ..factors })
    }

    /// The parameters of a kernel: the bits of alpha and beta, and their addresses.
    pub(crate) fn parameters(self) -> [u64; 4] {
        let split = |value, is_number: bool| if is_number { (value, 0) } else { (0, value) };
        let (alpha, alpha_at) = split(self.alpha, !self.on_device);
        let (beta, beta_at) = split(self.beta, !self.on_device || self.beta_is_number);
        [alpha, beta, alpha_at, beta_at]
    }

    /// The flags of the kernel.
    pub(crate) fn flags(self) -> u32 {
        let half = self.on_device && self.types.scale == Number::F16;
        u32::from(self.on_device) | (u32::from(half) << 1) | (u32::from(self.beta_is_number) << 5)
    }

    /// Whether alpha is known to be 0.
    pub(crate) fn is_alpha_zero(self) -> bool {
        !self.on_device && is_zero(self.types.sum, self.alpha)
    }

    /// Whether beta is known to be 0.
    pub(crate) fn is_beta_zero(self) -> bool {
        !self.on_device && is_zero(self.types.sum, self.beta)
    }

    /// Whether beta is known to be 1.
    pub(crate) fn is_beta_one(self) -> bool {
        (!self.on_device || self.beta_is_number) && self.beta == one(self.types.sum)
    }
}

/// Reads a factor of the program's memory: the bits of the same number in the type of sums.
fn bits(types: Types, at: At<u8>) -> Result<u64, Status> {
    Ok(match types.scale {
        Number::F64 => at.cast::<u64>().get()?,
        Number::F16 => half(at.cast::<u16>().get()?).to_bits().into(),
        _ => at.cast::<u32>().get()?.into(),
    })
}

/// Whether these are the bits of 0 or -0.
fn is_zero(sum: Number, bits: u64) -> bool {
    match sum {
        Number::F64 => bits << 1 == 0,
        Number::F32 => (bits as u32) << 1 == 0,
        _ => bits == 0,
    }
}

/// The bits of 1.
fn one(sum: Number) -> u64 {
    match sum {
        Number::F64 => 1f64.to_bits(),
        Number::F32 => 1f32.to_bits().into(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_of_types_are_those_of_the_reference() {
        assert_eq!(Types::of(68, [0, 0, 0]), Some(Types::all(Number::F32)));
        assert_eq!(Types::of(64, [2, 2, 2]), Some(Types::HALF));
        assert_eq!(Types::of(68, [14, 14, 0]).map(|types| types.scale), Some(Number::F32));
        // Mixed inputs, complex numbers, f64 summed in f32, a type of computation that the header lacks.
        for (compute, types) in [(68, [0, 2, 0]), (68, [4, 4, 4]), (68, [1, 1, 1]), (64, [2, 2, 0]), (76, [0, 0, 0])] {
            assert_eq!(Types::of(compute, types), None, "{compute} {types:?}");
        }
    }
}
