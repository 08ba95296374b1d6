//! Collects the code of one target after another and writes the bundle.

use crate::code::compile_target;
use crate::error::CompileError;
use crate::kernels::Kernels;
use crate::observer::{Clock, Observer};
use crate::options::CompileOptions;
use crate::stage::{Stage, StageTime};
use crate::targets::Target;
use atoll_kgraph::{BundleContents, KernelGraph, TargetContents, write_bundle};
use atoll_passes::{KernelReport, Preemption};
use std::path::Path;

/// Identifies this compiler in bundles and caches.
pub const PRODUCER: &str = concat!("atoll ", env!("CARGO_PKG_VERSION"));

/// Summary of a compilation.
#[derive(Clone, Debug)]
pub struct CompileReport {
    /// Digest of the bundle.
    pub digest: String,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Number of distinct kernels, per target.
    pub kernels: Vec<(Target, usize)>,
    /// Kernels that are not preemptible, with the reason.
    pub not_preemptible: Vec<String>,
    /// Duration of each stage.
    pub times: Vec<StageTime>,
}

/// A bundle under construction.
pub(crate) struct BundleBuilder<'a> {
    graph: &'a KernelGraph,
    weights: Vec<(u64, &'a [u8])>,
    targets: Vec<TargetContents>,
    report: CompileReport,
}

impl<'a> BundleBuilder<'a> {
    pub(crate) fn new(graph: &'a KernelGraph, weights: Vec<(u64, &'a [u8])>) -> BundleBuilder<'a> {
        let report = CompileReport {
            digest: String::new(),
            nodes: graph.nodes.len(),
            kernels: Vec::new(),
            not_preemptible: Vec::new(),
            times: Vec::new(),
        };
        BundleBuilder { graph, weights, targets: Vec::new(), report }
    }

    /// Compiles the kernels for a target and adds the code.
    pub(crate) fn add(
        &mut self,
        kernels: Kernels,
        target: Target,
        options: &CompileOptions,
        clock: &mut Clock<'_>,
        observer: &dyn Observer,
    ) -> Result<(), CompileError> {
        let (contents, reports) = compile_target(kernels, target, options, clock, observer)?;
        self.report.kernels.push((target, contents.image.kernels.len()));
        self.report.not_preemptible.extend(reports.iter().filter_map(|kernel| not_preemptible(target, kernel)));
        self.targets.push(contents);
        Ok(())
    }

    pub(crate) fn write(mut self, output: &Path, mut clock: Clock<'_>) -> Result<CompileReport, CompileError> {
        let contents = BundleContents {
            producer: PRODUCER.into(),
            graph: self.graph,
            weights: self.weights,
            targets: self.targets,
        };
        self.report.digest =
            clock.stage(Stage::Write, || write_bundle(output, &contents).map_err(CompileError::from))?;
        self.report.times = clock.finish();
        Ok(self.report)
    }
}

fn not_preemptible(target: Target, kernel: &KernelReport) -> Option<String> {
    match &kernel.preemption {
        Preemption::NotPreemptible(reason) => Some(format!("{}: {}: {reason}", target.name(), kernel.name)),
        _ => None,
    }
}
