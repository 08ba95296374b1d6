//! What the importer refuses, and how it says so; symbolic shapes; external data; the trained
//! models where they are.

#![allow(clippy::print_stderr, reason = "a loud skip")]

mod common;

use atoll_frontend::onnx::proto::*;
use atoll_frontend::onnx::{ImportError, ImportOptions, import, import_bytes};
use atoll_frontend::reference;
use atoll_frontend::size::static_shape;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::Op;
use atoll_frontend::transform::transform;
use atoll_kgraph::{DType, Expr, SizeRange, SymbolId};
use common::{Dim, Model, int, ints, random_tensor};
use prost::Message;
use std::path::Path;

fn refused(model: &Model) -> String {
    model.import().unwrap_err().to_string()
}

#[test]
fn files_that_are_no_models_are_refused() {
    let options = ImportOptions::default();
    assert!(matches!(import_bytes(vec![], "m", &options), Err(ImportError::Empty)));
    assert!(matches!(import_bytes(vec![0xFF; 40], "m", &options), Err(ImportError::Malformed { .. })));
    let whole = common::resnet50(2, 32).bytes();
    for part in [1, 10, whole.len() / 2, whole.len() - 1] {
        assert!(
            matches!(import_bytes(whole[..part].to_vec(), "m", &options), Err(ImportError::Malformed { .. })),
            "{part} bytes"
        );
    }
    assert!(matches!(import(Path::new("no such file.onnx"), &options), Err(ImportError::Io { .. })));
}

#[test]
fn every_single_changed_byte_is_survived() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(4)]);
    let w = m.floats("w", &[4, 2], &[0.5; 8]);
    let y = m.node("MatMul", "y", &[&x, &w], vec![]);
    m.node("Softmax", "z", &[&y], vec![int("axis", -1)]);
    m.output("z");
    let bytes = m.bytes();
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut broken = bytes.clone();
            broken[at] ^= flip;
            // Any answer is fine as long as there is one.
            let _ = import_bytes(broken, "m", &ImportOptions::default());
        }
    }
}

#[test]
fn an_unknown_operator_is_named_with_its_place() {
    let mut m = Model::new(14);
    let x = m.input("x", DataType::Float, &[1i64, 4]);
    m.node("ReduceMedian", "the_node", &[&x], vec![]);
    m.output("the_node");
    let text = refused(&m);
    for part in ["the_node", "ReduceMedian", "ai.onnx", "opset 14", "ReduceMean"] {
        assert!(text.contains(part), "{text:?} does not name {part}");
    }
    m.graph().node[0].domain = "com.example".into();
    assert!(refused(&m).contains("com.example"));
}

#[test]
fn opsets_outside_the_range_are_refused() {
    for version in [6, 28] {
        let mut m = Model::new(version);
        let x = m.input("x", DataType::Float, &[1i64]);
        m.node("Add", "y", &[&x, &x], vec![]);
        m.output("y");
        assert!(matches!(m.import(), Err(ImportError::Opset { .. })));
    }
}

#[test]
fn cycles_and_undefined_names_are_refused() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    m.node("Add", "a", &[&x, "b"], vec![]);
    m.node("Relu", "b", &["a"], vec![]);
    m.output("b");
    let Err(ImportError::Cycle { nodes }) = m.import() else { panic!("a cycle is imported") };
    assert_eq!(nodes.len(), 2);
    m.graph().node[0].input[1] = "a".into();
    let Err(ImportError::Cycle { nodes }) = m.import() else { panic!("a node that needs itself is imported") };
    assert_eq!(nodes.len(), 1);
    m.graph().node[0].input[1] = "nowhere".into();
    assert!(refused(&m).contains("nowhere"));
}

#[test]
fn nodes_may_stand_in_any_order() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    m.node("Neg", "b", &["a"], vec![]);
    m.node("Relu", "a", &[&x], vec![]);
    m.node("Abs", "unused", &["b"], vec![]);
    m.output("b");
    assert_eq!(m.import().unwrap().nodes.len(), 2);
}

