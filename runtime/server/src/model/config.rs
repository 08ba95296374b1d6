//! The configuration of a loaded model in Triton's form: what is in force, for clients that read it.

use super::Model;
use crate::reshape::Reshape;
use atoll_protocol::{
    ConfigParameter, ConfigQueuePolicy, ConfigReshape, ConfigResponseCache, ConfigState, ConfigTensor,
    ConfigTransactionPolicy, DynamicBatching, ModelConfig, SequenceBatching, TensorMetadata,
};

impl Model {
    pub(crate) fn config(&self) -> ModelConfig {
        let mut output = self.config_tensors(&self.client_outputs, &self.reshapes.outputs);
        for tensor in &mut output {
            tensor.label_filename = self.settings.labels.get(&tensor.name).cloned().unwrap_or_default();
        }
        let parameter =
            |(name, value): (&String, &String)| (name.clone(), ConfigParameter { string_value: value.clone() });
        ModelConfig {
            name: self.name.clone(),
            platform: self.platform(),
            backend: "atoll".into(),
            version_policy: self.settings.version_policy.config(),
            max_batch_size: self.max_batch_size(),
            dynamic_batching: self.dynamic_batching(),
            input: self.config_tensors(&self.client_inputs, &self.reshapes.inputs),
            output,
            sequence_batching: self.has_sequences().then(|| self.sequence_batching()),
            ensemble_scheduling: self.ensemble.clone(),
            response_cache: self.keeps_responses().then_some(ConfigResponseCache { enable: true }),
            model_transaction_policy: self.is_decoupled().then_some(ConfigTransactionPolicy { decoupled: true }),
            parameters: self.settings.parameters.iter().map(parameter).collect(),
        }
    }

    /// Whether clients send sequences. Each request of a model that generates is one of its own.
    fn has_sequences(&self) -> bool {
        self.runs_sequences() && self.decoder.is_none()
    }

    fn sequence_batching(&self) -> SequenceBatching {
        let rows = usize::from(self.max_batch_size() > 0);
        let state = |state: &ConfigState| ConfigState {
            dims: state.dims.get(rows..).unwrap_or_default().to_vec(),
            ..state.clone()
        };
        SequenceBatching {
            max_sequence_idle_microseconds: self.session_idle().as_micros().try_into().unwrap_or(u64::MAX),
            state: self.states.iter().map(state).collect(),
        }
    }

    fn dynamic_batching(&self) -> Option<DynamicBatching> {
        // A configuration has one of the two kinds of batching.
        if self.settings.runs_sequences {
            return None;
        }
        let options = self.settings.batching().filter(|options| options.gathers)?;
        let size = self.settings.queue_capacity.map_or(0, std::num::NonZeroUsize::get);
        let policy = ConfigQueuePolicy {
            default_timeout_microseconds: self.settings.timeout_us.map_or(0, std::num::NonZeroU64::get),
            max_queue_size: u32::try_from(size).unwrap_or(u32::MAX),
        };
        Some(DynamicBatching {
            preferred_batch_size: options.preferred,
            max_queue_delay_microseconds: options
                .max_queue_delay
                .map_or(0, |delay| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)),
            default_queue_policy: (policy != ConfigQueuePolicy::default()).then_some(policy),
        })
    }

    /// Tensors as in Triton's configuration: without the rows if the model has a `max_batch_size`.
    fn config_tensors(&self, tensors: &[TensorMetadata], reshapes: &[Option<Reshape>]) -> Vec<ConfigTensor> {
        let rows = usize::from(self.max_batch_size() > 0);
        let without = |shape: &[i64]| shape.get(rows..).unwrap_or_default().to_vec();
        let one = |(at, tensor): (usize, &TensorMetadata)| {
            let reshape = reshapes.get(at).and_then(Option::as_ref).map(Reshape::inner);
            let reshape = reshape.filter(|inner| *inner != tensor.shape);
            ConfigTensor {
                dims: without(&tensor.shape),
                reshape: reshape.map(|inner| ConfigReshape { shape: without(inner) }),
                ..ConfigTensor::from(tensor)
            }
        };
        tensors.iter().enumerate().map(one).collect()
    }
}
