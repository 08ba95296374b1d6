//! Proxy kernels: launched in place of kernels of the same code object, to which they jump.
//!
//! The assembly of a proxy comes from `atoll_proxy_kernels`. Here it becomes a kernel with the
//! attributes of all others, so its entry has the same registers, and with the static shared memory
//! of the kernel that needs the most. [`check`] compares the waves and registers of the linked
//! kernels: a kernel runs with those of the proxy.

use crate::abi;
use crate::emit::{EmittedKernel, quoted};
use crate::error::AmdError;
use crate::facts::KernelFacts;

/// A kernel of inline assembly that jumps to the kernels of its code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its name.
    pub name: String,
    /// Bytes of its parameter block, which is also that of the kernels.
    pub params_bytes: u32,
    /// Maximum number of threads of a block.
    pub threads: u32,
    /// The assembly. `$0` is the address of the kernarg segment, `$1` the block's index in x.
    pub assembly: String,
    /// The constraints of the assembly in LLVM's syntax.
    pub constraints: String,
}

/// Allocation granularity of scalar registers on GFX9; later architectures do not count them.
const SCALAR_GRANULE: u32 = 16;

/// The least allocation granularity of vector registers.
const VECTOR_GRANULE: u32 = 4;

impl Proxy {
    /// The function, with an attribute group.
    pub(crate) fn definition(&self, attributes: usize) -> String {
        let assembly: String = self.assembly.lines().map(|line| format!("{line}\\0A")).collect();
        format!(
            "define protected amdgpu_kernel void \
             @{}(ptr addrspace(4) noundef byref([{} x i8]) align 16 %kernarg) #{attributes} {{\n\
             %block = call i32 @llvm.amdgcn.workgroup.id.x()\n\
             call void asm sideeffect \"{assembly}\", \"{}\"(ptr addrspace(4) %kernarg, i32 %block)\n\
             unreachable\n}}\n",
            quoted(&self.name),
            abi::kernarg_bytes(self.params_bytes),
            self.constraints,
        )
    }
}

/// Static shared memory of a proxy in bytes: as much as the kernel that needs the most.
pub(crate) fn shared_bytes(kernels: &[EmittedKernel]) -> u32 {
    kernels.iter().map(|kernel| kernel.shared_bytes).max().unwrap_or(0)
}

/// Checks that every kernel can run with the resources of a proxy.
///
/// # Errors
/// [`AmdError::NotInProxy`] for the first that cannot.
pub(crate) fn check(kernels: &[KernelFacts], proxy: &KernelFacts) -> Result<(), AmdError> {
    for (index, kernel) in kernels.iter().enumerate() {
        let scalars = |facts: &KernelFacts| facts.sgprs.next_multiple_of(SCALAR_GRANULE);
        let reason = if kernel.wave_lanes != proxy.wave_lanes {
            format!("its waves have {} lanes, those of the proxy {}", kernel.wave_lanes, proxy.wave_lanes)
        } else if kernel.vgprs > proxy.vgprs.next_multiple_of(VECTOR_GRANULE) {
            format!("it has {} vector registers, the proxy {}", kernel.vgprs, proxy.vgprs)
        } else if scalars(kernel) > scalars(proxy) {
            format!("it has {} scalar registers, the proxy {}", kernel.sgprs, proxy.sgprs)
        } else if kernel.agprs > 0 {
            format!("it has {} accumulators", kernel.agprs)
        } else if kernel.scratch_bytes > 0 {
            format!("a thread has {} bytes of scratch memory", kernel.scratch_bytes)
        } else {
            continue;
        };
        return Err(AmdError::NotInProxy { kernel: kernel.name.clone(), index, reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_needs_what_the_proxy_lacks_is_refused() {
        let proxy = KernelFacts { vgprs: 64, sgprs: 80, wave_lanes: 64, ..KernelFacts::default() };
        let kernel = KernelFacts { name: "k".to_owned(), vgprs: 40, sgprs: 30, ..proxy.clone() };
        let reason = |kernel: KernelFacts| match check(&[proxy.clone(), kernel], &proxy) {
            Err(AmdError::NotInProxy { kernel, index: 1, reason }) if kernel == "k" => reason,
            other => panic!("{other:?}"),
        };
        assert!(check(std::slice::from_ref(&kernel), &proxy).is_ok());
        let narrow = reason(KernelFacts { wave_lanes: 32, ..kernel.clone() });
        assert_eq!(narrow, "its waves have 32 lanes, those of the proxy 64");
        assert_eq!(reason(KernelFacts { vgprs: 65, ..kernel.clone() }), "it has 65 vector registers, the proxy 64");
        assert_eq!(reason(KernelFacts { sgprs: 81, ..kernel.clone() }), "it has 81 scalar registers, the proxy 80");
        assert!(reason(KernelFacts { agprs: 4, ..kernel.clone() }).contains("accumulators"));
        assert!(reason(KernelFacts { scratch_bytes: 16, ..kernel }).contains("16 bytes of scratch memory"));
    }
}