#[test]
fn huge_dimensions_are_refused_before_anything_is_allocated() {
    let mut m = Model::new(13);
    m.input("x", DataType::Float, &[i64::MAX, 2]);
    m.node("Relu", "y", &["x"], vec![]);
    m.output("y");
    assert!(matches!(m.import(), Err(ImportError::TooLarge { .. })));
    let mut m = Model::new(13);
    m.graph().initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![1 << 40, 1 << 40],
        data_type: 1,
        ..TensorProto::default()
    });
    m.node("Relu", "y", &["w"], vec![]);
    m.output("y");
    assert!(matches!(m.import(), Err(ImportError::TooLarge { .. })));
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[1i64]);
    let shape = m.ints("shape", &[1 << 20, 1 << 20]);
    m.node("Expand", "y", &[&x, &shape], vec![]);
    m.output("y");
    assert!(matches!(m.import(), Err(ImportError::TooLarge { .. })));
}

#[test]
fn wrong_attributes_and_types_are_refused() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64, 3]);
    m.node("Softmax", "y", &[&x], vec![ints("axis", &[1])]);
    m.output("y");
    assert!(refused(&m).contains("attribute axis has type Ints"), "{}", refused(&m));
    m.graph().node[0].attribute = vec![int("axis", 7)];
    assert!(refused(&m).contains("axis 7"));
    let mut m = Model::new(13);
    m.input("x", DataType::String, &[2i64]);
    m.output("x");
    assert!(matches!(m.import(), Err(ImportError::DType { .. })));
    let mut m = Model::new(13);
    let (x, y) = (m.input("x", DataType::Float, &[2i64]), m.input("y", DataType::Int64, &[2i64]));
    m.node("Add", "z", &[&x, &y], vec![]);
    m.output("z");
    assert!(refused(&m).contains("F32 and I64"));
    let mut m = Model::new(13);
    m.floats("w", &[2, 2], &[1.0; 3]);
    m.node("Relu", "y", &["w"], vec![]);
    m.output("y");
    assert!(refused(&m).contains("needs 16 bytes, it has 12"));
}

/// A model whose only weight lies in a file.
fn external(location: &str, offset: &str) -> Model {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let external_data = vec![entry("location", location), entry("offset", offset), entry("length", "8")];
    m.graph().initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![2],
        data_type: 1,
        external_data,
        data_location: DataLocation::External as i32,
        ..TensorProto::default()
    });
    m.node("Mul", "y", &[&x, "w"], vec![]);
    m.output("y");
    m
}

#[test]
fn external_data_is_read_from_beside_the_model_only() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.onnx");
    let run = |m: &Model| {
        std::fs::write(&model, m.bytes()).unwrap();
        import(&model, &ImportOptions::default())
    };
    let Err(error @ ImportError::ExternalDataMissing { .. }) = run(&external("w.bin", "4")) else {
        panic!("missing data is imported")
    };
    assert!(error.to_string().contains("w.bin") && error.to_string().contains("beside the model"));
    let bytes: Vec<u8> = [9.0f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.path().join("w.bin"), bytes).unwrap();
    let graph = run(&external("w.bin", "4")).unwrap();
    let y = reference::run(&graph, &[Tensor::floats(DType::F32, vec![2], [1.0, 1.0])]).unwrap();
    assert_eq!(y[0].to_f64(), [2.0, 3.0]);
    for (location, offset) in [
        ("../w.bin", "0"),
        ("/etc/passwd", "0"),
        ("", "0"),
        ("w.bin", "8"),
        ("w.bin", "18446744073709551615"),
        ("w.bin", "x"),
    ] {
        assert!(
            matches!(run(&external(location, offset)), Err(ImportError::ExternalData { .. })),
            "{location} at {offset}"
        );
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link.bin")).unwrap();
        assert!(matches!(run(&external("link.bin", "0")), Err(ImportError::ExternalData { .. })));
    }
    assert!(matches!(
        import_bytes(external("w.bin", "4").bytes(), "m", &ImportOptions::default()),
        Err(ImportError::ExternalData { .. })
    ));
}

#[test]
fn an_initialiser_among_the_inputs_is_a_constant() {
    let mut m = Model::new(9);
    let x = m.input("x", DataType::Float, &[2i64]);
    let w = m.input("w", DataType::Float, &[2i64]);
    m.floats("w", &[2], &[1.0, 2.0]);
    m.node("Add", "y", &[&x, &w], vec![]);
    m.output("y");
    let graph = m.import().unwrap();
    assert_eq!(graph.inputs.len(), 1);
}

