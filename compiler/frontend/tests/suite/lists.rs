//! Sequences, optionals and strings at the borders of a model.

use crate::common::{Model, int};
use atoll_frontend::onnx::proto::{
    AttributeProto, AttributeType, DataType, Dimension, ElementTypeProto, OperatorSetIdProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use atoll_frontend::onnx::{ImportOptions, import_bytes};
use atoll_frontend::tensor_graph::{TensorGraph, ValueId};
use atoll_kgraph::strings::{StringOp, StringOperand};
use atoll_kgraph::{DType, SizeRange};

fn of(element: TypeProto) -> Option<Box<ElementTypeProto>> {
    Some(Box::new(ElementTypeProto { elem_type: Some(Box::new(element)) }))
}

/// Adds an input that is a list of tensors of two axes of open size.
fn list(model: &mut Model, name: &str, is_optional: bool) {
    let shape = Some(TensorShapeProto { dim: vec![Dimension { value: None }, Dimension { value: None }] });
    let tensor_type = Some(TensorTypeProto { elem_type: DataType::Float as i32, shape });
    let tensor = TypeProto { tensor_type, ..TypeProto::default() };
    let r#type = match is_optional {
        true => TypeProto { optional_type: of(tensor), ..TypeProto::default() },
        false => TypeProto { sequence_type: of(tensor), ..TypeProto::default() },
    };
    let input = ValueInfoProto { name: name.into(), r#type: Some(r#type), ..ValueInfoProto::default() };
    model.graph().input.push(input);
}

fn import(model: &Model, length: Option<(&str, i64)>) -> Result<TensorGraph, String> {
    let mut options = ImportOptions::default();
    let fixed = |(name, size): (&str, i64)| (name.to_owned(), SizeRange { min: size, max: size });
    options.symbols.extend(length.map(fixed));
    import_bytes(model.bytes(), "m", &options).map_err(|error| error.to_string())
}

fn names<'g>(graph: &'g TensorGraph, ids: &[ValueId]) -> Vec<&'g str> {
    ids.iter().map(|id| graph.value(*id).name.as_str()).collect()
}

#[test]
fn the_tensors_of_a_sequence_are_inputs_and_outputs() {
    let mut model = Model::new(17);
    list(&mut model, "x", false);
    model.node("ConcatFromSequence", "y", &["x"], vec![int("axis", 0)]);
    model.node("Identity", "same", &["x"], vec![]);
    model.output("y");
    model.output("same");
    let graph = import(&model, Some(("x.length", 2))).unwrap();
    assert_eq!(names(&graph, &graph.inputs), ["x.0", "x.1"]);
    assert_eq!(names(&graph, &graph.outputs), ["y", "same.0", "same.1"]);
    // The number of rows may differ, the number of columns may not.
    assert_eq!(graph.symbols.len(), 3);
    let error = import(&model, None).unwrap_err();
    assert!(error.contains("fix the number of its tensors, for example `--fix x.length=2`"), "{error}");
    assert!(import(&model, Some(("x.length", 1 << 20))).unwrap_err().contains("may have at most 1024 tensors"));
}

#[test]
fn an_optional_has_an_element_unless_its_length_is_0() {
    let mut model = Model::new(17);
    list(&mut model, "x", true);
    model.node("OptionalHasElement", "has", &["x"], vec![]);
    model.output("has");
    let graph = import(&model, None).unwrap();
    assert_eq!((names(&graph, &graph.inputs), names(&graph, &graph.outputs)), (vec!["x"], vec!["has"]));
    assert!(import(&model, Some(("x.length", 0))).unwrap().inputs.is_empty());
    assert!(import(&model, Some(("x.length", 2))).unwrap_err().contains("its length is 0 or 1"));
}

