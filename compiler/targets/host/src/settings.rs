//! What LLVM only takes as an option of its command line.

use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;
use std::ffi::{CStr, c_int};
use std::sync::Once;

/// A name for LLVM's own messages, and the options. What they leave out takes 4 and 2 % of the time
/// of a kernel.
///
/// - Kernels have line numbers and no variables. LLVM's default way to follow variables computes
///   where each value goes before it finds that there are none; the older way it has looks first.
/// - Addresses are computed by steps already ([`atoll_lower::shape`]), so that reducing the
///   strength of loops makes no code faster.
pub(crate) const ARGUMENTS: [&CStr; 3] = [c"atoll", c"-experimental-debug-variable-locations=false", c"-disable-lsr"];

/// Sets the options, once in the process.
pub(crate) fn set_options() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let arguments = ARGUMENTS.map(CStr::as_ptr);
        // SAFETY: the strings are static, and `Once` keeps others from writing the options; they are read
        // by compilations alone, which begin behind this.
        unsafe { LLVMParseCommandLineOptions(arguments.len() as c_int, arguments.as_ptr(), std::ptr::null()) };
    });
}
