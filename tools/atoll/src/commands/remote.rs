//! A daemon seen from the command line: KServe v2 over HTTP.

use super::infer::Output;
use crate::npy::Array;
use crate::output::usage;
use crate::random::Random;
use anyhow::{Context, Result, bail};
use atoll_kgraph::DType;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an answer may take. Longer than any model here; a daemon that hangs must not hang its user.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// KServe's names of types.
const DATATYPES: &[(&str, DType)] = &[
    ("BOOL", DType::Bool),
    ("UINT8", DType::U8),
    ("INT8", DType::I8),
    ("UINT16", DType::U16),
    ("INT16", DType::I16),
    ("UINT32", DType::U32),
    ("INT32", DType::I32),
    ("UINT64", DType::U64),
    ("INT64", DType::I64),
    ("FP16", DType::F16),
    ("BF16", DType::Bf16),
    ("FP32", DType::F32),
    ("FP64", DType::F64),
];

/// A daemon.
pub(crate) struct Remote {
    agent: ureq::Agent,
    base: String,
}

impl Remote {
    pub(crate) fn new(address: &str) -> Remote {
        let base = if address.contains("://") { address.trim_end_matches('/').into() } else { format!("http://{address}") };
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build();
        Remote { agent: config.into(), base }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let answer = self.agent.get(format!("{}{path}", self.base)).call();
        self.json(answer)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.agent.post(format!("{}{path}", self.base)).send_json(body);
        self.json(answer)
    }

    fn json(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value> {
        let bytes = self.bytes(answer)?.1;
        if bytes.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&bytes).context("the daemon's answer is no JSON") }
    }

    /// The length of the JSON header, if the answer has binary parts, and the body. KServe's error body becomes an error.
    fn bytes(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<(Option<usize>, Vec<u8>)> {
        let mut answer = answer.with_context(|| format!("no daemon answers at {}; start one with `atoll serve`", self.base))?;
        let status = answer.status();
        let header = answer.headers().get("inference-header-content-length").and_then(|h| h.to_str().ok()?.parse().ok());
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        if !status.is_success() {
            let message = serde_json::from_slice::<Value>(&body).ok().and_then(|v| Some(v["error"].as_str()?.to_string()));
            bail!("{} ({status})", message.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned()));
        }
        Ok((header, body))
    }

    /// The model's inputs: those given, and random ones; a dimension of any size is 1.
    pub(crate) fn inputs(&self, model: &str, given: &BTreeMap<String, Array>, seed: u64) -> Result<Vec<(String, Array)>> {
        let metadata = self.get(&format!("/v2/models/{model}"))?;
        let specs = metadata["inputs"].as_array().context("the model's metadata has no inputs")?;
        if let Some(name) = given.keys().find(|name| !specs.iter().any(|s| s["name"] == **name)) {
            return Err(usage(format!("{model} has no input {name}")));
        }
        let mut random = Random(seed);
        let mut one = |spec: &Value| -> Result<(String, Array)> {
            let name = spec["name"].as_str().context("an input has no name")?.to_string();
            if let Some(array) = given.get(&name) {
                return Ok((name, array.clone()));
            }
            let dtype = dtype(spec)?;
            let dims = spec["shape"].as_array().context("an input has no shape")?;
            let shape: Vec<i64> = dims.iter().map(|d| d.as_i64().unwrap_or(1).max(1)).collect();
            let bytes = random.tensor(dtype, shape.iter().product::<i64>() as usize);
            Ok((name, Array { dtype, shape, bytes }))
        };
        specs.iter().map(&mut one).collect()
    }

    /// Sends tensors as raw bytes, and reads them so.
    pub(crate) fn infer(&self, model: &str, inputs: &[(String, Array)]) -> Result<Vec<Output>> {
        let describe = |(name, array): &(String, Array)| {
            json!({"name": name, "datatype": datatype(array.dtype), "shape": array.shape, "parameters": {"binary_data_size": array.bytes.len()}})
        };
        let head = json!({"inputs": inputs.iter().map(describe).collect::<Vec<_>>(), "parameters": {"binary_data_output": true}}).to_string();
        let mut body = head.clone().into_bytes();
        inputs.iter().for_each(|(_, array)| body.extend(&array.bytes));
        let request = self.agent.post(format!("{}/v2/models/{model}/infer", self.base));
        let request = request.header("Inference-Header-Content-Length", head.len().to_string()).header("Content-Type", "application/octet-stream");
        let (header, answer) = self.bytes(request.send(&body))?;
        let split = header.unwrap_or(answer.len()).min(answer.len());
        let (head, mut raw) = answer.split_at(split);
        let head: Value = serde_json::from_slice(head).context("the daemon's answer is no JSON")?;
        let mut outputs = Vec::new();
        for output in head["outputs"].as_array().context("the answer has no outputs")? {
            let size = output["parameters"]["binary_data_size"].as_u64().context("an output is not binary")? as usize;
            let (bytes, rest) = raw.split_at_checked(size).context("the answer is cut off")?;
            raw = rest;
            let shape = output["shape"].as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
            let array = Array { dtype: dtype(output)?, shape, bytes: bytes.to_vec() };
            outputs.push(Output { name: output["name"].as_str().unwrap_or_default().into(), array });
        }
        Ok(outputs)
    }
}

fn datatype(dtype: DType) -> &'static str {
    DATATYPES.iter().find(|(_, d)| *d == dtype).map_or("BYTES", |(name, _)| name)
}

fn dtype(tensor: &Value) -> Result<DType> {
    let name = tensor["datatype"].as_str().unwrap_or_default();
    DATATYPES.iter().find(|(n, _)| *n == name).map(|(_, d)| *d).with_context(|| format!("datatype {name} is not known"))
}
