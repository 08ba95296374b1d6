//! A graph with the functions and built-ins that its stages run, shared by all its requests.

use super::costs::Costs;
use super::counts::Counts;
use super::manifest::metadata;
use super::stage::{Shared, StageWork};
use crate::inference::blocking;
use crate::model::Model;
use atoll_core::graphs::{Graph, Source};
use atoll_engine::{DeviceId, Retain};
use atoll_protocol::TensorMetadata;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a request waits for the plans of its graph. After that it runs without a plan.
const PLAN_WAIT: Duration = Duration::from_secs(1);

/// A checked graph, with the functions and built-ins that its stages run.
pub(crate) struct GraphWork {
    pub(crate) graph: Graph,
    pub(crate) works: Vec<StageWork>,
    /// For each stage the indices of the outputs that are used, ascending.
    pub(super) used: Vec<Vec<usize>>,
    /// For each stage the outputs to leave on the device of its function.
    pub(super) retain: Vec<Vec<Retain>>,
    /// The most functions that a request runs at one time.
    width: u64,
    pub(super) shared: Shared,
    pub(crate) costs: Costs,
    /// Counter from which requests without an id get one.
    pub(super) unnamed: AtomicU64,
}

impl GraphWork {
    pub(super) fn new(graph: Graph, works: Vec<StageWork>, shared: Shared, costs: Costs) -> GraphWork {
        let mut used = vec![Vec::new(); works.len()];
        let within = graph.stages().iter().flat_map(|stage| {
            let value = stage.when.iter().map(|condition| &condition.value);
            stage.inputs.iter().chain(stage.otherwise.iter().flatten()).chain(value)
        });
        for source in within.chain(graph.outputs().iter().map(|output| &output.source)) {
            if let Source::Output { stage, output } = *source {
                used[stage].push(output);
            }
        }
        for outputs in &mut used {
            outputs.sort_unstable();
            outputs.dedup();
        }
        let width = graph.width(|stage| matches!(works[stage], StageWork::Function(_))) as u64;
        let retain = to_retain(&graph, &works);
        GraphWork { graph, works, used, retain, width, shared, costs, unnamed: AtomicU64::new(0) }
    }

    /// Counts inputs of a function that other functions made: bytes that it took from memory of its
    /// device, and bytes that were copied through host memory.
    pub(super) fn note_moved(&self, handed_over: u64, copied: u64) {
        self.shared.counts.note_moved(handed_over, copied);
        if let Some(desk) = self.costs.desk() {
            desk.counts.handed_over_bytes.fetch_add(handed_over, Ordering::Relaxed);
            desk.counts.copied_bytes.fetch_add(copied, Ordering::Relaxed);
        }
    }

    /// How many invocations a request counts as: the most that it has at one time, at least one.
    pub(crate) fn invocations(&self) -> u64 {
        self.width.max(1)
    }

    /// Makes the cost table if it is due. Waits until it is made, for at most [`PLAN_WAIT`] and not
    /// beyond the deadline. Returns how long it waited.
    pub(crate) async fn prepare(self: &Arc<GraphWork>, deadline: Option<Duration>) -> Duration {
        if !self.costs.is_due(&self.works) {
            return Duration::ZERO;
        }
        let (begun, work) = (Instant::now(), self.clone());
        let made = blocking(move || work.costs.make_table(&work.graph, &work.works));
        // After a timeout the table is still completed on its thread.
        drop(tokio::time::timeout(deadline.unwrap_or(PLAN_WAIT).min(PLAN_WAIT), made).await);
        begun.elapsed()
    }

    /// The functions that it calls.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<Model>> {
        let callees = self.works.iter().filter_map(|work| match work {
            StageWork::Function(callee) => Some(callee),
            StageWork::Builtin(_) | StageWork::Program(_) => None,
        });
        callees.flat_map(|callee| callee.models())
    }

    /// The devices of its first function, or device 0. Its requests are counted for the first one.
    pub(crate) fn devices(&self) -> Vec<DeviceId> {
        self.models().next().map_or_else(|| vec![DeviceId(0)], |model| model.devices.clone())
    }

    /// Counts of its requests so far.
    pub(crate) fn counts(&self) -> Counts {
        self.shared.counts.get()
    }

    pub(crate) fn inputs(&self) -> Vec<TensorMetadata> {
        self.graph.inputs().iter().map(metadata).collect()
    }

    pub(crate) fn outputs(&self) -> Vec<TensorMetadata> {
        self.graph.outputs().iter().map(|output| metadata(&output.tensor)).collect()
    }
}

/// For each stage, the outputs to leave on the device of its function: those that another function on
/// that device takes. They are also read to host memory if anything in the daemon needs them: a
/// built-in or CPU stage, a condition, a substitute, or the client.
fn to_retain(graph: &Graph, works: &[StageWork]) -> Vec<Vec<Retain>> {
    let (mut of_functions, mut of_host) = (BTreeSet::new(), BTreeSet::new());
    for (stage, work) in graph.stages().iter().zip(works) {
        let value = stage.when.iter().map(|condition| condition.value);
        of_host.extend(value.chain(stage.otherwise.iter().flatten().copied()).filter_map(output));
        for (input, source) in stage.inputs.iter().enumerate() {
            let Some((maker, made)) = output(*source) else { continue };
            match are_on_one_device(&works[maker], work, input) {
                true => of_functions.insert((maker, made)),
                false => of_host.insert((maker, made)),
            };
        }
    }
    of_host.extend(graph.outputs().iter().filter_map(|wanted| output(wanted.source)));
    let mut retain = vec![Vec::new(); works.len()];
    for (maker, output) in of_functions {
        retain[maker].push(Retain { output, with_bytes: of_host.contains(&(maker, output)) });
    }
    retain
}

/// The stage and the index of an output.
fn output(source: Source) -> Option<(usize, usize)> {
    match source {
        Source::Output { stage, output } => Some((stage, output)),
        Source::Input(_) => None,
    }
}

/// Whether a device has the functions of two stages, and the second one takes this input from it.
fn are_on_one_device(maker: &StageWork, taker: &StageWork, input: usize) -> bool {
    let (StageWork::Function(maker), StageWork::Function(taker)) = (maker, taker) else { return false };
    let devices = taker.devices();
    !taker.takes_sizes_from(input) && maker.devices().iter().any(|device| devices.contains(device))
}
