//! Pointer arguments. Only the program creates values of these types, and it guarantees what the
//! driver's reference requires of them. [`Argument`] lists the types that an implementation may use
//! for a parameter type of the table.

use atoll_session::{Code, HostCopy};
use std::ffi::{CStr, c_char, c_void};

/// A type that an implementation may use for a parameter of type `R` in the table.
pub(crate) trait Argument<R> {
    /// Converts the argument from the program.
    fn of(raw: R) -> Self;
}

impl<R> Argument<R> for R {
    fn of(raw: R) -> R {
        raw
    }
}

macro_rules! arguments {
    ($(<$($generic:ident)?> $raw:ty => $ours:ty),+ $(,)?) => {
        $(impl$(<$generic>)? Argument<$raw> for $ours {
            fn of(raw: $raw) -> $ours {
                <$ours>::at(raw as u64)
            }
        })+
    };
}

arguments! {
    <T> *mut T => Out<T>,
    <T> *mut T => In<T>,
    <T> *const T => In<T>,
    <> *mut *mut c_void => Out<Place>,
    <> *mut *const c_void => Out<Place>,
    <> *mut *mut c_void => In<Place>,
    <T> *mut T => Place,
    <T> *const T => Place,
}

/// Where to write a result; may be null.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    fn at(address: u64) -> Out<T> {
        Out(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Returns an error if the pointer is null. Called before the entry point has any effect.
    pub(crate) fn is_wanted(self) -> Result<(), Code> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Whether the program wants no result.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes one of several results. The program passes the number of values for which there is
    /// room, or the function defines it.
    pub(crate) fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller passes null or the address of room for as many values as it says.
            unsafe { self.0.add(index).write_unaligned(value) };
        }
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
}

impl<T: Copy> Out<T> {
    /// The value that the program has written there; null is an error.
    pub(crate) fn value(self) -> Result<T, Code> {
        self.is_wanted()?;
        // SAFETY: the caller passes null or the address of a value.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Out<c_char> {
    /// Writes as much of a text as fits, and a NUL. Returns the number of bytes written.
    pub(crate) fn set_text(self, text: &str, room: usize) -> usize {
        if self.0.is_null() || room == 0 {
            return 0;
        }
        let bytes = text.as_bytes().iter().take(room - 1).chain(&[0]);
        for (index, byte) in bytes.enumerate() {
            // SAFETY: the caller passes the address of `room` bytes.
            unsafe { self.0.add(index).write(*byte as c_char) };
        }
        text.len().min(room - 1) + 1
    }
}

/// One or more values of the program; may be null.
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    fn at(address: u64) -> In<T> {
        In(std::ptr::with_exposed_provenance(address as usize))
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn null() -> In<T> {
        In(std::ptr::null())
    }
}

impl<T: Copy> In<T> {
    /// The value at an index. The program passes the number of values, or the function defines it.
    pub(crate) fn get(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes null or the address of as many values as it says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl In<c_char> {
    /// A NUL-terminated text.
    pub(crate) fn text(self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller passes null or a NUL-terminated text.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
    }
}

/// A value whose meaning depends on other arguments: a number, or an address in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Place(u64);

impl Place {
    pub(crate) const NULL: Place = Place(0);

    pub(crate) fn at(address: u64) -> Place {
        Place(address)
    }

    pub(crate) fn address(self) -> u64 {
        self.0
    }

    /// The place `bytes` bytes further.
    pub(crate) fn behind(self, bytes: u64) -> Result<Place, Code> {
        self.0.checked_add(bytes).map(Place).ok_or(Code::INVALID_VALUE)
    }

    /// Returns an error for null.
    pub(crate) fn is_wanted(self) -> Result<(), Code> {
        if self.0 == 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// Bytes in the program's memory, which the program does not change during the call.
    pub(crate) fn bytes<'a>(self, count: u64) -> Result<&'a [u8], Code> {
        let count = usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?;
        if count == 0 {
            return Ok(&[]);
        }
        self.is_wanted()?;
        // SAFETY: the caller passes the address of at least `count` bytes and does not change them
        // during the call, after which the result is not used.
        Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.0 as usize), count) })
    }

    /// The place as the destination of a copy to the host.
    pub(crate) fn copy(self, bytes: u64) -> Result<HostCopy, Code> {
        if bytes > 0 {
            self.is_wanted()?;
        }
        Ok(HostCopy { to: self.0, bytes })
    }

    /// Copies bytes from this place in the program's memory to another.
    pub(crate) fn move_to(self, to: Place, bytes: u64) -> Result<(), Code> {
        if bytes == 0 {
            return Ok(());
        }
        self.is_wanted()?;
        to.is_wanted()?;
        let (from, to) = (self.0 as usize, to.0 as usize);
        // SAFETY: the caller passes the addresses of at least `bytes` bytes; the ranges may
        // overlap.
        unsafe {
            std::ptr::copy::<u8>(
                std::ptr::with_exposed_provenance(from),
                std::ptr::with_exposed_provenance_mut(to),
                bytes as usize,
            );
        }
        Ok(())
    }

    /// The place as a pointer to results.
    pub(crate) fn out<T>(self) -> Out<T> {
        Out::at(self.0)
    }

    /// The place as a pointer to values.
    pub(crate) fn values<T>(self) -> In<T> {
        In::at(self.0)
    }
}
