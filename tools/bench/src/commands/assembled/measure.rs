//! Assembles kernels before and after passes, and compares the results.

use super::PassSet;
use super::sources::Source;
use anyhow::Result;
use atoll_passes::{KernelReport, LoopDecision, PassOptions, analyze_idempotence, transform_with};
use atoll_proxy_kernels::{DeviceModel, KernelNeeds};
use atoll_ptx::Module;
use atoll_target_nvidia::{
    Architecture, AssembleReport, Assembled, InnerLoop, KernelResources, MachineCode, Ptxas, assemble_with_limits,
    machine_code, portable_text,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smallest acceptable share of inner-loop work that stays in inner loops.
const KEPT_MIN: f64 = 0.75;

/// Results of the measurement.
#[derive(Debug, Default, Serialize)]
pub(super) struct Measured {
    /// Kernels that the passes changed.
    pub(super) kernels: Vec<Row>,
    /// Kernels that the assembler refuses without passes.
    pub(super) refused: Vec<Refused>,
    /// Kernels that the assembler refuses only after passes.
    pub(super) faults: Vec<Refused>,
}

/// One kernel before and after a set of passes.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) source: String,
    pub(super) kernel: String,
    pub(super) architecture: String,
    pub(super) passes: String,
    pub(super) before: Figures,
    pub(super) after: Figures,
    /// Whether the registers were limited to those of the plain kernel.
    pub(super) held: bool,
    /// For kernels with checks in loops: the share of inner-loop work that is still in inner loops.
    pub(super) inner_kept: Option<f64>,
}

/// Resources of a kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) registers: u32,
    /// Spilled bytes per thread.
    pub(super) spill_bytes: u32,
    pub(super) instructions: u32,
    /// Resident warps per compute unit, if a device of the architecture is known.
    pub(super) warps: Option<u32>,
}

/// A kernel that the assembler refuses.
#[derive(Debug, Serialize)]
pub(super) struct Refused {
    source: String,
    kernel: String,
    architecture: String,
    /// The passes that were run before; `None` for none.
    passes: Option<String>,
    reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passes = self.passes.as_ref().map_or(String::new(), |passes| format!(" after {passes}"));
        let reason =
            self.reason.lines().find(|line| line.contains("error") || line.contains("fatal")).unwrap_or(&self.reason);
        write!(f, "{} of {}{passes} is not assembled for {}: {reason}", self.kernel, self.source, self.architecture)
    }
}

impl Row {
    /// Whether the kernel lost performance in a way that users would notice.
    pub(super) fn loses(&self) -> bool {
        self.loses_warps() || self.spills_more() || self.inner_kept.is_some_and(|kept| kept < KEPT_MIN)
    }

    pub(super) fn loses_warps(&self) -> bool {
        self.after.warps < self.before.warps
    }

    pub(super) fn spills_more(&self) -> bool {
        self.after.spill_bytes > self.before.spill_bytes
    }
}

/// Measures every source for every architecture, on all cores.
pub(super) fn measure(
    sources: &[Source],
    architectures: &[Architecture],
    sets: &[PassSet],
    ptxas: &Ptxas,
) -> Result<Measured> {
    let tasks: Vec<(&Source, Architecture)> =
        sources.iter().flat_map(|source| architectures.iter().map(move |&a| (source, a))).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, Result<Measured>>> = Mutex::default();
    let work = || {
        while let Some((index, &(source, architecture))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, tasks.get(i)?)))
        {
            let measured = Bench { source, architecture, ptxas }.measure(sets);
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(index, measured);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut all = Measured::default();
    for measured in done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_values() {
        let measured = measured?;
        all.kernels.extend(measured.kernels);
        all.refused.extend(measured.refused);
        all.faults.extend(measured.faults);
    }
    Ok(all)
}

/// One kernel on one architecture.
struct Bench<'a> {
    source: &'a Source,
    architecture: Architecture,
    ptxas: &'a Ptxas,
}

/// Output of the assembler.
struct Made {
    report: AssembleReport,
    resources: KernelResources,
    code: MachineCode,
    /// Whether its registers were limited.
    held: bool,
}

