use super::*;

fn tensor(name: &str, datatype: DataType, shape: &[i64]) -> TensorMetadata {
    TensorMetadata { name: name.into(), datatype, shape: shape.to_vec(), symbols: Vec::new() }
}

/// A symbol of no tensor, and that of the tokens.
fn symbols() -> [SymbolSpec; 2] {
    [SymbolSpec::new("batch_size", 1, 2), SymbolSpec::new("sequence_length", 1, 6)]
}

/// The inputs of a decoder, one of which the client fills in.
fn inputs() -> [TensorMetadata; 4] {
    let tokens = tensor("input_ids", DataType::Int64, &[1, -1]);
    [
        tensor("attention_mask", DataType::Int32, &[1, -1]),
        tensor("temperature", DataType::Fp32, &[1]),
        TensorMetadata { symbols: vec![String::new(), "sequence_length".into()], ..tokens },
        tensor("position_ids", DataType::Int64, &[1, -1]),
    ]
}

fn outputs() -> [TensorMetadata; 2] {
    [tensor("hidden", DataType::Fp32, &[1, -1, 8]), tensor("logits", DataType::Fp16, &[1, -1, 3])]
}

fn decoder() -> Arc<Decoder> {
    let settings = GenerationSettings { max_tokens: NonZeroU32::new(20).unwrap(), end_token: Some(2) };
    Arc::new(Decoder::of(settings, &inputs(), &outputs(), &symbols()).unwrap())
}

fn sent(tokens: &[i64]) -> Vec<InputTensor> {
    let temperature = InputTensor { dtype: dtype_of(DataType::Fp32), shape: vec![1], bytes: vec![7; 4] };
    vec![temperature, row(DataType::Int64, tokens.iter().copied())]
}

fn parameters(json: &str) -> Parameters {
    serde_json::from_str(json).unwrap()
}

/// Outputs with the logits of several tokens, as the bits of FP16.
fn result(rows: &[[u16; 3]]) -> Vec<OutputTensor> {
    let bytes = rows.iter().flatten().flat_map(|bits| bits.to_le_bytes()).collect();
    let logits = OutputTensor { shape: vec![1, rows.len() as i64, 3], bytes };
    vec![OutputTensor { shape: vec![1, 1, 8], bytes: vec![0; 32] }, logits]
}

/// One, two and not a number in FP16.
const ONE: u16 = 0x3C00;
const TWO: u16 = 0x4000;
const NAN: u16 = 0x7E00;

#[test]
fn each_step_has_the_tokens_that_are_new_and_the_length_of_all() {
    let mut generation = decoder().begin(sent(&[5, 6]), &parameters("{}")).unwrap();
    let shapes = |generation: &Generation| generation.inputs().into_iter().map(|it| it.shape).collect::<Vec<_>>();
    assert_eq!(shapes(&generation), [vec![1, 2], vec![1], vec![1, 2], vec![1, 2]]);
    let inputs = generation.inputs();
    assert_eq!(inputs[0].bytes, [1, 0, 0, 0, 1, 0, 0, 0], "the mask is INT32");
    assert_eq!(inputs[1].bytes, [7; 4], "the client's own input");
    assert_eq!(integers(DataType::Int64, &inputs[3].bytes), [0, 1]);

    // The logits of the last token count, and the first of equal ones.
    let token = generation.note(&result(&[[TWO, 0, 0], [ONE, TWO, TWO]])).unwrap();
    assert_eq!(token, Token { id: 1, is_last: false });
    assert_eq!(shapes(&generation), [vec![1, 3], vec![1], vec![1, 1], vec![1, 1]]);
    let inputs = generation.inputs();
    assert_eq!(integers(DataType::Int64, &inputs[2].bytes), [1]);
    assert_eq!(integers(DataType::Int64, &inputs[3].bytes), [2]);
    assert_eq!(inputs[1].bytes, [7; 4]);

    let token = generation.note(&result(&[[NAN, 0, ONE]])).unwrap();
    assert_eq!(token, Token { id: 2, is_last: true }, "the token that ends answers; NaN is never the largest");
    let output = generation.output();
    assert_eq!((output.shape, integers(DataType::Int64, &output.bytes)), (vec![1, 2], vec![1, 2]));
}

