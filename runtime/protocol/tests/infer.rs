//! Bodies as real clients write them, invalid ones, and arbitrary bytes.

use atoll_protocol::*;
use proptest::prelude::*;

/// The JSON that tritonclient sends for one binary INT32 input with a priority and one requested
/// output.
const BINARY: &str = concat!(
    r#"{"id":"r1","parameters":{"priority":1,"timeout":5000},"#,
    r#""inputs":[{"name":"bytes","shape":[1,2],"datatype":"INT32","#,
    r#""parameters":{"binary_data_size":8}}],"#,
    r#""outputs":[{"name":"label","parameters":{"binary_data":true,"classification":2}}]}"#
);

#[test]
fn a_binary_request_is_read() {
    let mut body = BINARY.as_bytes().to_vec();
    body.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    let request = InferRequest::decode(&body, Some(BINARY.len())).unwrap();
    assert_eq!(request.id, "r1");
    assert_eq!(request.parameters.unsigned("priority"), Ok(Some(1)));
    assert_eq!(
        request.inputs,
        [Tensor {
            name: "bytes".into(),
            datatype: DataType::Int32,
            shape: vec![1, 2],
            bytes: body[BINARY.len()..].to_vec()
        }]
    );
    let label = RequestedOutput { name: "label".into(), binary: Some(true), classes: Some(2), shared: None };
    assert_eq!(request.outputs, [label]);
}

#[test]
fn a_json_request_is_read_in_any_order_of_keys() {
    let body = br#"{"inputs":[{"data":[[1.5,2],[3,4]],"shape":[2,2],"parameters":{},"datatype":"FP32","name":"x"}]}"#;
    let request = InferRequest::decode(body, None).unwrap();
    assert_eq!(to_f64(DataType::Fp32, &request.inputs[0].bytes), [1.5, 2.0, 3.0, 4.0]);
    assert!(request.outputs.is_empty() && request.id.is_empty());
}

#[test]
fn answers_are_written_in_both_forms() {
    let tensor = |name: &str| Tensor {
        name: name.into(),
        datatype: DataType::Fp32,
        shape: vec![2],
        bytes: [1.0_f32, 0.5].map(f32::to_le_bytes).concat(),
    };
    let mut response =
        InferResponse { model_name: "m".into(), model_version: "1".into(), id: "7".into(), ..InferResponse::default() };
    response.outputs = [("a", false), ("b", true)]
        .map(|(name, binary)| OutputTensor { tensor: tensor(name), binary, shared: None })
        .into();
    let encoded = response.encode().unwrap();
    let expected = concat!(
        r#"{"id":"7","model_name":"m","model_version":"1","#,
        r#""outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1.0,0.5]},"#,
        r#"{"name":"b","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}"#
    );
    assert_eq!(encoded.json_bytes, Some(expected.len()));
    assert_eq!(std::str::from_utf8(&encoded.bytes[..expected.len()]), Ok(expected));
    assert_eq!(InferResponse::decode(&encoded.bytes, encoded.json_bytes), Ok(response));
}

#[test]
fn strings_that_are_not_utf_8_are_answered_in_binary_only() {
    let tensor = Tensor::new("s", DataType::Bytes, vec![2], b"\x01\0\0\0a\x03\0\0\0\xff\0z".to_vec()).unwrap();
    let mut answer = InferResponse { model_name: "m".into(), ..InferResponse::default() };
    answer.outputs = vec![OutputTensor { tensor, binary: true, shared: None }];
    assert!(answer.encode().unwrap().bytes.ends_with(b"\xff\0z"));
    answer.outputs[0].binary = false;
    for error in [
        answer.encode().unwrap_err(),
        encode_generated(&answer).unwrap_err(),
        encode_predictions(PredictForm::Columns, &answer).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("tensor `s`: its string 1 is not UTF-8") && text.contains("binary_data"), "{text}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_read_and_written_as_python_does() {
    let json = r#"{"inputs":[{"name":"NaN","datatype":"FP32","shape":[4],"data":[[NaN,1.5],[-Infinity,Infinity]]}]}"#;
    let request = InferRequest::decode(json.as_bytes(), None).unwrap();
    assert_eq!(request.inputs[0].name, "NaN");
    let values = to_f64(DataType::Fp32, &request.inputs[0].bytes);
    assert!(values[0].is_nan() && values[1..] == [1.5, f64::NEG_INFINITY, f64::INFINITY], "{values:?}");
    let written = request.encode_json().bytes;
    assert!(String::from_utf8(written.clone()).unwrap().ends_with(r#""data":[NaN,1.5,-Infinity,Infinity]}]}"#));
    assert_eq!(InferRequest::decode(&written, None).unwrap().inputs, request.inputs);
    for (datatype, data, expected) in [
        ("INT32", "NaN", "NaN is not a valid INT32"),
        ("BYTES", "NaN", "NaN is not a valid BYTES"),
        ("FP32", "-NaN", "not valid JSON"),
        ("FP32", "Inf", "not valid JSON"),
        ("FP32", "1e300", "is not a valid FP32"),
    ] {
        let json = format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[1],"data":[{data}]}}]}}"#);
        let message = InferRequest::decode(json.as_bytes(), None).unwrap_err().to_string();
        assert!(message.contains(expected), "{json}: {message}");
    }
}

