//! The stack size of a function, from the warning that LLVM emits for the attribute
//! `warn-stack-size`.
//!
//! The warning arrives through a diagnostic handler that inkwell does not expose.

use inkwell::context::Context;
use inkwell::llvm_sys::core::{LLVMContextSetDiagnosticHandler, LLVMDisposeMessage, LLVMGetDiagInfoDescription};
use inkwell::llvm_sys::prelude::LLVMDiagnosticInfoRef;
use std::cell::Cell;
use std::ffi::{CStr, c_void};

/// Runs `compile`; returns its result and the largest frame that LLVM reported meanwhile.
pub(crate) fn largest_frame<R>(context: &Context, compile: impl FnOnce() -> R) -> (R, Option<u32>) {
    let largest: Cell<Option<u32>> = Cell::new(None);
    // SAFETY: the context is alive, and `largest` outlives the handler, which is removed below.
    unsafe {
        LLVMContextSetDiagnosticHandler(context.raw(), Some(on_diagnostic), (&raw const largest).cast_mut().cast())
    };
    let result = compile();
    // SAFETY: as above.
    unsafe { LLVMContextSetDiagnosticHandler(context.raw(), None, std::ptr::null_mut()) };
    (result, largest.get())
}

/// Called by LLVM, on the compiling thread.
extern "C" fn on_diagnostic(info: LLVMDiagnosticInfoRef, largest: *mut c_void) {
    // SAFETY: LLVM passes a valid diagnostic and returns a string that we own.
    let text = unsafe { LLVMGetDiagInfoDescription(info) };
    if text.is_null() || largest.is_null() {
        return;
    }
    // SAFETY: `text` is a C string; `largest` points to the cell in `largest_frame`, whose call is
    // still active.
    let (message, largest) = unsafe { (CStr::from_ptr(text).to_string_lossy(), &*largest.cast::<Cell<Option<u32>>>()) };
    largest.set(largest.get().max(frame_bytes(&message)));
    drop(message);
    // SAFETY: the string came from LLVM and is not used again.
    unsafe { LLVMDisposeMessage(text) };
}

/// The number in `stack frame size (1234) exceeds limit (0) in function 'k'`.
fn frame_bytes(message: &str) -> Option<u32> {
    let (_, rest) = message.split_once("stack frame size (")?;
    rest.split_once(')')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_size_is_read_from_the_warning() {
        assert_eq!(
            super::frame_bytes("<unknown>:0:0: stack frame size (4296) exceeds limit (0) in function 'k.warp'"),
            Some(4296)
        );
        assert_eq!(super::frame_bytes("something else (12)"), None);
    }
}
