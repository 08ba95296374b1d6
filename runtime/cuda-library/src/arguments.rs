//! Pointer arguments. Only the program creates values of these types, and it guarantees what the
//! reference of the library requires of them. Each type has the layout of a pointer and can stand in the
//! signature of an entry point.
//!
//! An argument that is a device address is a `u64`.

use crate::status::Status;
use std::ffi::c_void;
use std::marker::PhantomData;

/// The address of a value in the program's memory, or for a factor or result of a handle in device
/// pointer mode, in the device's; may be null.
#[derive(Debug)]
#[repr(transparent)]
pub struct At<T>(usize, PhantomData<*mut T>);

impl<T> Clone for At<T> {
    fn clone(&self) -> At<T> {
        *self
    }
}

impl<T> Copy for At<T> {}

impl<T> At<T> {
    /// The address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// Whether the pointer is null.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns an error if the pointer is null.
    pub fn is_wanted(self) -> Result<(), Status> {
        if self.is_null() { Err(Status::InvalidValue) } else { Ok(()) }
    }

    /// The address of element `index` of an array that begins here; null of null.
    pub fn nth(self, index: usize) -> At<T> {
        if self.is_null() { self } else { At(self.0.wrapping_add(index * size_of::<T>()), PhantomData) }
    }

    /// The same address of another type.
    pub fn cast<U>(self) -> At<U> {
        At(self.0, PhantomData)
    }

    /// The pointer, for the driver.
    pub fn raw(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    /// Writes a value to the program's memory; null is an error.
    pub fn set(self, value: T) -> Result<(), Status> {
        self.is_wanted()?;
        // SAFETY: the caller passes null or the address of a value.
        unsafe { self.raw().cast::<T>().write_unaligned(value) };
        Ok(())
    }
}

impl<T: Copy> At<T> {
    /// Reads a value of the program's memory; null is an error. `T` is an integer, a float, or a
    /// struct of them, which any bytes form.
    pub fn get(self) -> Result<T, Status> {
        self.is_wanted()?;
        // SAFETY: the caller passes null or the address of a value.
        Ok(unsafe { self.raw().cast::<T>().read_unaligned() })
    }
}

impl At<u8> {
    /// Copies bytes from the program; null is an error.
    pub fn read_into(self, bytes: &mut [u8]) -> Result<(), Status> {
        self.is_wanted()?;
        // SAFETY: the caller passes null or the address of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.raw().cast::<u8>(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes to the program; null is an error.
    pub fn write_from(self, bytes: &[u8]) -> Result<(), Status> {
        self.is_wanted()?;
        // SAFETY: the caller passes null or the address of as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.raw().cast::<u8>(), bytes.len()) };
        Ok(())
    }
}

/// An address of host memory as a pointer for the driver.
pub fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
