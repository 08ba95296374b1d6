//! Metadata, configuration and statistics as messages.

use super::proto::inference as proto;
use super::proto::inference::model_config::SchedulingChoice;
use super::proto::inference::model_ensembling::Step;
use super::proto::inference::model_metadata_response::TensorMetadata as TensorMessage;
use super::proto::inference::model_sequence_batching::State;
use super::proto::inference::model_version_policy::{All, Latest, PolicyChoice, Specific};
use atoll_protocol::{
    BatchStatistics, ConfigParameter, ConfigReshape, ConfigTensor, ConfigVersionPolicy, DurationStatistics,
    DynamicBatching, EnsembleScheduling, EnsembleStep, InferenceStatistics, ModelConfig, ModelMetadata,
    ModelStatistics, SequenceBatching, TensorMetadata,
};

pub(super) fn metadata(model: ModelMetadata) -> proto::ModelMetadataResponse {
    let tensors = |tensors: Vec<TensorMetadata>| {
        let message = |tensor: TensorMetadata| TensorMessage {
            name: tensor.name,
            datatype: tensor.datatype.name().into(),
            shape: tensor.shape,
        };
        tensors.into_iter().map(message).collect()
    };
    proto::ModelMetadataResponse {
        name: model.name,
        versions: model.versions,
        platform: model.platform,
        inputs: tensors(model.inputs),
        outputs: tensors(model.outputs),
    }
}

pub(super) fn config(model: ModelConfig) -> proto::ModelConfig {
    let input = |tensor: ConfigTensor| proto::ModelInput {
        data_type: data_type(&tensor.data_type),
        name: tensor.name,
        dims: tensor.dims,
        reshape: tensor.reshape.map(reshape),
    };
    let output = |tensor: ConfigTensor| proto::ModelOutput {
        data_type: data_type(&tensor.data_type),
        name: tensor.name,
        dims: tensor.dims,
        label_filename: tensor.label_filename,
        reshape: tensor.reshape.map(reshape),
    };
    // The message has room for only one of them. Sequence batching takes precedence.
    let sequences = model.sequence_batching.map(|batching| SchedulingChoice::SequenceBatching(sequences(batching)));
    let batches = || model.dynamic_batching.map(|batching| SchedulingChoice::DynamicBatching(batches(batching)));
    let steps = || model.ensemble_scheduling.map(|steps| SchedulingChoice::EnsembleScheduling(ensemble(steps)));
    let parameter =
        |(name, value): (String, ConfigParameter)| (name, proto::ModelParameter { string_value: value.string_value });
    proto::ModelConfig {
        name: model.name,
        platform: model.platform,
        version_policy: Some(policy(model.version_policy)),
        max_batch_size: i32::try_from(model.max_batch_size).unwrap_or(i32::MAX),
        input: model.input.into_iter().map(input).collect(),
        output: model.output.into_iter().map(output).collect(),
        scheduling_choice: sequences.or_else(batches).or_else(steps),
        parameters: model.parameters.into_iter().map(parameter).collect(),
        backend: model.backend,
        model_transaction_policy: Some(proto::ModelTransactionPolicy {
            decoupled: model.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        }),
        response_cache: model.response_cache.map(|cache| proto::ModelResponseCache { enable: cache.enable }),
    }
}

fn reshape(reshape: ConfigReshape) -> proto::ModelTensorReshape {
    proto::ModelTensorReshape { shape: reshape.shape }
}

fn ensemble(scheduling: EnsembleScheduling) -> proto::ModelEnsembling {
    let step = |step: EnsembleStep| Step {
        model_name: step.model_name,
        model_version: step.model_version,
        input_map: step.input_map.into_iter().collect(),
        output_map: step.output_map.into_iter().collect(),
    };
    proto::ModelEnsembling { step: scheduling.step.into_iter().map(step).collect() }
}

fn policy(policy: ConfigVersionPolicy) -> proto::ModelVersionPolicy {
    let number = |version: u64| i64::try_from(version).unwrap_or(i64::MAX);
    let choice = match policy {
        ConfigVersionPolicy::Latest { num_versions } => PolicyChoice::Latest(Latest { num_versions }),
        ConfigVersionPolicy::All {} => PolicyChoice::All(All {}),
        ConfigVersionPolicy::Specific { versions } => {
            PolicyChoice::Specific(Specific { versions: versions.into_iter().map(number).collect() })
        }
    };
    proto::ModelVersionPolicy { policy_choice: Some(choice) }
}

fn batches(batching: DynamicBatching) -> proto::ModelDynamicBatching {
    let size = |size: u32| i32::try_from(size).unwrap_or(i32::MAX);
    proto::ModelDynamicBatching {
        preferred_batch_size: batching.preferred_batch_size.into_iter().map(size).collect(),
        max_queue_delay_microseconds: batching.max_queue_delay_microseconds,
        default_queue_policy: batching.default_queue_policy.map(|policy| proto::ModelQueuePolicy {
            default_timeout_microseconds: policy.default_timeout_microseconds,
            max_queue_size: policy.max_queue_size,
        }),
    }
}

fn sequences(batching: SequenceBatching) -> proto::ModelSequenceBatching {
    let state = batching.state.into_iter().map(|state| State {
        data_type: data_type(&state.data_type),
        input_name: state.input_name,
        output_name: state.output_name,
        dims: state.dims,
    });
    proto::ModelSequenceBatching {
        max_sequence_idle_microseconds: batching.max_sequence_idle_microseconds,
        state: state.collect(),
    }
}

fn data_type(name: &str) -> i32 {
    proto::DataType::from_str_name(name).unwrap_or_default().into()
}

pub(super) fn statistics(model: ModelStatistics) -> proto::ModelStatistics {
    proto::ModelStatistics {
        name: model.name,
        version: model.version,
        last_inference: model.last_inference,
        inference_count: model.inference_count,
        execution_count: model.execution_count,
        inference_stats: Some(phases(&model.inference_stats)),
        batch_stats: model.batch_stats.iter().map(batch).collect(),
    }
}

fn phases(all: &InferenceStatistics) -> proto::InferStatistics {
    proto::InferStatistics {
        success: duration(all.success),
        fail: duration(all.fail),
        queue: duration(all.queue),
        compute_input: duration(all.compute_input),
        compute_infer: duration(all.compute_infer),
        compute_output: duration(all.compute_output),
        cache_hit: duration(all.cache_hit),
        cache_miss: duration(all.cache_miss),
    }
}

fn batch(batch: &BatchStatistics) -> proto::InferBatchStatistics {
    proto::InferBatchStatistics {
        batch_size: batch.batch_size,
        compute_input: duration(batch.compute_input),
        compute_infer: duration(batch.compute_infer),
        compute_output: duration(batch.compute_output),
    }
}

fn duration(part: DurationStatistics) -> Option<proto::StatisticDuration> {
    Some(proto::StatisticDuration { count: part.count, ns: part.ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_protocol::DataType;

    #[test]
    fn every_type_has_its_number_in_configurations() {
        for datatype in DataType::ALL {
            assert_ne!(data_type(&datatype.config_name()), 0, "{datatype}");
        }
        assert_eq!(data_type("TYPE_BF16"), 14);
    }
}
