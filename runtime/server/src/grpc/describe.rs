//! Metadata, configuration and statistics as messages.

use super::proto::inference as proto;
use super::proto::inference::model_config::SchedulingChoice;
use super::proto::inference::model_metadata_response::TensorMetadata as TensorMessage;
use super::proto::inference::model_sequence_batching::State;
use atoll_protocol::{
    BatchStatistics, ConfigTensor, DurationStatistics, DynamicBatching, InferenceStatistics, ModelConfig,
    ModelMetadata, ModelStatistics, SequenceBatching, TensorMetadata,
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
    };
    let output = |tensor: ConfigTensor| proto::ModelOutput {
        data_type: data_type(&tensor.data_type),
        name: tensor.name,
        dims: tensor.dims,
    };
    // The message has room for only one of the two. Sequence batching takes precedence.
    let sequences = model.sequence_batching.map(|batching| SchedulingChoice::SequenceBatching(sequences(batching)));
    let batches = || model.dynamic_batching.map(|batching| SchedulingChoice::DynamicBatching(batches(batching)));
    proto::ModelConfig {
        name: model.name,
        platform: model.platform,
        max_batch_size: i32::try_from(model.max_batch_size).unwrap_or(i32::MAX),
        input: model.input.into_iter().map(input).collect(),
        output: model.output.into_iter().map(output).collect(),
        scheduling_choice: sequences.or_else(batches),
        backend: model.backend,
        model_transaction_policy: Some(proto::ModelTransactionPolicy { decoupled: false }),
    }
}

fn batches(batching: DynamicBatching) -> proto::ModelDynamicBatching {
    let size = |size: u32| i32::try_from(size).unwrap_or(i32::MAX);
    proto::ModelDynamicBatching {
        preferred_batch_size: batching.preferred_batch_size.into_iter().map(size).collect(),
        max_queue_delay_microseconds: batching.max_queue_delay_microseconds,
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
