use super::*;
use atoll_core::graphs::Cost;

const CASCADE: &str = r#"
    name = "cascade"
    deadline_ms = 50
    [inputs]
    x = { datatype = "FP32", shape = [1, 4] }
    [[stage]]
    name = "small"
    function = "f"
    inputs = { in = "x" }
    [[stage]]
    name = "top"
    builtin = "max"
    inputs = { x = "small.out" }
    [[stage]]
    name = "large"
    function = "f"
    inputs = { in = "x" }
    when = "top.y < 0.8"
    otherwise = { out = "small.out" }
    [outputs]
    y = "large.out"
"#;

fn signature(function: &str) -> Result<Signature, String> {
    let tensor = |name: &str| TensorMetadata {
        name: name.into(),
        datatype: DataType::Fp32,
        shape: vec![-1, 4],
        symbols: Vec::new(),
    };
    match function {
        "f" | "f2" => Ok((vec![tensor("in")], vec![tensor("out")])),
        "other" => Ok((vec![tensor("in")], vec![tensor("out"), tensor("more")])),
        _ => Err("is not deployed".into()),
    }
}

fn refusal(text: &str) -> String {
    parse(text).and_then(|manifest| manifest.check(signature)).expect_err("a bad manifest").to_string()
}

#[test]
fn a_cascade_is_read() {
    let (graph, works) = parse(CASCADE).unwrap().check(signature).unwrap();
    let f = || Work::Function(vec![("f".into(), 1)]);
    assert_eq!(works, [f(), Work::Builtin(Builtin::Max), f()]);
    assert_eq!((graph.deadline(), graph.price_max()), (Some(Nanos(50_000_000)), None));
    let priced = CASCADE.replacen("deadline_ms = 50", "price_max = 0.5\nprefer = \"speed\"", 1);
    let (graph, _) = parse(&priced).unwrap().check(signature).unwrap();
    assert_eq!((graph.price_max().map(Cost::units), graph.prefer()), (Some(0.5), Some(Prefer::Speed)));
    let (graph, _) = parse(CASCADE).unwrap().check(signature).unwrap();
    assert_eq!(graph.stages()[2].needs, [0, 1]);
}

#[test]
fn a_stage_may_have_versions() {
    let text = CASCADE.replacen("function = \"f\"", "versions = { f2 = 10, f = 90 }", 1);
    let (graph, works) = parse(&text).unwrap().check(signature).unwrap();
    assert_eq!(works[0], Work::Function(vec![("f".into(), 90), ("f2".into(), 10)]));
    assert_eq!(graph.stages()[0].function, "f|f2");
}

#[test]
fn json_is_read_as_well() {
    let json = r#"{"name": "one", "inputs": {"x": {"datatype": "FP32", "shape": [-1, 4]}},
        "stage": [{"name": "a", "function": "f", "inputs": {"in": "x"}}], "outputs": {"y": "a.out"}}"#;
    assert!(parse(json).unwrap().check(signature).is_ok());
    assert!(refusal("{").contains("not valid JSON"));
}

#[test]
fn bad_manifests_are_refused_with_the_cause() {
    for (from, to, expected) in [
        ("function = \"f\"", "function = \"g\"", "stage `small` calls function `g`, which is not deployed"),
        ("in = \"x\"", "in = \"z\"", "`z` in stage `small` is neither an input of the graph nor STAGE.OUTPUT"),
        ("in = \"x\"", "in = \"large.out\"", "stages form a cycle"),
        ("shape = [1, 4]", "shape = [1, 5]", "wants FP32[?, 4], but input `x` of the graph is FP32[1, 5]"),
        ("shape = [1, 4]", "shape = [1, -4]", "the size -4"),
        ("< 0.8", "< nan", "use a finite number"),
        ("< 0.8", "= 0.8", "has to be a source"),
        ("deadline_ms = 50", "deadline_ms = 0", "not a time above 0"),
        ("deadline_ms = 50", "deadline_ms = 1e30", "above the limit"),
        ("deadline_ms = 50", "price_max = -1.0", "not a price of 0 or more"),
        ("deadline_ms = 50", "prefer = \"luck\"", "not valid TOML"),
        ("builtin = \"max\"", "builtin = \"min\"", "stage `top`: there is no built-in `min`"),
        ("builtin = \"max\"", "", "needs one of `function`, `versions`, `builtin` and `wasm`"),
        ("function = \"f\"", "function = \"f\"\nversions = { f = 1 }", "needs one of"),
        ("function = \"f\"", "versions = { f = 0 }", "at least one of them above 0"),
        ("function = \"f\"", "versions = { f = 1, other = 1 }", "`other` has other tensors than `f`"),
        ("deadline_ms", "dead_line", "not valid TOML"),
    ] {
        let text = refusal(&CASCADE.replacen(from, to, 1));
        assert!(text.contains(expected), "{to}: {text}");
    }
    assert!(refusal(&" ".repeat(GRAPH_TEXT_BYTES_MAX + 1)).contains("the limit is"));
}