#[test]
fn arithmetic_on_a_symbolic_shape_leaves_no_node() {
    // What exporters write for `x.view(x.shape[0], -1, 4).expand(…)`.
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("batch"), Dim::N(3), Dim::N(8)]);
    let shape = m.node("Shape", "shape", &[&x], vec![]);
    let zero = m.ints("zero", &[0]);
    let (four, minus, two) = (m.ints("four", &[4]), m.ints("minus", &[-1]), m.ints("two", &[2]));
    let batch = m.node("Gather", "batch_size", &[&shape, &zero], vec![int("axis", 0)]);
    let doubled = m.node("Mul", "doubled", &[&batch, &two], vec![]);
    let halved = m.node("Div", "halved", &[&doubled, &two], vec![]);
    let target = m.node("Concat", "target", &[&halved, &minus, &four], vec![int("axis", 0)]);
    let y = m.node("Reshape", "y", &[&x, &target], vec![]);
    let one = m.ints("one", &[1]);
    let wide = m.node("Concat", "wide", &[&two, &batch, &one, &four], vec![int("axis", 0)]);
    m.node("Expand", "z", &[&y, &wide], vec![]);
    m.output("z");
    let graph = transform(m.import().unwrap()).unwrap();
    assert_eq!(graph.symbols[0].name, "batch");
    let batch = Expr::Symbol(SymbolId(0));
    let expected = [Expr::Const(2), batch, Expr::Const(6), Expr::Const(4)];
    assert_eq!(graph.value(graph.outputs[0]).shape, expected);
    assert_eq!(graph.nodes.len(), 2, "a reshape and an expand:\n{graph}");
    for batch in [1, 5] {
        let z = reference::run(&graph, &[random_tensor(1, &[batch, 3, 8])]).unwrap();
        assert_eq!(z[0].shape, [2, batch, 6, 4]);
    }
}

#[test]
fn sizes_can_be_fixed_bounded_and_found_equal() {
    let mut m = Model::new(13);
    let a = m.input("a", DataType::Float, &["n", "k"]);
    let b = m.input("b", DataType::Float, &["rows", "k"]);
    m.node("Concat", "y", &[&a, &b], vec![int("axis", 1)]);
    m.output("y");
    let graph = m.import().unwrap();
    assert_eq!(graph.value(graph.inputs[0]).shape[0], graph.value(graph.inputs[1]).shape[0], "n and rows are one");
    let names: Vec<&str> = graph.symbols.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["n", "k"]);
    assert_eq!((graph.symbols[0].min, graph.symbols[0].max), (1, 65_536));
    let mut options = ImportOptions::default();
    let mut import = |name: &str, min: i64, max: i64| {
        options.symbols.insert(name.into(), SizeRange { min, max });
        import_bytes(m.bytes(), "m", &options)
    };
    import("k", 8, 8).unwrap();
    let graph = import("n", 2, 4).unwrap();
    assert_eq!(graph.symbols.len(), 1);
    assert_eq!((graph.symbols[0].min, graph.symbols[0].max), (2, 4));
    assert_eq!(
        import("rows", 3, 9).unwrap().symbols[0].range_text(),
        "`n` is 3 to 4 (node y (Concat) needs n = rows, and `rows` is 3 to 9 (set by an option))"
    );
    let error = import("rows", 5, 5).unwrap_err().to_string();
    assert!(
        error.contains("node y (Concat) needs n = 5") && error.contains("`n` is 2 to 4 (set by an option)"),
        "{error}"
    );
    assert!(matches!(import("k", -1, 8), Err(ImportError::Invalid { .. })));
    import("k", 8, 8).unwrap_err();
    assert!(
        import("columns", 1, 2)
            .unwrap_err()
            .to_string()
            .contains("no input has a dimension named `columns`; the named dimensions are k, n, rows")
    );
}

