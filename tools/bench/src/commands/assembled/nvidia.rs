//! Machine code for NVIDIA GPUs, by `ptxas`.

use super::measure::{Assembler, Figures, Made};
use super::sources::Source;
use anyhow::Result;
use atoll_proxy_kernels::{DeviceModel, KernelNeeds};
use atoll_ptx::Module;
use atoll_target_nvidia::{Architecture, Ptxas, assemble_with_limits, machine_code, portable_text};

/// The assembler for an architecture.
pub(super) struct Nvidia<'a> {
    pub(super) ptxas: &'a Ptxas,
    pub(super) architecture: Architecture,
}

impl Assembler for Nvidia<'_> {
    fn module(&self, source: &Source) -> Module {
        source.module_for(self.architecture)
    }

    /// Limits registers as `atoll compile --assemble` does.
    fn assemble(&self, source: &Source, module: &Module, dynamic_bytes: u32, plain: Option<&Made>) -> Result<Made> {
        let Nvidia { ptxas, architecture } = *self;
        let (assembled, held) = match plain.and_then(|plain| plain.report.as_ref()) {
            Some(plain) => {
                let limited = assemble_with_limits(ptxas, module, architecture, plain)?;
                (limited.assembled, !limited.limits.is_empty())
            }
            None => (ptxas.assemble(&portable_text(module, architecture)?, &architecture.to_string())?, false),
        };
        let kernel = source.kernel.as_str();
        let code = machine_code(&assembled.cubin, architecture)?.remove(kernel).unwrap_or_default();
        let resources = assembled.report.kernels.get(kernel).copied().unwrap_or_default();
        let needs = KernelNeeds {
            registers: resources.registers,
            shared_bytes: resources.shared_bytes + dynamic_bytes,
            threads: source.block_threads(),
        };
        let figures = Figures {
            registers: resources.registers,
            spill_bytes: resources.spill_bytes(),
            instructions: code.instructions,
            warps: device(architecture).map(|device| device.occupancy(needs).warps),
        };
        Ok(Made { figures, inner_loops: code.inner_loops, held, report: Some(assembled.report) })
    }
}

/// A device with this architecture.
fn device(architecture: Architecture) -> Option<&'static DeviceModel> {
    DeviceModel::find(match architecture.sm() {
        75 => "t4",
        80 => "a100",
        86 => "a10",
        87 => "jetson-orin",
        89 => "rtx-4090",
        90 => "h100",
        100 | 103 => "b200",
        110 => "jetson-thor",
        120 | 121 => "rtx-5090",
        _ => return None,
    })
}
