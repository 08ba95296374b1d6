//! `atoll doctor`

use crate::output;
use anyhow::Result;
use atoll_device::Device;
use atoll_device::host::{HostConfig, HostDevice};
use serde_json::json;
use std::process::Command;

/// Show what this machine can do, and what to do about what is missing
#[derive(clap::Args)]
#[command(after_help = "Example:\n  atoll doctor --json")]
pub(crate) struct Doctor {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// One finding.
struct Finding {
    what: &'static str,
    /// Whether it is there; what is optional is never a failure.
    found: bool,
    detail: String,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<()> {
        let findings = [host(), linker(), ptxas(), cuda()];
        if self.json {
            let rows: Vec<_> = findings.iter().map(|f| json!({"what": f.what, "found": f.found, "detail": f.detail})).collect();
            return output::json(&rows);
        }
        for finding in &findings {
            output::line(format!("{:<4} {:<13} {}", if finding.found { "ok" } else { "-" }, finding.what, finding.detail));
        }
        Ok(())
    }
}

/// The host device: started for real, so that what is printed was seen.
fn host() -> Finding {
    let (found, detail) = match HostDevice::start(HostConfig::default()) {
        Ok(device) => {
            let info = device.info();
            let memory = output::bytes(info.memory_bytes);
            let targets = info.targets.join(", ");
            let level = match info.preempt_level {
                atoll_core::PreemptLevel::Block => "stops submitting",
                atoll_core::PreemptLevel::Deactivate => "queued kernels leave",
                atoll_core::PreemptLevel::Interrupt => "running kernels are stopped",
            };
            if info.targets.is_empty() {
                (false, "this CPU has no AVX2 and FMA (x86-64-v3), which native kernels need".into())
            } else {
                (true, format!("{}, {} compute units, {memory}; runs {targets}; preemption: {level}", info.name, info.compute_units))
            }
        }
        Err(error) => (false, error.to_string()),
    };
    Finding { what: "host device", found, detail }
}

/// What compiling for the host needs at run time.
fn linker() -> Finding {
    let what = "compiler";
    if !cfg!(feature = "compiler") {
        return Finding { what, found: false, detail: "this program was built without it; it serves bundles that hold native code".into() };
    }
    let version = ["ld.lld-22", "ld.lld-19", "ld.lld"].into_iter().find_map(|name| Some((name, first_line(name, "--version")?)));
    match version {
        Some((name, version)) => Finding { what, found: true, detail: format!("built in; links with {name} ({version})") },
        None => Finding { what, found: false, detail: "no lld: `apt-get install lld-22`; bundles that hold native code still serve".into() },
    }
}

fn first_line(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_string())
}

fn ptxas() -> Finding {
    let what = "ptxas";
    match atoll_target_nvidia::find_ptxas() {
        Some(ptxas) => Finding { what, found: true, detail: ptxas.path().display().to_string() },
        None => Finding { what, found: false, detail: "optional, tells registers and spills: `pip install nvidia-cuda-nvcc-cu12`".into() },
    }
}

fn cuda() -> Finding {
    let what = "NVIDIA driver";
    // SAFETY: loading libcuda runs its initialisers, as every CUDA program does.
    match unsafe { libloading::Library::new("libcuda.so.1") } {
        Ok(_) => Finding { what, found: true, detail: "libcuda.so.1 loads; run tools/gpu-probe to see what it can do (no NVIDIA device is driven yet)".into() },
        Err(_) => Finding { what, found: false, detail: "no libcuda.so.1: kernels run on the host device".into() },
    }
}