#[test]
fn unnamed_sizes_are_different_ones() {
    let mut m = Model::new(13);
    let a = m.input("a", DataType::Float, &[Dim::S("?"), Dim::N(-1), Dim::S("b_dim_0")]);
    let b = m.input("b", DataType::Float, &[Dim::S("?"), Dim::N(-1), Dim::S("")]);
    m.node("Relu", "c", &[&a], vec![]);
    m.node("Relu", "d", &[&b], vec![]);
    ["c", "d"].iter().for_each(|name| m.output(name));
    let graph = m.import().unwrap();
    let names: Vec<&str> = graph.symbols.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["a_dim_0", "a_dim_1", "b_dim_0", "b_dim_0_", "b_dim_1", "b_dim_2"]);
}

/// Floats from 0 on.
fn counted(shape: &[usize]) -> Tensor {
    Tensor::floats(DType::F32, shape.to_vec(), (0..shape.iter().product::<usize>()).map(|i| i as f64))
}

#[test]
fn a_size_of_one_broadcasts_at_run_time() {
    let mut m = Model::new(13);
    let a = m.input("a", DataType::Float, &[Dim::S("n"), Dim::S("k")]);
    let b = m.input("b", DataType::Float, &[Dim::S("rows"), Dim::N(3)]);
    m.node("Add", "y", &[&a, &b], vec![]);
    m.output("y");
    let graph = transform(m.import().unwrap()).unwrap();
    for (a, b, expected) in [([2, 3], [2, 3], [2, 3]), ([1, 3], [4, 3], [4, 3]), ([4, 1], [1, 3], [4, 3])] {
        let y = reference::run(&graph, &[counted(&a), counted(&b)]).unwrap();
        assert_eq!(y[0].shape, expected);
        let at =
            |shape: [usize; 2], row: usize, column: usize| ((row % shape[0]) * shape[1] + column % shape[1]) as f64;
        let sums = (0..expected[0]).flat_map(|row| (0..3).map(move |column| at(a, row, column) + at(b, row, column)));
        assert_eq!(y[0].to_f64(), sums.collect::<Vec<f64>>());
    }
    for (a, b) in [([2, 3], [4, 3]), ([2, 2], [2, 3])] {
        let error = reference::run(&graph, &[counted(&a), counted(&b)]).unwrap_err().to_string();
        assert!(error.contains("node y (Add) needs"), "{error}");
    }
}

#[test]
fn a_table_bounds_a_size_and_a_window_raises_it() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::N(1), Dim::S("s"), Dim::N(2)]);
    let table = m.random("table", &[1, 512, 2], 0.0, 1.0);
    let (zero, one) = (m.ints("zero", &[0]), m.ints("one", &[1]));
    let shape = m.node("Shape", "shape", &[&x], vec![]);
    let length = m.node("Gather", "length", &[&shape, &one], vec![int("axis", 0)]);
    let positions = m.node("Slice", "positions", &[&table, &zero, &length, &one], vec![]);
    m.node("Add", "y", &[&x, &positions], vec![]);
    m.output("y");
    let graph = transform(m.import().unwrap()).unwrap();
    assert_eq!((graph.symbols[0].max, graph.conditions.len()), (512, 0), "{graph}");
    let error = reference::run(&graph, &[counted(&[1, 513, 2])]).unwrap_err().to_string();
    assert!(error.contains("`s` is 1 to 512 (node y (Add) needs s to be 1 to 512)"), "{error}");

    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::N(1), Dim::N(1), Dim::S("s")]);
    let w = m.random("w", &[1, 1, 9], 0.0, 1.0);
    m.node("Conv", "y", &[&x, &w], vec![]);
    m.output("y");
    assert_eq!(m.import().unwrap().symbols[0].min, 8, "a shorter one has no window");
}

#[test]
fn what_cannot_be_shown_is_checked_with_the_inputs() {
    // Pairs of neighbours: an odd size has none.
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &["s"]);
    let pairs = m.ints("pairs", &[-1, 2]);
    m.node("Reshape", "y", &[&x, &pairs], vec![]);
    m.output("y");
    let graph = transform(m.import().unwrap()).unwrap();
    assert_eq!(reference::run(&graph, &[counted(&[6])]).unwrap()[0].shape, [3, 2]);
    let error = reference::run(&graph, &[counted(&[7])]).unwrap_err().to_string();
    assert!(error.contains("node y (Reshape) needs") && error.contains("s is 7"), "{error}");
}

