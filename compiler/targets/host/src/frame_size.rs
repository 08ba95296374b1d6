//! How much stack a function takes, as LLVM tells it: by a warning that the attribute
//! `warn-stack-size` asks for.
//!
//! It comes through a callback that inkwell keeps to itself.

use inkwell::context::Context;
use inkwell::llvm_sys::core::{LLVMContextSetDiagnosticHandler, LLVMDisposeMessage, LLVMGetDiagInfoDescription};
use inkwell::llvm_sys::prelude::LLVMDiagnosticInfoRef;
use std::cell::Cell;
use std::ffi::{CStr, c_void};

/// What `compile` answers, and the largest frame that LLVM told of meanwhile.
pub(crate) fn largest_frame<R>(context: &Context, compile: impl FnOnce() -> R) -> (R, Option<u32>) {
    let largest: Cell<Option<u32>> = Cell::new(None);
    // SAFETY: the context is alive, and `largest` lives until the handler is taken away again below.
    unsafe {
        LLVMContextSetDiagnosticHandler(context.raw(), Some(on_diagnostic), (&raw const largest).cast_mut().cast())
    };
    let result = compile();
    // SAFETY: as above.
    unsafe { LLVMContextSetDiagnosticHandler(context.raw(), None, std::ptr::null_mut()) };
    (result, largest.get())
}

/// Called by LLVM, on the thread that compiles.
extern "C" fn on_diagnostic(info: LLVMDiagnosticInfoRef, largest: *mut c_void) {
    // SAFETY: LLVM hands out a valid diagnostic and a string that is ours to dispose of.
    let text = unsafe { LLVMGetDiagInfoDescription(info) };
    if text.is_null() || largest.is_null() {
        return;
    }
    // SAFETY: `text` is a C string; `largest` is the cell of `largest_frame`, which waits for us.
    let (message, largest) = unsafe { (CStr::from_ptr(text).to_string_lossy(), &*largest.cast::<Cell<Option<u32>>>()) };
    largest.set(largest.get().max(frame_bytes(&message)));
    drop(message);
    // SAFETY: it came from LLVM and is not used again.
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