#[test]
fn an_answer_ends_after_the_tokens_that_were_asked_for() {
    let first = |json: &str| {
        let mut generation = decoder().begin(sent(&[5]), &parameters(json)).unwrap();
        generation.note(&result(&[[TWO, ONE, 0]])).unwrap()
    };
    assert_eq!(first("{}"), Token { id: 0, is_last: false });
    assert_eq!(first(r#"{"max_tokens": 1}"#), Token { id: 0, is_last: true });
    assert_eq!(first(r#"{"end_token": 0}"#), Token { id: 0, is_last: true });
}

#[test]
fn mistakes_of_a_request_are_named() {
    for (tokens, json, expected) in [
        (&[1][..], r#"{"max_tokens": 0}"#, "0 is not in the range of this model, 1 to 20"),
        (&[1], r#"{"max_tokens": 21}"#, "1 to 20"),
        (&[1], r#"{"max_tokens": "a"}"#, "max_tokens"),
        (&[1], r#"{"end_token": -1}"#, "end_token"),
        (&[], "{}", "one row of at least one token"),
        (&[1; 7], "{}", "it has 7 tokens; the model takes at most 6 at once"),
    ] {
        let error = decoder().begin(sent(tokens), &parameters(json)).unwrap_err().to_string();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let refused = |change: fn(&mut InputTensor)| {
        let mut sent = sent(&[1, 2]);
        change(&mut sent[1]);
        decoder().begin(sent, &parameters("{}")).unwrap_err().to_string()
    };
    let error = refused(|tokens| tokens.shape = vec![2, 1]);
    assert!(error.contains("`input_ids`") && error.contains("[2, 1]; a prompt is one row"), "{error}");
    let error = refused(|tokens| tokens.dtype = dtype_of(DataType::Fp64));
    assert!(error.contains("its type has to be INT64"), "{error}");
}

#[test]
fn a_result_without_a_largest_logit_is_an_error() {
    let misshapen = |shape: &[i64]| {
        let mut result = result(&[[0; 3]]);
        result[1].shape = shape.to_vec();
        result
    };
    let all = [result(&[[NAN; 3]]), misshapen(&[1, 3]), misshapen(&[2, 1, 3]), misshapen(&[1, 1, 0])];
    for result in all.into_iter().chain([misshapen(&[1, 2, 3])]) {
        let error = decoder().begin(sent(&[1]), &parameters("{}")).unwrap().note(&result).unwrap_err().to_string();
        assert!(error.contains("cannot generate a token"), "{error}");
    }
}

#[test]
fn a_model_that_is_no_decoder_is_refused() {
    let settings = GenerationSettings { max_tokens: max_tokens_default(), end_token: None };
    let refused = |inputs: &[TensorMetadata], outputs: &[TensorMetadata]| {
        Decoder::of(settings, inputs, outputs, &[]).unwrap_err()
    };
    let error = refused(&[tensor("x", DataType::Fp32, &[4])], &outputs());
    assert!(error.contains("needs an input `input_ids`") && error.ends_with("the model has x"), "{error}");
    let mut inputs = inputs();
    inputs[0].datatype = DataType::Fp32;
    let error = refused(&inputs, &outputs());
    assert!(error.contains("`attention_mask`") && error.contains("it is FP32 with 2"), "{error}");
    inputs[0].datatype = DataType::Int64;
    let error = refused(&inputs, &[tensor("logits", DataType::Fp32, &[1, 3])]);
    assert!(error.contains("needs an output `logits`"), "{error}");
    let clients = Decoder::client_inputs(&inputs);
    assert_eq!(clients.iter().map(|input| &*input.name).collect::<Vec<_>>(), ["temperature", "input_ids"]);
}
