//! Samples of request batches.

use super::metric::DeviceSnapshot;
use super::text::Samples;
use crate::model::Model;
use atoll_engine::FunctionStatistics;

/// The number of rows of each run, by model.
pub(super) fn rows(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for model in &snapshot.models {
        let batches = function_of(snapshot, model).map_or(&[][..], |function| &function.batches);
        out.rows(&[("model", &model.name), ("version", &model.version)], batches);
    }
}

/// The time that requests waited for others of their batch, by model.
pub(super) fn gather_seconds(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for model in &snapshot.models {
        let ns = function_of(snapshot, model).map_or(0, |function| function.gather_ns);
        out.number(&[("model", &model.name), ("version", &model.version)], ns as f64 / 1e9);
    }
}

pub(super) fn function_of<'a>(snapshot: &'a DeviceSnapshot<'_>, model: &Model) -> Option<&'a FunctionStatistics> {
    snapshot.engine.functions.iter().find(|f| f.key == model.key)
}
