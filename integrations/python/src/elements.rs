//! Elements of a tensor that the daemon sent, as a buffer.

use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// The bytes of a tensor. An array over its buffer can be written, and keeps it alive.
#[pyclass(frozen, module = "atoll._native")]
pub(crate) struct Elements(NonNull<[u8]>);

// SAFETY: it owns the memory and does not access it after `new`; arrays of Python do.
unsafe impl Send for Elements {}
// SAFETY: as above.
unsafe impl Sync for Elements {}

impl Elements {
    pub(crate) fn new(bytes: Vec<u8>) -> Elements {
        Elements(NonNull::from(Box::leak(bytes.into_boxed_slice())))
    }
}

impl Drop for Elements {
    fn drop(&mut self) {
        // SAFETY: `new` leaked this box. Each view of the buffer holds a reference to the object, so
        // there is none left.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[pymethods]
impl Elements {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Python calls it, with a view that can be written.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().0;
        let (start, length) = (bytes.as_ptr().cast::<c_void>(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: Python guarantees it for the view, which gets a reference to the object; the
        // memory is that of the box, and lives as long as the object.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
