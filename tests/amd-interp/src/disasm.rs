//! LLVM's disassembler: the text of one instruction from its bytes.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Once;

use inkwell::llvm_sys::disassembler::{
    LLVMCreateDisasmCPUFeatures, LLVMDisasmContextRef, LLVMDisasmDispose, LLVMDisasmInstruction,
};
use inkwell::llvm_sys::target::{LLVMInitializeAMDGPUTargetInfo, LLVMInitializeAMDGPUTargetMC};

unsafe extern "C" {
    // LLVM exports this function, but the bindings do not declare it for this target.
    safe fn LLVMInitializeAMDGPUDisassembler();
}

const TRIPLE: &str = "amdgcn-amd-amdhsa";

/// Maximum length of an instruction's text in bytes. LLVM truncates longer texts, and the parser
/// refuses those.
const LONGEST: usize = 512;

/// A disassembler for one architecture and wave size.
pub(crate) struct Disassembler {
    context: LLVMDisasmContextRef,
}

// SAFETY: a context is not tied to the thread that created it, and `text` needs `&mut self`, so one
// thread at a time uses it.
unsafe impl Send for Disassembler {}

impl Disassembler {
    /// A disassembler for a processor; `None` if LLVM does not know it.
    pub(crate) fn new(processor: &str, wave_size: u32) -> Option<Self> {
        static READY: Once = Once::new();
        READY.call_once(|| {
            // SAFETY: plain registrations, once per process.
            unsafe {
                LLVMInitializeAMDGPUTargetInfo();
                LLVMInitializeAMDGPUTargetMC();
            }
            LLVMInitializeAMDGPUDisassembler();
        });
        let features = match (wave_size, processor.starts_with("gfx9")) {
            (_, true) => String::new(),
            (size, false) => format!("+wavefrontsize{size}"),
        };
        let text = |s: &str| CString::new(s).expect("names have no zero byte");
        let (triple, processor, features) = (text(TRIPLE), text(processor), text(&features));
        let none: *mut c_void = ptr::null_mut();
        // SAFETY: three C strings that live through the call, and no callbacks.
        let context = unsafe {
            LLVMCreateDisasmCPUFeatures(
                triple.as_ptr(),
                processor.as_ptr(),
                features.as_ptr(),
                none.cast(),
                0,
                None,
                None,
            )
        };
        (!context.is_null()).then_some(Self { context })
    }

    /// The text and the size in bytes of the first instruction in `bytes`, whose address is
    /// `address`.
    pub(crate) fn text(&mut self, bytes: &[u8], address: u64) -> Option<(String, usize)> {
        let mut bytes = bytes[..bytes.len().min(24)].to_vec();
        let mut out = [0u8; LONGEST];
        // SAFETY: both pointers are valid for the lengths passed with them; LLVM ends the text with
        // a NUL.
        let size = unsafe {
            LLVMDisasmInstruction(
                self.context,
                bytes.as_mut_ptr(),
                bytes.len() as u64,
                address,
                out.as_mut_ptr().cast::<c_char>(),
                LONGEST,
            )
        };
        let end = out.iter().position(|&b| b == 0)?;
        let text = std::str::from_utf8(&out[..end]).ok()?.trim().to_owned();
        (size > 0 && !text.is_empty()).then_some((text, size))
    }
}

impl Drop for Disassembler {
    fn drop(&mut self) {
        // SAFETY: the context was made by `LLVMCreateDisasmCPUFeatures` and is disposed of once.
        unsafe { LLVMDisasmDispose(self.context) }
    }
}
