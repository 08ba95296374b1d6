//! LLVM settings that exist only as command-line options.

use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;
use std::ffi::{CStr, c_int};
use std::sync::Once;

/// The program name for LLVM's messages, and the options. They save 4 and 2 % of the compile time
/// of a kernel.
///
/// - Kernels have line numbers but no debug variables. LLVM's default algorithm for debug variables
///   computes the location of each value before it finds that there are no variables; the older
///   algorithm checks first.
/// - Addresses are already computed by steps ([`atoll_lower::shape`]), so loop strength reduction
///   makes no code faster.
pub(crate) const ARGUMENTS: [&CStr; 3] = [c"atoll", c"-experimental-debug-variable-locations=false", c"-disable-lsr"];

/// Sets the options once per process.
pub(crate) fn set_options() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let arguments = ARGUMENTS.map(CStr::as_ptr);
        // SAFETY: the strings are static, and `Once` prevents concurrent writes of the options;
        // they are read only by compilations, which start after this call.
        unsafe { LLVMParseCommandLineOptions(arguments.len() as c_int, arguments.as_ptr(), std::ptr::null()) };
    });
}
