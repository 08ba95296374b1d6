//! Counts and times of requests by model, under Triton's names: what the engine has counted,
//! answers from the response cache, and requests of graphs.

use super::batches::function_of;
use super::metric::DeviceSnapshot;
use super::text::{Labels, Samples};
use crate::model::Model;
use atoll_engine::FunctionStatistics;

/// What was counted for a model on a device; times in nanoseconds.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) success: u64,
    pub(super) failure: u64,
    pub(super) inferences: u64,
    pub(super) executions: u64,
    pub(super) in_queue: u64,
    pub(super) request_ns: u64,
    pub(super) queue_ns: u64,
    pub(super) input_ns: u64,
    pub(super) compute_ns: u64,
    pub(super) output_ns: u64,
}

impl Counted {
    fn of_function(function: &FunctionStatistics) -> Counted {
        let FunctionStatistics { success, queue_ns, input_ns, compute_ns, output_ns, in_queue, .. } = *function;
        Counted {
            success,
            failure: function.failure + function.rejected,
            inferences: function.rows(),
            executions: function.executions(),
            in_queue,
            request_ns: queue_ns + input_ns + compute_ns + output_ns,
            queue_ns,
            input_ns,
            compute_ns,
            output_ns,
        }
    }

    /// Counts of a graph, on the device for which its requests count.
    fn of_graph(model: &Model) -> Counted {
        let counts = model.graph.as_ref().map(|graph| graph.counts()).unwrap_or_default();
        Counted {
            success: counts.success,
            failure: counts.failure,
            inferences: counts.rows,
            executions: counts.success,
            in_queue: 0,
            request_ns: counts.queue_ns + counts.input_ns + counts.compute_ns + counts.output_ns,
            queue_ns: counts.queue_ns,
            input_ns: counts.input_ns,
            compute_ns: counts.compute_ns,
            output_ns: counts.output_ns,
        }
    }

    /// Adds answers from the response cache. They have no inference and no parts.
    fn with_hits(mut self, model: &Model) -> Counted {
        let hits = model.cache_counts.hits();
        self.success += hits.count;
        self.request_ns += hits.ns;
        self
    }
}

/// One sample for each model on the device; 0 until its first request.
pub(super) fn per_function(
    snapshot: &DeviceSnapshot<'_>,
    out: &mut Samples<'_>,
    value: fn(&FunctionStatistics) -> u64,
) {
    for model in &snapshot.models {
        let labels: Labels<'_> = &[("model", &model.name), ("version", &model.version)];
        out.integer(labels, function_of(snapshot, model).map_or(0, value));
    }
}

/// One sample for each model on the device, and for each graph that counts there. Answers from the
/// response cache count on the first device of their model.
pub(super) fn per_model(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>, value: fn(&Counted) -> u64) {
    for model in &snapshot.models {
        let labels: Labels<'_> = &[("model", &model.name), ("version", &model.version)];
        let counted = function_of(snapshot, model).map(Counted::of_function).unwrap_or_default();
        let is_first = model.first_device() == snapshot.id;
        out.integer(labels, value(&if is_first { counted.with_hits(model) } else { counted }));
    }
    for graph in &snapshot.graphs {
        out.integer(&[("model", &graph.name), ("version", &graph.version)], value(&Counted::of_graph(graph)));
    }
}
