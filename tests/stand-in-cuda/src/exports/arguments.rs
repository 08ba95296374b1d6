//! Pointer arguments. Only the program under test creates values of these types, and it guarantees
//! what the driver's reference requires of them. All unsafe accesses of the entry points are
//! therefore here. [`Argument`] defines which types an implementation may use for a parameter type
//! of the table.

use super::Address;
use crate::raw::Span;
use crate::status::Status;
use std::ffi::{CStr, c_char, c_void};

/// A type that an implementation may use for a parameter of type `R` in the table: the same type,
/// or a type that states the purpose of a pointer.
pub(super) trait Argument<R> {
    /// Converts the argument from the program.
    fn of(raw: R) -> Self;
}

impl<R> Argument<R> for R {
    fn of(raw: R) -> R {
        raw
    }
}

impl<T> Argument<*mut T> for Out<T> {
    fn of(raw: *mut T) -> Out<T> {
        Out(raw)
    }
}

impl Argument<*mut *mut c_void> for Out<Pointer> {
    fn of(raw: *mut *mut c_void) -> Out<Pointer> {
        Out(raw.cast())
    }
}

impl<T> Argument<*const T> for In<T> {
    fn of(raw: *const T) -> In<T> {
        In(raw)
    }
}

/// The header omits `const` on many pointers to values that are only read.
impl<T> Argument<*mut T> for In<T> {
    fn of(raw: *mut T) -> In<T> {
        In(raw)
    }
}

impl Argument<*mut *mut c_void> for In<Pointer> {
    fn of(raw: *mut *mut c_void) -> In<Pointer> {
        In(raw.cast())
    }
}

impl<T> Argument<*mut T> for Pointer {
    fn of(raw: *mut T) -> Pointer {
        Pointer(raw.cast())
    }
}

impl<T> Argument<*const T> for Pointer {
    fn of(raw: *const T) -> Pointer {
        Pointer(raw.cast_mut().cast())
    }
}

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
    /// Writes a result; null is an error.
    pub(crate) fn set(self, value: T) -> Result<(), Status> {
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

    /// Returns an error if the pointer is null. Called before the entry point has any effect.
    pub(crate) fn is_wanted(self) -> Result<(), Status> {
        if self.0.is_null() { Err(Status::InvalidValue) } else { Ok(()) }
    }

    /// Writes at most `room` values.
    pub(crate) fn set_all(self, values: impl Iterator<Item = T>, room: usize) {
        for (index, value) in values.take(room).enumerate() {
            // SAFETY: the caller passes null or the address of that many values.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl Out<c_char> {
    /// Writes as much of a text as fits, and a NUL. Returns the bytes written.
    pub(crate) fn set_text(self, text: &str, room: usize) -> usize {
        if self.0.is_null() || room == 0 {
            return 0;
        }
        let bytes = text.as_bytes().iter().take(room - 1).chain(&[0]).map(|byte| *byte as c_char);
        let count = text.len().min(room - 1) + 1;
        self.set_all(bytes, room);
        count
    }
}

/// One or more values of the caller; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Result<T, Status> {
        self.at(0)
    }

    /// One of several values; the caller passes their number, or the function knows it.
    pub(crate) fn at(self, index: usize) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes null or the address of as many values as it says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T> In<T> {
    pub(crate) fn null() -> In<T> {
        In(std::ptr::null())
    }
}

impl In<c_char> {
    /// A NUL-terminated text.
    pub(crate) fn text(self) -> Result<String, Status> {
        if self.0.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the caller passes null or a NUL-terminated text.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Status::InvalidValue)
    }
}

/// A value whose meaning depends on other arguments: a number or an address.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Pointer(*mut c_void);

impl Pointer {
    pub(crate) const NULL: Pointer = Pointer(std::ptr::null_mut());

    /// The value from the program.
    pub(super) fn raw(self) -> *mut c_void {
        self.0
    }

    /// The pointer to an address.
    pub(crate) fn to(address: u64) -> Pointer {
        Pointer(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// The pointer to an entry point.
    pub(crate) fn to_code(address: Address) -> Pointer {
        Pointer(address.cast_mut().cast())
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// Memory of the caller that stays until the operation is complete, as the driver's reference
    /// requires.
    pub(crate) fn span(self, bytes: u64) -> Result<Span, Status> {
        if self.0.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: as the caller guarantees.
        Ok(unsafe { Span::new(self.address(), bytes) })
    }

    /// The pointer as the address of one or more results.
    pub(crate) fn as_out<T>(self) -> Out<T> {
        Out(self.0.cast())
    }

    /// The address of one of several results.
    pub(crate) fn element<T>(self, index: usize) -> Out<T> {
        Out(self.0.cast::<T>().wrapping_add(index))
    }

    /// The pointer as the address of a value of the caller.
    pub(crate) fn as_in<T>(self) -> In<T> {
        In(self.0.cast_const().cast())
    }
}
