//! Pointer arguments. Only the program creates values of these types, and it guarantees what the
//! runtime's reference requires of them. Each type has the layout of a pointer and can stand in the
//! signature of an entry point.
//!
//! An argument that is a device address, or that is used only as a number, is a `u64`.

use crate::error::Code;
use std::ffi::{CStr, c_char};

/// Where to write a result; may be null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Returns an error if the pointer is null. Called before the entry point has any effect.
    pub(crate) fn is_wanted(self) -> Result<(), Code> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes a result; null is an error.
    pub(crate) fn set(self, value: T) -> Result<(), Code> {
        self.is_wanted()?;
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes a result if the pointer is not null.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller passes null or the address of a value.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The pointer, for the driver.
    pub(crate) fn raw(self) -> *mut T {
        self.0
    }
}

impl Out<u8> {
    /// Writes bytes at the beginning of a struct that is at least as long.
    pub(crate) fn set_bytes(self, bytes: &[u8]) -> Result<(), Code> {
        self.is_wanted()?;
        // SAFETY: the caller passes the address of a struct, and the bytes are not longer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
        Ok(())
    }
}

/// A value of the program; may be null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// No value.
    pub(crate) const NULL: In<T> = In(std::ptr::null());

    /// The pointer, for the driver.
    pub(crate) fn raw(self) -> *const T {
        self.0
    }
}

impl<T: Copy> In<T> {
    /// The value; null is an error.
    pub(crate) fn get(self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes null or the address of a value.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl In<c_char> {
    /// A NUL-terminated text, copied.
    pub(crate) fn text(self) -> Result<Box<CStr>, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes null or a NUL-terminated text.
        Ok(unsafe { CStr::from_ptr(self.0) }.into())
    }
}