#[test]
fn elements_of_inputs_are_sizes() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[4i64, 6]);
    let shape = m.input("shape", DataType::Int64, &[3i64]);
    m.node("Reshape", "y", &[&x, &shape], vec![]);
    m.output("y");
    let graph = transform(m.import().unwrap()).unwrap();
    let run = |shape: [i64; 3]| reference::run(&graph, &[counted(&[4, 6]), Tensor::ints(DType::I64, vec![3], shape)]);
    for (shape, expected) in
        [([2, 3, 4], [2, 3, 4]), ([0, -1, 1], [4, 6, 1]), ([-1, 1, 2], [12, 1, 2]), ([1, 0, -1], [1, 6, 4])]
    {
        let y = run(shape).unwrap();
        assert_eq!(y[0].shape, expected);
        assert_eq!(y[0].to_f64(), counted(&[24]).to_f64());
    }
    for shape in [[2, 3, 5], [-1, -1, 1], [-2, 3, 4], [5, -1, 1], [4, 6, 0]] {
        assert!(run(shape).is_err(), "{shape:?}");
    }
    // The same input is data too.
    let mut m = Model::new(13);
    let count = m.input("count", DataType::Int64, &[1i64]);
    let ones = m.node("ConstantOfShape", "ones", &[&count], vec![]);
    let float = m.node("Cast", "float", &[&count], vec![int("to", 1)]);
    let root = m.node("Sqrt", "root", &[&float], vec![]);
    m.node("Add", "y", &[&ones, &root], vec![]);
    m.output("y");
    let graph = transform(m.import().unwrap()).unwrap();
    let y = reference::run(&graph, &[Tensor::ints(DType::I64, vec![1], [4])]).unwrap();
    assert_eq!(y[0].to_f64(), [2.0; 4]);
    let error = reference::run(&graph, &[Tensor::ints(DType::I64, vec![1], [-4])]).unwrap_err().to_string();
    assert!(error.contains("element 0 of input `count` is -4; `count[0]` is 0 to"), "{error}");
}

#[test]
fn sizes_are_results_and_operands() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &["n", "k"]);
    let shape = m.node("Shape", "shape", &[&x], vec![]);
    let float = m.node("Cast", "float", &[&shape], vec![int("to", 1)]);
    let factors = m.floats("factors", &[2], &[0.5, 1.5]);
    m.node("Mul", "scaled", &[&float, &factors], vec![]);
    ["shape", "scaled"].iter().for_each(|name| m.output(name));
    let graph = transform(m.import().unwrap()).unwrap();
    let found = reference::run(&graph, &[counted(&[3, 4])]).unwrap();
    assert_eq!(found[0], Tensor::ints(DType::I64, vec![2], [3, 4]));
    assert_eq!(found[1].to_f64(), [1.5, 6.0]);
}

#[test]
fn slices_hold_both_ends_within_the_axis() {
    let far = i64::MAX;
    for (from, to, step, expected) in [
        (-10, -far, -1, vec![0.0]),
        (10, -10, -2, vec![4.0, 2.0, 0.0]),
        (3, 0, -1, vec![3.0, 2.0, 1.0]),
        (-2, far, 1, vec![3.0, 4.0]),
        (1, 1000, 2, vec![1.0, 3.0]),
        (4, 2, 1, vec![]),
    ] {
        // With numbers, with a symbol for the dimension, and with everything as an input.
        let mut plain = Model::new(13);
        let mut symbolic = Model::new(13);
        for (m, dim) in [(&mut plain, Dim::N(5)), (&mut symbolic, Dim::S("n"))] {
            let x = m.input("x", DataType::Float, &[Dim::S("outer"), dim]);
            let lists =
                [("from", from), ("to", to), ("axes", 1), ("steps", step)].map(|(name, value)| m.ints(name, &[value]));
            m.node("Slice", "y", &[&x, &lists[0], &lists[1], &lists[2], &lists[3]], vec![]);
            m.output("y");
        }
        let mut given = Model::new(13);
        let x = given.input("x", DataType::Float, &[1i64, 5]);
        let lists = ["from", "to", "axes", "steps"].map(|name| given.input(name, DataType::Int64, &[1i64]));
        given.node("Slice", "y", &[&x, &lists[0], &lists[1], &lists[2], &lists[3]], vec![]);
        given.output("y");
        for (m, is_given) in [(&plain, false), (&symbolic, false), (&given, true)] {
            let graph = transform(m.import().unwrap()).unwrap();
            let mut inputs = vec![counted(&[1, 5])];
            if is_given {
                let near = |value: i64| value.clamp(-1 << 30, 1 << 30);
                inputs.extend([near(from), near(to), -1, step].map(|value| Tensor::ints(DType::I64, vec![1], [value])));
            }
            assert_eq!(reference::run(&graph, &inputs).unwrap()[0].to_f64(), expected, "{from}:{to}:{step}\n{graph}");
        }
    }
}