impl Bench<'_> {
    fn measure(&self, sets: &[PassSet]) -> Result<Measured> {
        let mut measured = Measured::default();
        let plain = self.source.module_for(self.architecture);
        let before = match self.assemble_plain(&plain) {
            Ok(made) => made,
            Err(error) => {
                measured.refused.push(self.refused(None, &error));
                return Ok(measured);
            }
        };
        let options = self.pass_options(&plain);
        for set in sets {
            let mut module = plain.clone();
            let report = transform_with(&mut module, &set.passes, &options, &mut |_, _| {})?;
            let report = report.kernels.first().filter(|_| module != plain);
            match report.map(|report| Ok((report, self.assemble_with_limits(&module, &before)?))) {
                Some(Ok((report, after))) => measured.kernels.push(self.row(set, report, &before, &after)),
                Some(Err(error)) => measured.faults.push(self.refused(Some(set), &error)),
                None => {}
            }
        }
        Ok(measured)
    }

    fn pass_options(&self, module: &Module) -> PassOptions {
        let again = module.kernels().filter(|kernel| analyze_idempotence(module, kernel).holds_on_buffers_apart());
        let may_run_again = again.map(|kernel| kernel.name.clone()).collect();
        PassOptions { blocks: self.source.blocks(), may_run_again, ..PassOptions::default() }
    }

    fn assemble_plain(&self, module: &Module) -> Result<Made> {
        let assembled =
            self.ptxas.assemble(&portable_text(module, self.architecture)?, &self.architecture.to_string())?;
        self.made(assembled, false)
    }

    /// Assembles as `atoll compile --assemble` does.
    fn assemble_with_limits(&self, module: &Module, plain: &Made) -> Result<Made> {
        let limited = assemble_with_limits(self.ptxas, module, self.architecture, &plain.report)?;
        self.made(limited.assembled, !limited.limits.is_empty())
    }

    fn made(&self, assembled: Assembled, held: bool) -> Result<Made> {
        let kernel = self.source.kernel.as_str();
        let code = machine_code(&assembled.cubin, self.architecture)?.remove(kernel).unwrap_or_default();
        let resources = assembled.report.kernels.get(kernel).copied().unwrap_or_default();
        Ok(Made { report: assembled.report, resources, code, held })
    }

    fn refused(&self, set: Option<&PassSet>, error: &anyhow::Error) -> Refused {
        Refused {
            source: self.source.origin.clone(),
            kernel: self.source.kernel.to_string(),
            architecture: self.architecture.to_string(),
            passes: set.map(|set| set.name.clone()),
            reason: format!("{error:#}").trim_end().to_owned(),
        }
    }

    fn row(&self, set: &PassSet, report: &KernelReport, before: &Made, after: &Made) -> Row {
        let checked = report.loops.iter().any(|found| matches!(found.decision, LoopDecision::Checked { .. }));
        Row {
            source: self.source.origin.clone(),
            kernel: self.source.kernel.to_string(),
            architecture: self.architecture.to_string(),
            passes: set.name.clone(),
            before: self.figures(before, 0),
            after: self.figures(after, report.shared_bytes),
            held: after.held,
            inner_kept: if checked { kept(&before.code.inner_loops, &after.code.inner_loops) } else { None },
        }
    }

    /// `dynamic_bytes` is shared memory set at launch, which the assembler does not know.
    fn figures(&self, made: &Made, dynamic_bytes: u32) -> Figures {
        let Made { resources, code, .. } = made;
        let shared_bytes = resources.shared_bytes + dynamic_bytes;
        let needs = KernelNeeds { registers: resources.registers, shared_bytes, threads: self.source.block_threads() };
        Figures {
            registers: resources.registers,
            spill_bytes: resources.spill_bytes(),
            instructions: code.instructions,
            warps: device(self.architecture).map(|device| device.occupancy(needs).warps),
        }
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

/// The share of inner-loop work that is still in inner loops; loops are matched by their rank in
/// work. `None` if there was none.
fn kept(before: &[InnerLoop], after: &[InnerLoop]) -> Option<f64> {
    let ranked = |loops: &[InnerLoop]| {
        let mut works: Vec<u32> = loops.iter().map(|l| l.work).collect();
        works.sort_unstable_by(|a, b| b.cmp(a));
        works
    };
    let (before, after) = (ranked(before), ranked(after));
    let all: u32 = before.iter().sum();
    let still: u32 = before.iter().zip(&after).map(|(before, after)| before.min(after)).sum();
    (all > 0).then(|| f64::from(still) / f64::from(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_compared_by_rank() {
        let loops = |works: &[u32]| -> Vec<InnerLoop> {
            works.iter().map(|&work| InnerLoop { instructions: 2 * work, work }).collect()
        };
        assert_eq!(kept(&loops(&[4, 60]), &loops(&[60, 8, 4])), Some(1.0));
        assert_eq!(kept(&loops(&[64]), &loops(&[16, 16, 16])), Some(0.25));
        assert_eq!(kept(&loops(&[0]), &loops(&[1])), None);
        assert_eq!(kept(&loops(&[8]), &[]), Some(0.0));
    }
}
