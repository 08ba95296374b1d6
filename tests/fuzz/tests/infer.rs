//! Fuzz targets of inference requests: any bytes are a request or an error, and what is read is
//! consistent and can be written as JSON and read again.

use atoll_protocol::{InferRequest, PredictRequest, Tensor, TensorMetadata, decode_generate};
use bolero::check;

/// Bodies to mutate, also with numbers that JSON does not have.
const SEEDS: [&str; 4] = [
    r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[NaN,1.5],[-Infinity,Infinity]]}]}"#,
    r#"{"id":"NaN","inputs":[{"name":"x","datatype":"BYTES","shape":[2],"data":["Infinity","\\\"NaN"]}]}"#,
    r#"{"instances":[{"x":[NaN,1]},{"x":[2,-Infinity]}],"parameters":{"priority":1}}"#,
    r#"{"x":[Infinity,1.0],"id":"7","parameters":{"timeout":5}}"#,
];

/// Texts that replace a part of a body.
const WORDS: [&str; 10] = ["NaN", "-Infinity", "Infinity", r#"{"":0}"#, "\"", "\\", "[", "]", ",", "-"];

fn exercise(body: &[u8], json_bytes: Option<usize>) {
    if let Ok(request) = InferRequest::decode(body, json_bytes) {
        for tensor in request.inputs.clone() {
            Tensor::new(tensor.name, tensor.datatype, tensor.shape, tensor.bytes).expect("a consistent tensor");
        }
        let again = InferRequest::decode(&request.encode_json().bytes, None).expect("what was read is written");
        let shapes =
            |request: &InferRequest| request.inputs.iter().map(|input| input.shape.clone()).collect::<Vec<_>>();
        assert_eq!(shapes(&again), shapes(&request));
    }
    let inputs = serde_json::from_str(r#"[{"name":"x","datatype":"FP32","shape":[-1,2]}]"#);
    let inputs: Vec<TensorMetadata> = inputs.expect("metadata");
    let _ = PredictRequest::decode(body, &inputs);
    let _ = decode_generate(body, &inputs);
    let _ = InferRequest::of_raw(&inputs, true, body);
}

#[test]
fn any_bytes() {
    check!().with_type::<(Vec<u8>, Option<u8>)>().for_each(|(body, json_bytes)| {
        exercise(body, json_bytes.map(usize::from));
    });
}

#[test]
fn mutated_bodies() {
    check!().with_type::<(u8, Vec<(u16, u8)>)>().for_each(|(seed, changes)| {
        let mut body = SEEDS[usize::from(*seed) % SEEDS.len()].as_bytes().to_vec();
        for (at, change) in changes.iter().take(6) {
            let at = usize::from(*at) % body.len();
            match WORDS.get(usize::from(*change)) {
                Some(word) => drop(body.splice(at..at, word.bytes())),
                None => body[at] = *change,
            }
        }
        exercise(&body, None);
    });
}

#[test]
fn the_seeds_are_requests() {
    let inputs = serde_json::from_str(r#"[{"name":"x","datatype":"FP32","shape":[-1,2]}]"#);
    let inputs: Vec<TensorMetadata> = inputs.expect("metadata");
    SEEDS[..2].iter().for_each(|seed| drop(InferRequest::decode(seed.as_bytes(), None).expect("a request")));
    PredictRequest::decode(SEEDS[2].as_bytes(), &inputs).expect("a request");
    decode_generate(SEEDS[3].as_bytes(), &inputs).expect("a request");
}
