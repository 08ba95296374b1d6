//! Assembles kernels before and after passes, and compares the results.

use super::PassSet;
use super::sources::Source;
use anyhow::Result;
use atoll_passes::{KernelReport, LoopDecision, PassOptions, analyze_idempotence, transform_with};
use atoll_ptx::Module;
use atoll_target_nvidia::{AssembleReport, InnerLoop};
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
    /// Resident warps per compute unit, if a device of the architecture is known. On AMD GPUs waves
    /// per SIMD.
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

impl Measured {
    /// Adds other results.
    pub(super) fn add(&mut self, other: Measured) {
        self.kernels.extend(other.kernels);
        self.refused.extend(other.refused);
        self.faults.extend(other.faults);
    }
}

/// Makes machine code for one architecture.
pub(super) trait Assembler {
    /// The source's module, in the form that can be assembled for the architecture.
    fn module(&self, source: &Source) -> Module;

    /// Assembles the kernel of a source. `dynamic_bytes` is shared memory set at launch, which the
    /// assembler does not know. `plain` is the code before the passes, if they have run: the
    /// registers may be limited to those of it.
    fn assemble(&self, source: &Source, module: &Module, dynamic_bytes: u32, plain: Option<&Made>) -> Result<Made>;
}

/// An assembler, with the name of its architecture.
pub(super) type Named<'a> = (String, Box<dyn Assembler + Sync + 'a>);

/// Machine code.
pub(super) struct Made {
    pub(super) figures: Figures,
    pub(super) inner_loops: Vec<InnerLoop>,
    /// Whether its registers were limited.
    pub(super) held: bool,
    /// The report of NVIDIA's assembler.
    pub(super) report: Option<AssembleReport>,
}

/// Measures every source for every architecture, on all cores.
pub(super) fn measure(sources: &[Source], architectures: &[Named<'_>], sets: &[PassSet]) -> Result<Measured> {
    let tasks: Vec<(&Source, &Named<'_>)> =
        sources.iter().flat_map(|source| architectures.iter().map(move |named| (source, named))).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, Result<Measured>>> = Mutex::default();
    let work = || {
        while let Some((index, &(source, (architecture, assembler)))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, tasks.get(i)?)))
        {
            let measured = Bench { source, architecture, assembler: &**assembler }.measure(sets);
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(index, measured);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut all = Measured::default();
    for measured in done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).into_values() {
        all.add(measured?);
    }
    Ok(all)
}

/// One kernel on one architecture.
struct Bench<'a> {
    source: &'a Source,
    architecture: &'a str,
    assembler: &'a dyn Assembler,
}

impl Bench<'_> {
    fn measure(&self, sets: &[PassSet]) -> Result<Measured> {
        let mut measured = Measured::default();
        let plain = self.assembler.module(self.source);
        let before = match self.assembler.assemble(self.source, &plain, 0, None) {
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
            let Some(report) = report.kernels.first().filter(|_| module != plain) else { continue };
            match self.assembler.assemble(self.source, &module, report.shared_bytes, Some(&before)) {
                Ok(after) => measured.kernels.push(self.row(set, report, &before, &after)),
                Err(error) => measured.faults.push(self.refused(Some(set), &error)),
            }
        }
        Ok(measured)
    }

    fn pass_options(&self, module: &Module) -> PassOptions {
        let again = module.kernels().filter(|kernel| analyze_idempotence(module, kernel).holds_on_buffers_apart());
        let may_run_again = again.map(|kernel| kernel.name.clone()).collect();
        PassOptions { blocks: self.source.blocks(), may_run_again, ..PassOptions::default() }
    }

    fn refused(&self, set: Option<&PassSet>, error: &anyhow::Error) -> Refused {
        Refused {
            source: self.source.origin.clone(),
            kernel: self.source.kernel.to_string(),
            architecture: self.architecture.to_owned(),
            passes: set.map(|set| set.name.clone()),
            reason: format!("{error:#}").trim_end().to_owned(),
        }
    }

    fn row(&self, set: &PassSet, report: &KernelReport, before: &Made, after: &Made) -> Row {
        let checked = report.loops.iter().any(|found| matches!(found.decision, LoopDecision::Checked { .. }));
        Row {
            source: self.source.origin.clone(),
            kernel: self.source.kernel.to_string(),
            architecture: self.architecture.to_owned(),
            passes: set.name.clone(),
            before: before.figures,
            after: after.figures,
            held: after.held,
            inner_kept: if checked { kept(&before.inner_loops, &after.inner_loops) } else { None },
        }
    }
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
