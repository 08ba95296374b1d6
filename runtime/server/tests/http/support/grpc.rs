//! A gRPC client of the daemon, by tonic, with the messages of `proto/`.

use super::Daemon;
use proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use proto::model_infer_request::InferInputTensor;
use proto::{InferTensorContents, ModelInferRequest};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

#[expect(unreachable_pub, clippy::enum_variant_names, reason = "generated code")]
pub(crate) mod proto {
    include!(concat!(env!("OUT_DIR"), "/client/inference.rs"));
}

#[expect(unreachable_pub, reason = "generated code")]
pub(crate) mod health {
    include!(concat!(env!("OUT_DIR"), "/client/grpc.health.v1.rs"));
}

pub(crate) type Client = GrpcInferenceServiceClient<Channel>;

/// The elements of `request`'s input.
pub(crate) const VALUES: [f32; 4] = [0.5, 3.0, -1.0, 2.0];

impl Daemon {
    /// A new connection.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        self.block_on(endpoint.connect()).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.channel())
    }

    /// The value of a metric. `name` includes the labels, if any, as they are written.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let metrics = self.metrics();
        let line = metrics.lines().find_map(|text| text.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    /// The answers over gRPC with a code.
    pub(crate) fn answers(&self, code: &str) -> u64 {
        self.metric(&format!("atoll_grpc_responses_total{{code=\"{code}\"}}"))
    }
}

/// A request to `toy` with its elements in raw form.
pub(crate) fn request(id: &str) -> ModelInferRequest {
    let input = InferInputTensor { contents: None, ..typed(&VALUES) };
    let raw = VALUES.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: "toy".into(),
        id: id.into(),
        inputs: vec![input],
        raw_input_contents: vec![raw],
        ..ModelInferRequest::default()
    }
}

/// The input of `toy` with its elements in the message.
pub(crate) fn typed(values: &[f32]) -> InferInputTensor {
    InferInputTensor {
        name: "in".into(),
        datatype: "FP32".into(),
        shape: vec![values.len() as i64 / 4, 4],
        contents: Some(InferTensorContents { fp32_contents: values.to_vec(), ..InferTensorContents::default() }),
        ..InferInputTensor::default()
    }
}

/// The message with the metadata `authorization`.
pub(crate) fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// Fails unless the status has this code and each of the words.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, words: &[&str]) {
    let status = answer.expect_err("a refusal");
    assert_eq!(status.code(), code, "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{:?} does not say {word:?}", status.message());
    }
}
