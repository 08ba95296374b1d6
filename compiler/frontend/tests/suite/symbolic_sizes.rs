//! Symbolic sizes: what the importer infers about them, how options set them, and what is left to
//! check when inputs are bound.

use crate::common::{Dim, Model, int, random_tensor};
use atoll_frontend::onnx::proto::*;
use atoll_frontend::onnx::{ImportError, ImportOptions, import_bytes};
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::transform::transform;
use atoll_kgraph::{DType, Expr, SizeRange, SymbolId};

#[test]
fn arithmetic_on_a_symbolic_shape_is_folded() {
    // The pattern that exporters write for `x.view(x.shape[0], -1, 4).expand(…)`.
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
fn unnamed_sizes_are_distinct() {
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

/// The numbers `0.0, 1.0, …` as a tensor of `shape`.
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
fn unproven_conditions_are_checked_with_the_inputs() {
    // The reshape makes pairs, which an odd size does not allow.
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
    // The same input is used as data as well.
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
fn slices_clamp_both_ends_to_the_axis() {
    let far = i64::MAX;
    for (from, to, step, expected) in [
        (-10, -far, -1, vec![0.0]),
        (10, -10, -2, vec![4.0, 2.0, 0.0]),
        (3, 0, -1, vec![3.0, 2.0, 1.0]),
        (-2, far, 1, vec![3.0, 4.0]),
        (1, 1000, 2, vec![1.0, 3.0]),
        (4, 2, 1, vec![]),
    ] {
        // With constant bounds; with a symbolic dimension; and with all bounds as inputs.
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
