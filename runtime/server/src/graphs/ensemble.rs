//! What an ensemble has in addition to the graph of its steps: a limit of rows, declared outputs and
//! names of classes.

use super::stage::StageWork;
use super::work::GraphWork;
use crate::model::Model;
use crate::repository::Settings;
use crate::reshape::{Reshapes, declared};
use atoll_core::graphs::Source;
use atoll_protocol::EnsembleScheduling;
use std::collections::BTreeMap;

/// The configuration of an ensemble.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ensemble {
    pub(crate) settings: Settings,
    /// Names of classes by output, from the ensemble's own files.
    pub(crate) labels: BTreeMap<String, Vec<String>>,
    /// The steps as the configuration has them.
    pub(crate) scheduling: EnsembleScheduling,
}

/// Names of classes by output of a graph: those of the function that makes the output.
pub(super) fn labels(work: &GraphWork) -> BTreeMap<String, Vec<String>> {
    let of = |source: &Source| {
        let Source::Output { stage, output } = *source else { return Vec::new() };
        match work.works.get(stage) {
            Some(StageWork::Function(callee)) => callee.first().labels_of(output).to_vec(),
            _ => Vec::new(),
        }
    };
    work.graph.outputs().iter().map(|output| (output.tensor.name.clone(), of(&output.source))).collect()
}

impl Ensemble {
    /// Checks a graph against the configuration, and serves it with its settings.
    ///
    /// # Errors
    /// If a model of its steps takes fewer rows, or an output is not as it is declared.
    pub(super) fn apply(&self, model: Model) -> Result<Model, String> {
        let rows = self.settings.max_batch_size;
        let called = model.graph.iter().flat_map(|graph| graph.models());
        for (called, limit) in called.filter_map(|called| Some((called, called.rows_max()?))) {
            if let Some(rows) = rows.filter(|rows| *rows > limit) {
                return Err(format!(
                    "max_batch_size of the ensemble is {rows}, and that of the model `{}`, which it calls, is {limit}; \
                     lower the one or raise the other",
                    called.name
                ));
            }
        }
        let outputs = declared("output", &self.settings.outputs, &model.outputs, rows.is_some())?;
        let mut all = model.labels();
        all.extend(self.labels.clone());
        let model = model.with_labels(all).with_reshapes(Reshapes { inputs: Vec::new(), outputs });
        Ok(model.of_ensemble(self.settings.clone(), self.scheduling.clone()))
    }
}
