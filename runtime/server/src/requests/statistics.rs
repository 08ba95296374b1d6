//! Statistics of each model: counts, and durations by phase.

use super::error::RequestError;
use crate::app::App;
use crate::cache_counts::Looked;
use crate::graphs::Counts;
use crate::model::Model;
use crate::threads::for_client;
use atoll_engine::FunctionStatistics;
use atoll_protocol::{BatchStatistics, DurationStatistics, InferenceStatistics, ModelStatistics, ModelStatisticsList};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The statistics of these models.
pub(crate) async fn statistics(app: &App, models: Vec<Arc<Model>>) -> Result<ModelStatisticsList, RequestError> {
    let engine = app.engine.clone();
    let devices = for_client(move || engine.statistics()).await.ok_or_else(RequestError::panicked)?;
    let of = |model: &Arc<Model>| {
        let functions = model.on_its_devices(&devices).flat_map(|engine| &engine.functions);
        let counts: Vec<&FunctionStatistics> = functions.filter(|function| function.key == model.key).collect();
        match &model.graph {
            Some(graph) => graph_entry(model, graph.counts()),
            None if model.decoder.is_some() => generation_entry(model, &counts),
            None => entry(model, &counts),
        }
    };
    Ok(ModelStatisticsList { model_stats: models.iter().map(of).collect() })
}

/// The statistics of a model: the sums over its devices.
fn entry(model: &Model, counts: &[&FunctionStatistics]) -> ModelStatistics {
    let sum = |of: fn(&FunctionStatistics) -> u64| counts.iter().map(|function| of(function)).sum::<u64>();
    let success = sum(|f| f.success);
    let part = |of: fn(&FunctionStatistics) -> u64| DurationStatistics { count: success, ns: sum(of) };
    let looked = |Looked { count, ns }: Looked| DurationStatistics { count, ns };
    let (hits, misses) = (looked(model.cache_counts.hits()), looked(model.cache_counts.misses()));
    let run = part(|f| f.queue_ns + f.input_ns + f.compute_ns + f.output_ns);
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.clone(),
        last_inference: model.last_inference_ms(),
        inference_count: sum(FunctionStatistics::rows),
        execution_count: sum(FunctionStatistics::executions),
        inference_stats: InferenceStatistics {
            success: DurationStatistics { count: run.count + hits.count, ns: run.ns + hits.ns },
            fail: DurationStatistics { count: sum(|f| f.failure + f.rejected), ns: model.latencies.failure_ns() },
            queue: part(|f| f.queue_ns),
            compute_input: part(|f| f.input_ns),
            compute_infer: part(|f| f.compute_ns),
            compute_output: part(|f| f.output_ns),
            cache_hit: hits,
            cache_miss: misses,
        },
        batch_stats: batches(counts),
    }
}

/// The statistics of a model that generates: the engine counts its steps, and clients count
/// requests.
fn generation_entry(model: &Model, counts: &[&FunctionStatistics]) -> ModelStatistics {
    let mut statistics = entry(model, counts);
    let (count, ns) = model.latencies.successes();
    statistics.inference_count = count;
    statistics.inference_stats.success = DurationStatistics { count, ns };
    statistics
}

/// The statistics of a graph: sums over its stages.
fn graph_entry(model: &Model, counts: Counts) -> ModelStatistics {
    let part = |ns: u64| DurationStatistics { count: counts.success, ns };
    let Counts { success, rows, failure, failure_ns, queue_ns, input_ns, compute_ns, output_ns, .. } = counts;
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.clone(),
        last_inference: model.last_inference_ms(),
        inference_count: rows,
        execution_count: success,
        inference_stats: InferenceStatistics {
            success: part(queue_ns + input_ns + compute_ns + output_ns),
            fail: DurationStatistics { count: failure, ns: failure_ns },
            queue: part(queue_ns),
            compute_input: part(input_ns),
            compute_infer: part(compute_ns),
            compute_output: part(output_ns),
            ..InferenceStatistics::default()
        },
        batch_stats: Vec::new(),
    }
}

/// Counts of batches by number of rows, over all devices.
fn batches(counts: &[&FunctionStatistics]) -> Vec<BatchStatistics> {
    let mut sizes: BTreeMap<u64, BatchStatistics> = BTreeMap::new();
    for batch in counts.iter().flat_map(|function| &function.batches) {
        let sum = sizes
            .entry(batch.rows)
            .or_insert_with(|| BatchStatistics { batch_size: batch.rows, ..BatchStatistics::default() });
        let parts = [
            (&mut sum.compute_input, batch.input_ns),
            (&mut sum.compute_infer, batch.compute_ns),
            (&mut sum.compute_output, batch.output_ns),
        ];
        for (part, ns) in parts {
            part.count += batch.count;
            part.ns += ns;
        }
    }
    sizes.into_values().collect()
}