const CPU: &str = r#"
    name = "cpu"
    [inputs]
    x = { datatype = "UINT8", shape = [-1] }
    [[stage]]
    name = "pixels"
    builtin = "decode_image"
    inputs = { x = "x" }
    [[stage]]
    name = "image"
    builtin = "resize_image"
    options = { size = [8, 6] }
    inputs = { x = "pixels.y" }
    [[stage]]
    name = "own"
    wasm = "own.wasm"
    inputs = { b = "image.y", a = "x" }
    outputs = { y = { datatype = "INT64", shape = [2, -1] } }
    [outputs]
    y = "own.y"
    [files]
    "own.wasm" = "AGFzbQ=="
"#;

#[test]
fn cpu_stages_have_the_tensors_of_their_options_and_sources() {
    let (graph, works) = parse(CPU).unwrap().check(signature).unwrap();
    let [Work::Program(pixels), Work::Program(image), Work::Program(own)] = &works[..] else { panic!("{works:?}") };
    assert_eq!((pixels.label.as_str(), own.label.as_str()), ("decode_image", "wasm own.wasm"));
    assert_eq!(image.signature.outputs[0].1.shape, [1, 3, 8, 6]);
    assert_eq!((own.file.as_slice(), pixels.file.len()), (&b"\0asm"[..], 0));
    let inputs: Vec<String> = own.signature.inputs.iter().map(|(name, form)| format!("{name} {form}")).collect();
    assert_eq!(inputs, ["a UINT8[-1]", "b FP32[1, 3, 8, 6]"], "in the order of the names");
    assert_eq!(graph.outputs()[0].tensor.form.to_string(), "INT64[2, ?]");
    // A file may be a string, and a module gets and returns strings.
    let strings = CPU.replacen("UINT8", "BYTES", 1).replacen("INT64", "BYTES", 1);
    let (graph, works) = parse(&strings).unwrap().check(signature).unwrap();
    let [Work::Program(pixels), _, Work::Program(own)] = &works[..] else { panic!("{works:?}") };
    assert_eq!(pixels.signature.inputs[0].1.to_string(), "BYTES[1]");
    assert_eq!(own.signature.inputs[0].1.to_string(), "BYTES[-1]");
    assert_eq!(graph.outputs()[0].tensor.form.to_string(), "BYTES[2, ?]");
    let numbers = strings.replacen("builtin = \"decode_image\"", "builtin = \"softmax\"", 1);
    assert!(refusal(&numbers).contains("wants FP32[?], but input `x` of the graph is BYTES[?]"));
}

#[test]
fn bad_cpu_stages_are_refused_with_the_cause() {
    for (from, to, expected) in [
        ("\"own.wasm\" = \"AGFzbQ==\"", "", "stage `own`: its file `own.wasm` did not come with the manifest"),
        ("AGFzbQ==", "AGFzb", "a file is not base64"),
        ("\"own.wasm\" = ", "more = \"AAAA\"\n\"own.wasm\" = ", "no stage names `more`"),
        ("size = [8, 6]", "size = [8, 6], k = 1", "stage `image`: `options`: unknown field `k`"),
        ("builtin = \"decode_image\"", "builtin = \"decode_image\"\nk = 1", "`k` belongs to"),
        ("builtin = \"decode_image\"", "builtin = \"max\"\noptions = { a = 1 }", "`options` belong to stages with"),
        ("inputs = { x = \"x\" }", "inputs = { image = \"x\" }", "names `image`; the function has `x`"),
        ("a = \"x\"", "a = \"z\"", "`z` in stage `own` is neither"),
        ("{ datatype = \"INT64\", shape = [2, -1] }", "{ datatype = \"BYTES\", shape = [-2] }", "cannot be BYTES[-2]"),
    ] {
        let text = refusal(&CPU.replacen(from, to, 1));
        assert!(text.contains(expected), "{to}: {text}");
    }
    let large = "A".repeat(crate::limits::GRAPH_FILES_BYTES_MAX / 3 * 4 + 4);
    let text = refusal(&CPU.replacen("AGFzbQ==", &large, 1));
    assert!(text.contains("the limit is 2621440"), "{text}");
}
