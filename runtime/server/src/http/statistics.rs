//! Statistics of each model: counts, and durations by phase.

use super::error::ApiError;
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::inference::blocking;
use crate::model::Model;
use atoll_engine::FunctionStatistics;
use atoll_protocol::{BatchStatistics, DurationStatistics, InferenceStatistics, ModelStatistics, ModelStatisticsList};
use axum::Json;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;

pub(super) async fn all(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<ModelStatisticsList>, ApiError> {
    statistics(&app, app.models_of(&caller)).await
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelStatisticsList>, ApiError> {
    statistics(&app, vec![app.find(&caller, &path.name, path.version.as_deref())?]).await
}

async fn statistics(app: &App, models: Vec<Arc<Model>>) -> Result<Json<ModelStatisticsList>, ApiError> {
    let engine = app.engine.clone();
    let devices = blocking(move || engine.statistics()).await.ok_or_else(ApiError::panicked)?;
    let of = |model: &Arc<Model>| {
        let functions = devices.get(usize::from(model.device.0)).map_or(&[][..], |engine| &engine.functions);
        let function = functions.iter().find(|f| f.key == model.key).cloned().unwrap_or_default();
        entry(model, &function)
    };
    Ok(Json(ModelStatisticsList { model_stats: models.iter().map(of).collect() }))
}

fn entry(model: &Model, function: &FunctionStatistics) -> ModelStatistics {
    let part = |ns| DurationStatistics { count: function.success, ns };
    let total_ns = function.queue_ns + function.input_ns + function.compute_ns + function.output_ns;
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.clone(),
        last_inference: model.last_inference_ms(),
        inference_count: function.rows(),
        execution_count: function.executions(),
        inference_stats: InferenceStatistics {
            success: part(total_ns),
            fail: DurationStatistics { count: function.failure + function.rejected, ns: 0 },
            queue: part(function.queue_ns),
            compute_input: part(function.input_ns),
            compute_infer: part(function.compute_ns),
            compute_output: part(function.output_ns),
            ..InferenceStatistics::default()
        },
        batch_stats: function.batches.iter().map(batch).collect(),
    }
}

fn batch(batch: &atoll_engine::BatchStatistics) -> BatchStatistics {
    let part = |ns| DurationStatistics { count: batch.count, ns };
    BatchStatistics {
        batch_size: batch.rows,
        compute_input: part(batch.input_ns),
        compute_infer: part(batch.compute_ns),
        compute_output: part(batch.output_ns),
    }
}