#[test]
fn outputs_are_values_of_their_own_with_the_models_names() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    m.node("Identity", "same", &[&x], vec![]);
    m.node("Relu", "a", &[&x], vec![]);
    m.node("Identity", "b", &["a"], vec![]);
    ["same", "a", "b"].iter().for_each(|name| m.output(name));
    let graph = transform(m.import().unwrap()).unwrap();
    let names: Vec<&str> = graph.outputs.iter().map(|id| graph.value(*id).name.as_str()).collect();
    assert_eq!(names, ["same", "a", "b"]);
    let found = reference::run(&graph, &[Tensor::floats(DType::F32, vec![2], [-1.0, 2.0])]).unwrap();
    assert_eq!(found.iter().map(Tensor::to_f64).collect::<Vec<_>>(), [[-1.0, 2.0], [0.0, 2.0], [0.0, 2.0]]);
}

#[test]
fn one_graph_serves_every_batch() {
    let model = common::resnet50(2, 32);
    let graph = transform(model.import().unwrap()).unwrap();
    let images = [random_tensor(7, &[1, 3, 32, 32]), random_tensor(8, &[1, 3, 32, 32])];
    let alone: Vec<f64> = images
        .iter()
        .flat_map(|image| reference::run(&graph, std::slice::from_ref(image)).unwrap()[0].to_f64())
        .collect();
    let both = Tensor::floats(DType::F32, vec![2, 3, 32, 32], images.iter().flat_map(Tensor::to_f64));
    assert_eq!(reference::run(&graph, &[both]).unwrap()[0].to_f64(), alone);
    let names: std::collections::BTreeSet<&str> = graph.values.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names.len(), graph.values.len(), "every value has a name of its own");
    let distinct: std::collections::BTreeSet<u64> = alone.iter().map(|v| v.to_bits()).collect();
    assert!(distinct.len() > 150, "the network's answers are all alike");
}

#[test]
fn trained_models_are_imported_and_transformed() {
    let Ok(folder) = std::env::var("ATOLL_MODELS_DIR") else {
        eprintln!("SKIPPED: ATOLL_MODELS_DIR names no folder with models");
        return;
    };
    for (path, nodes_max, lstms) in [("magika.onnx", 40, 0), ("common_det.onnx", 120, 0), ("silero_vad.onnx", 24, 1)] {
        let path = Path::new(&folder).join(path);
        if !path.exists() {
            eprintln!("SKIPPED: {} is not there", path.display());
            continue;
        }
        let graph = transform(import(&path, &ImportOptions::default()).unwrap()).unwrap();
        assert!(graph.nodes.len() <= nodes_max, "{}: {} nodes", path.display(), graph.nodes.len());
        assert_eq!(graph.nodes.iter().filter(|n| matches!(n.op, Op::Recurrent { .. })).count(), lstms);
        assert!(graph.nodes.iter().all(|n| {
            n.outputs.iter().all(|id| static_shape(&graph.value(*id).shape).is_some() || !graph.symbols.is_empty())
        }));
    }
}

#[test]
fn what_the_protobuf_structs_write_they_read() {
    let m = common::resnet50(1, 32);
    assert_eq!(ModelProto::decode(&m.bytes()[..]).unwrap(), m.proto);
}