#[test]
fn new_strings_are_inputs_that_the_host_computes() {
    let mut model = Model::new(20);
    model.input("x", DataType::String, &["n"]);
    let delimiter = AttributeProto {
        name: "delimiter".into(),
        s: b",".to_vec().into(),
        r#type: AttributeType::String as i32,
        ..AttributeProto::default()
    };
    model.node("StringConcat", "twice", &["x", "x"], vec![]);
    model.node("StringSplit", "parts", &["twice"], vec![delimiter]);
    model.node("Equal", "equal", &["parts", "parts"], vec![]);
    model.output("equal");
    model.output("twice");
    let graph = import(&model, None).unwrap();
    assert_eq!(names(&graph, &graph.inputs), ["x", "twice.computed", "parts.computed", "parts.computed:1"]);
    let types: Vec<DType> = graph.inputs.iter().map(|id| graph.value(*id).dtype).collect();
    assert_eq!(types, [DType::Strings, DType::Strings, DType::Strings, DType::I64]);
    assert_eq!(graph.strings.table, [""]);
    let [concat, split] = &graph.strings.steps[..] else { panic!("{:?}", graph.strings.steps) };
    assert_eq!((&concat.op, &concat.operands[1]), (&StringOp::Concat, &StringOperand::Input(0)));
    assert_eq!(split.op, StringOp::Split { delimiter: ",".into(), cuts_max: None });
    assert_eq!(split.operands, [StringOperand::Input(1)]);
}

#[test]
fn casts_between_strings_and_numbers_are_steps_of_the_host() {
    let cast = |model: &mut Model, result: &str, operand: &str, to: DataType| {
        model.node("Cast", result, &[operand], vec![int("to", to as i64)]);
        model.output(result);
    };
    let mut model = Model::new(20);
    model.input("x", DataType::String, &["n"]);
    model.input("i", DataType::Int64, &["n"]);
    cast(&mut model, "half", "x", DataType::Float16);
    cast(&mut model, "text", "i", DataType::String);
    let graph = import(&model, None).unwrap();
    assert_eq!(names(&graph, &graph.inputs), ["x", "i", "half.computed", "text.computed"]);
    let types: Vec<DType> = graph.inputs.iter().map(|id| graph.value(*id).dtype).collect();
    assert_eq!(types, [DType::Strings, DType::I64, DType::F32, DType::Strings]);
    assert_eq!(graph.value(graph.outputs[0]).dtype, DType::F16);
    let [parse, write] = &graph.strings.steps[..] else { panic!("{:?}", graph.strings.steps) };
    assert_eq!((&parse.op, &parse.operands[..]), (&StringOp::Parse { to: DType::F32 }, &[StringOperand::Input(0)][..]));
    assert_eq!(
        (&write.op, &write.operands[..]),
        (&StringOp::Write { from: DType::I64 }, &[StringOperand::Input(1)][..])
    );

    let mut model = Model::new(20);
    model.input("h", DataType::Float16, &["n"]);
    cast(&mut model, "text", "h", DataType::String);
    assert!(import(&model, None).unwrap_err().contains("numbers of type f16 are not written as strings"));
}

#[test]
fn labels_that_are_not_part_of_a_result_are_no_strings_of_the_graph() {
    let mut model = Model::new(20);
    model.input("x", DataType::Float, &[4, 2]);
    let labels = AttributeProto {
        name: "classlabels_strings".into(),
        strings: [&b"red"[..], b"blue"].map(|label| label.to_vec().into()).to_vec(),
        r#type: AttributeType::Strings as i32,
        ..AttributeProto::default()
    };
    model.node("ZipMap", "y", &["x"], vec![labels]);
    let domain = "ai.onnx.ml";
    model.graph().node[0].domain = domain.into();
    model.proto.opset_import.push(OperatorSetIdProto { domain: domain.into(), version: 4 });
    model.output("y");
    assert!(import(&model, None).unwrap().strings.is_empty());
    model.graph().node[0].attribute[0].strings.pop();
    assert!(import(&model, None).unwrap_err().contains("it has 1 labels"));
}

#[test]
fn operators_that_cannot_use_strings_are_refused() {
    let refusal = |operator: &str, inputs: &[&str]| {
        let mut model = Model::new(20);
        model.input("x", DataType::String, &[2]);
        model.input("i", DataType::Int64, &[2]);
        model.node("Gather", "gathered", &["x", "i"], vec![]);
        model.node(operator, "y", inputs, vec![]);
        model.output("y");
        import(&model, None).unwrap_err()
    };
    for (operator, inputs, expected) in [
        ("Add", &["x", "x"][..], "kernels only move strings and compare them"),
        ("Less", &["x", "x"], "kernels only move strings and compare them"),
        ("Gather", &["i", "x"], "kernels only move strings and compare them"),
        ("StringConcat", &["gathered", "x"], "its operand is computed by kernels"),
        ("StringConcat", &["i", "i"], "it needs strings"),
        ("Equal", &["x", "i"], "different types"),
    ] {
        let error = refusal(operator, inputs);
        assert!(error.contains(expected), "{operator}: {error}");
    }
}
