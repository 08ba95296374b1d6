//! `atoll doctor`

#[cfg(feature = "hip")]
mod amd_gpu;
#[cfg(feature = "native")]
mod cancel;
mod checks;
#[cfg(feature = "cuda")]
mod gpu;
mod groups;
#[cfg(feature = "native")]
mod interrupt;
mod jail;
#[cfg(feature = "cuda")]
mod list;
#[cfg(feature = "native")]
mod trial;

use crate::device_name::{DeviceName, GpuName};
use crate::engine::EngineArgs;
use crate::output::{print, print_json};
use anyhow::{Result, bail};
use atoll_device::Division;
use serde::Serialize;
use std::fmt::Write;

const EXAMPLES: &str = "\
Examples:
  atoll doctor
  atoll doctor --json
  atoll doctor --device cuda:1
  atoll doctor --device cuda:MIG-6d0b1c2e-7f31-5a88-9c54-2b1de0c7a9f3
  atoll doctor --device hip:0

Exits with 1 if models cannot run on this machine. The abilities of a device are measured, not queried.";

/// Check this machine: report what works, what is missing, and how to fix it
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Run static checks only; compile and run nothing
    #[arg(long)]
    quick: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    state: State,
    detail: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It works.
    Good,
    /// It is missing, but optional.
    Absent,
    /// It is broken or missing, and models cannot run without it.
    Bad,
}

impl Finding {
    fn good(what: &'static str, detail: impl Into<String>) -> Finding {
        Finding { what, state: State::Good, detail: detail.into(), remedy: None }
    }

    fn absent(what: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { what, state: State::Absent, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn bad(what: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { what, state: State::Bad, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let (DeviceName::Cuda(gpu), false) = (args.engine.device_name(), args.quick) {
        see_only(gpu)?;
    }
    let mut findings = checks::all();
    findings.extend(nvidia_gpus());
    if !args.quick && findings.iter().all(|finding| finding.state != State::Bad) {
        match args.engine.device_name() {
            DeviceName::Host => {
                findings.push(jail::finding(&args.engine));
                findings.push(groups::finding());
                findings.push(shares(&[Division::Threads]));
                findings.extend(trials(args));
            }
            DeviceName::Cuda(name) => findings.extend(gpu(name)),
            DeviceName::Hip(index) => {
                findings.push(amd_gpu(index));
                if findings.iter().all(|finding| finding.state != State::Bad) {
                    findings.push(shares(&[Division::UnitMasks]));
                }
            }
        }
    }
    if args.json {
        print_json(&findings)?;
    } else {
        print(&text(&findings))?;
    }
    if findings.iter().any(|finding| finding.state == State::Bad) {
        bail!("models cannot run on this machine; see the findings marked !!");
    }
    Ok(())
}

/// What the ways to divide a device guarantee to clients with shares.
fn shares(divisions: &[Division]) -> Finding {
    let divisions: Vec<String> = divisions.iter().map(Division::to_string).collect();
    Finding::good("shares", divisions.join(". "))
}

#[cfg(feature = "cuda")]
fn see_only(name: GpuName) -> Result<()> {
    gpu::see_only(name)
}

#[cfg(not(feature = "cuda"))]
fn see_only(_: GpuName) -> Result<()> {
    Ok(())
}

#[cfg(feature = "cuda")]
fn nvidia_gpus() -> Vec<Finding> {
    list::findings()
}

#[cfg(not(feature = "cuda"))]
fn nvidia_gpus() -> Vec<Finding> {
    Vec::new()
}

#[cfg(feature = "cuda")]
fn gpu(name: GpuName) -> Vec<Finding> {
    gpu::findings(name)
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: GpuName) -> Vec<Finding> {
    vec![Finding::bad(
        "GPU",
        "this program was built without support for NVIDIA GPUs",
        "build it with the cargo feature `cuda`",
    )]
}

#[cfg(feature = "hip")]
fn amd_gpu(index: u32) -> Finding {
    amd_gpu::finding(index)
}

#[cfg(not(feature = "hip"))]
fn amd_gpu(_: u32) -> Finding {
    Finding::bad("GPU", "this program was built without support for AMD GPUs", "build it with the cargo feature `hip`")
}

#[cfg(feature = "native")]
fn trials(args: &Args) -> Vec<Finding> {
    trial::all(&args.engine)
}

#[cfg(not(feature = "native"))]
fn trials(_: &Args) -> Vec<Finding> {
    vec![Finding::absent(
        "preemption",
        "not measured: this program was built without LLVM",
        "build it with the cargo feature `llvm22`",
    )]
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for finding in findings {
        let mark = match finding.state {
            State::Good => "ok",
            State::Absent => "--",
            State::Bad => "!!",
        };
        let _ = writeln!(text, "{mark}  {:<12} {}", finding.what, finding.detail);
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "    {:<12} → {remedy}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_the_divisions_of_a_device_guarantee() {
        let text = text(&[shares(&[Division::Threads, Division::Mig])]);
        assert_eq!(
            text,
            "ok  shares       lanes of the host: compute units of a client: exactly its own; memory bandwidth: shared; \
             a fault ends: the process of its tenant. MIG: compute units of a client: exactly its own; memory \
             bandwidth: its own; a fault ends: the instance\n"
        );
    }
}
