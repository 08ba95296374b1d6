//! Checks of arguments.

use crate::status::NOT_SUPPORTED;
use atoll_cuda_library::{At, Number, Status};
use std::ffi::c_int;

/// Dimensions of a tensor at most.
pub(crate) const DIMENSIONS_MAX: usize = 8;

/// The error for arguments that are not supported, which the library prints once for each name.
pub(crate) fn refused(name: &'static str, what: &str) -> Status {
    atoll_cuda_library::refused(name, what, NOT_SUPPORTED)
}

/// Returns an error if a value of an enum is not one of the first `count`.
pub(crate) fn is_among(value: c_int, count: c_int) -> Result<(), Status> {
    if (0..count).contains(&value) { Ok(()) } else { Err(Status::InvalidValue) }
}

/// The bytes of an element of `cudnnDataType_t`; types of four or 32 numbers have as many bytes.
pub(crate) fn element_bytes(data_type: c_int) -> Result<usize, Status> {
    Ok(match data_type {
        0 | 4 | 5 | 7 | 19 => 4,
        1 | 10 => 8,
        2 | 9 => 2,
        3 | 6 | 11..=13 | 15 => 1,
        8 => 32,
        _ => return Err(Status::InvalidValue),
    })
}

/// The type in which kernels have numbers of `cudnnDataType_t`.
pub(crate) fn number_of(name: &'static str, data_type: c_int) -> Result<Number, Status> {
    Ok(match data_type {
        0 => Number::F32,
        1 => Number::F64,
        2 => Number::F16,
        9 => Number::Bf16,
        _ => return Err(refused(name, &format!("tensors of type {data_type}"))),
    })
}

/// Returns an error unless kernels compute with numbers of this type as `cudnnDataType_t` asks: with f64
/// in f64, with others in f32. f16 may be asked for with f16: f32 is more exact.
pub(crate) fn computes_in(name: &'static str, number: Number, compute_type: c_int) -> Result<(), Status> {
    let is_served = match compute_type {
        0 => number != Number::F64,
        1 => number == Number::F64,
        2 => number == Number::F16,
        _ => false,
    };
    if is_served {
        return Ok(());
    }
    Err(refused(name, &format!("tensors of {} with compute type {compute_type}", number.name())))
}

/// Reads an array of at most 8 integers; the others are `rest`.
pub(crate) fn read(array: At<c_int>, count: usize, rest: c_int) -> Result<[c_int; DIMENSIONS_MAX], Status> {
    let mut values = [rest; DIMENSIONS_MAX];
    for (index, value) in values.iter_mut().enumerate().take(count) {
        *value = array.nth(index).get()?;
    }
    Ok(values)
}

/// Writes an array of integers.
pub(crate) fn write(array: At<c_int>, values: &[c_int]) -> Result<(), Status> {
    values.iter().enumerate().try_for_each(|(index, value)| array.nth(index).set(*value))
}

/// Writes a value unless the pointer is null.
pub(crate) fn give<T>(at: At<T>, value: T) -> Result<(), Status> {
    if at.is_null() { Ok(()) } else { at.set(value) }
}