#[test]
fn mistakes_are_named() {
    let input = |json: &str| format!(r#"{{"inputs":[{json}]}}"#);
    let cases = [
        (String::new(), None, "EOF"),
        ("[]".into(), None, "it has to be an object"),
        (r#"{"inputs":5}"#.into(), None, "sequence"),
        ("{}".into(), None, "inputs"),
        ("{}".into(), Some(1000), "Inference-Header-Content-Length is 1000, but the body has 2 bytes"),
        (r#"{"inputs":[]}surplus"#.into(), Some(13), "7 extra bytes follow"),
        (
            input(r#"{"name":"x","datatype":"FLOAT","shape":[1],"data":[1]}"#),
            None,
            "unknown datatype FLOAT; use one of BOOL",
        ),
        (
            input(r#"{"name":"x","datatype":"FP32","shape":[2],"data":[1]}"#),
            None,
            "`x`: its data has 1 elements, but its shape needs 2",
        ),
        (
            input(r#"{"name":"x","datatype":"FP32","shape":[1099511627776,4194304,4194304],"data":[1]}"#),
            None,
            "overflows",
        ),
        (input(r#"{"name":"x","datatype":"FP32","shape":[-1],"data":[1]}"#), None, "a negative dimension -1"),
        (input(r#"{"name":"x","datatype":"FP32","shape":[1]}"#), None, "neither data nor binary_data_size"),
        (
            input(r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}"#),
            None,
            "binary_data_size is 4, but 0 bytes are left",
        ),
        (
            input(r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4},"data":[1]}"#),
            None,
            "both data and",
        ),
        (
            input(r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":"4"}}"#),
            None,
            "`binary_data_size`",
        ),
        (
            input(r#"{"name":"x","datatype":"FP32","shape":[1],"parameters":{"shared_memory_region":"r"}}"#),
            None,
            "no shared_memory_byte_size",
        ),
    ];
    for (body, json_bytes, expected) in cases {
        let message = InferRequest::decode(body.as_bytes(), json_bytes).unwrap_err().to_string();
        assert!(message.contains(expected), "{body}: {message}");
    }
    let many = input(&vec![r#"{"name":"x","datatype":"INT8","shape":[0],"data":[]}"#; 1025].join(","));
    assert!(matches!(InferRequest::decode(many.as_bytes(), None), Err(ProtocolError::TooMany { count: 1025, .. })));
}

#[test]
fn binary_sizes_must_fit_the_shape() {
    let json = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":4}}]}"#;
    let message = InferRequest::decode(format!("{json}1234").as_bytes(), Some(json.len())).unwrap_err().to_string();
    assert!(message.contains("has 4 bytes, but shape [2] of FP32 needs 8 bytes"), "{message}");
}

fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    // Unit tests cover BYTES, and the types with values that JSON cannot express.
    let datatypes = prop::sample::select(vec![
        DataType::Uint8,
        DataType::Int16,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
    ]);
    let tensor =
        (".{1,8}", datatypes, prop::collection::vec(0..4_i64, 0..4)).prop_flat_map(|(name, datatype, shape)| {
            let bytes = shape.iter().product::<i64>() as usize * datatype.element_bytes().unwrap_or(0);
            prop::collection::vec(any::<u8>(), bytes).prop_map(move |bytes| Tensor {
                name: name.clone(),
                datatype,
                shape: shape.clone(),
                bytes,
            })
        });
    prop::collection::vec(tensor, 0..4)
}

fn ranges() -> impl Strategy<Value = SharedRange> {
    let range = |(region, offset, byte_size)| SharedRange { region, offset, byte_size };
    (".{0,8}", any::<u64>(), any::<u64>()).prop_map(range)
}

fn requests() -> impl Strategy<Value = InferRequest> {
    let output = (".{1,8}", any::<Option<bool>>(), prop::option::of(1..100_usize), prop::option::of(ranges()));
    let (outputs, shared) = (prop::collection::vec(output, 0..3), prop::collection::vec((tensors(), ranges()), 0..3));
    (".{0,8}", tensors(), shared, outputs, any::<Option<u64>>()).prop_map(|(id, inputs, shared, outputs, priority)| {
        let mut parameters = Parameters::default();
        if let Some(priority) = priority {
            parameters.set("priority", priority);
        }
        let output = |(name, binary, classes, shared)| RequestedOutput { name, binary, classes, shared };
        let shared_inputs = shared.into_iter().flat_map(|(tensors, range)| {
            tensors.into_iter().map(move |Tensor { name, datatype, shape, .. }| SharedTensor {
                name,
                datatype,
                shape,
                range: range.clone(),
            })
        });
        let (shared_inputs, outputs) = (shared_inputs.collect(), outputs.into_iter().map(output).collect());
        InferRequest { id, parameters, inputs, shared_inputs, outputs }
    })
}

/// Parts of texts with numbers that are not finite.
const WORDS: [&str; 12] = ["NaN", "Infinity", "-", "1", ",", "[", "]", "\"", "\\", "{\"\":0}", "I", "é"];

proptest! {
    #[test]
    fn what_is_written_is_read(request in requests()) {
        let binary = request.encode();
        prop_assert_eq!(&InferRequest::decode(&binary.bytes, binary.json_bytes).unwrap(), &request);
        let json = request.encode_json();
        prop_assert_eq!(json.json_bytes, None);
        prop_assert_eq!(&InferRequest::decode(&json.bytes, None).unwrap(), &request);
    }

    #[test]
    fn damaged_texts_with_special_numbers_are_refused_or_read(
        words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..12),
    ) {
        let data = words.concat();
        let json = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":[{data}]}}]}}"#);
        let _ = InferRequest::decode(json.as_bytes(), None);
        let _ = PredictRequest::decode(format!(r#"{{"inputs":[{data}]}}"#).as_bytes(), &[]);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(
        body in prop::collection::vec(any::<u8>(), 0..300),
        length in prop::option::of(0..400_usize),
    ) {
        let _ = InferRequest::decode(&body, length);
        let _ = InferResponse::decode(&body, length);
    }

    #[test]
    fn damaged_requests_are_refused_or_consistent(
        request in requests(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let mut encoded = request.encode();
        let at = at.index(encoded.bytes.len());
        if cut { encoded.bytes.truncate(at) } else { encoded.bytes[at] = value }
        if let Ok(read) = InferRequest::decode(&encoded.bytes, encoded.json_bytes) {
            for tensor in read.inputs {
                prop_assert!(Tensor::new(tensor.name, tensor.datatype, tensor.shape, tensor.bytes).is_ok());
            }
        }
    }
}

#[test]
fn tensors_in_shared_memory_have_no_elements_in_the_body() {
    let body = concat!(
        r#"{"inputs":[{"name":"x","shape":[2],"datatype":"INT8","#,
        r#""parameters":{"shared_memory_region":"in","shared_memory_byte_size":2,"shared_memory_offset":4}}],"#,
        r#""outputs":[{"name":"y","parameters":{"shared_memory_region":"out","shared_memory_byte_size":64}}]}"#
    );
    let request = InferRequest::decode(body.as_bytes(), None).unwrap();
    let range = SharedRange { region: "in".into(), offset: 4, byte_size: 2 };
    let input = SharedTensor { name: "x".into(), datatype: DataType::Int8, shape: vec![2], range };
    assert_eq!((request.inputs.len(), &*request.shared_inputs), (0, &[input.clone()][..]));
    assert_eq!(input.clone().tensor(vec![1, 2]).unwrap().bytes, [1, 2]);
    assert!(input.tensor(vec![1]).is_err(), "bytes must match the shape");
    let shared = request.outputs[0].shared.clone();
    assert_eq!(shared, Some(SharedRange { region: "out".into(), offset: 0, byte_size: 64 }));
    let tensor = Tensor::new("y", DataType::Int8, vec![2], vec![7, 8]).unwrap();
    let outputs = vec![OutputTensor { tensor, binary: true, shared }];
    let answer = InferResponse { model_name: "m".into(), outputs, ..InferResponse::default() }.encode().unwrap();
    let expected = concat!(
        r#"{"model_name":"m","model_version":"","outputs":[{"name":"y","datatype":"INT8","shape":[2],"#,
        r#""parameters":{"shared_memory_byte_size":64,"shared_memory_region":"out"}}]}"#
    );
    assert_eq!((std::str::from_utf8(&answer.bytes), answer.json_bytes), (Ok(expected), None));
    let both =
        body.replace("\"shared_memory_region\":\"in\"", "\"shared_memory_region\":\"in\",\"binary_data_size\":0");
    assert!(InferRequest::decode(both.as_bytes(), None).unwrap_err().to_string().contains("send one of them"));
}
