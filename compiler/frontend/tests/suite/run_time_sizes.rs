//! Operators whose result size depends on values: the size is a symbol whose value is computed at
//! run time.

use crate::common::{Dim, Model, int};
use atoll_frontend::onnx::proto::DataType;
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::{DType, Expr, SymbolId};

fn floats(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::floats(DType::F32, shape.to_vec(), values.iter().copied())
}

#[test]
fn non_zero_gives_coordinates() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(3)]);
    m.node("NonZero", "y", &[&x], vec![]);
    m.output("y");
    for (values, expected) in [
        (vec![0.0, 1.0, 0.0, f64::NAN, 0.0, -2.0], vec![0, 1, 1, 1, 0, 2]),
        (vec![0.0; 6], vec![]),
        (vec![-0.0, 0.0, 5.0], vec![0, 2]),
        (vec![1.0; 3], vec![0, 0, 0, 0, 1, 2]),
    ] {
        let input = floats(&[values.len() / 3, 3], &values);
        let (graph, found) = m.transformed(&[input]);
        assert_eq!(graph.value(graph.outputs[0]).shape, [Expr::Const(2), Expr::from(SymbolId(1))]);
        let most = Expr::from(SymbolId(0)) * 3;
        assert_eq!((graph.run_time_sizes.len(), &graph.run_time_sizes[0].most), (1, &most));
        assert_eq!(found, [Tensor::ints(DType::I64, vec![2, expected.len() / 2], expected)]);
    }
}

#[test]
fn operators_after_a_run_time_size_use_it() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[4i64, 3]);
    let keep = m.input("keep", DataType::Bool, &[Dim::S("rows")]);
    let rows = m.node("Compress", "rows", &[&x, &keep], vec![int("axis", 0)]);
    let sum = m.node("ReduceSum", "sum", &[&rows], vec![int("keepdims", 0)]);
    let twice = m.node("Add", "twice", &[&rows, &rows], vec![]);
    let all = m.node("Compress", "all", &[&x, &keep], vec![]);
    let shape = m.node("Shape", "shape", &[&all], vec![]);
    let ones = m.node("ConstantOfShape", "ones", &[&shape], vec![]);
    [sum, twice, all, ones].iter().for_each(|name| m.output(name));
    let x: Vec<f64> = (0..12).map(f64::from).collect();
    for keep in [vec![1, 0, 1, 1], vec![0, 0, 0, 0], vec![0, 1], vec![1, 1, 1, 1]] {
        let kept: Vec<usize> = (0..keep.len()).filter(|row| keep[*row] == 1).collect();
        let rows: Vec<f64> = kept.iter().flat_map(|row| x[3 * row..3 * row + 3].to_vec()).collect();
        let inputs = [floats(&[4, 3], &x), Tensor::ints(DType::Bool, vec![keep.len()], keep.clone())];
        let (graph, found) = m.transformed(&inputs);
        assert_eq!(graph.run_time_sizes.len(), 1, "one condition is looked at once:\n{graph}");
        let twice: Vec<f64> = rows.iter().map(|x| 2.0 * x).collect();
        let all: Vec<f64> = kept.iter().map(|at| x[*at]).collect();
        let expected = [
            floats(&[], &[rows.iter().sum()]),
            floats(&[kept.len(), 3], &twice),
            floats(&[kept.len()], &all),
            floats(&[kept.len()], &vec![0.0; kept.len()]),
        ];
        assert_eq!(found, expected, "{keep:?}");
    }
    // There are more conditions than rows, and one without a row is true.
    let inputs = [floats(&[4, 3], &x), Tensor::ints(DType::Bool, vec![5], vec![0, 0, 0, 0, 1])];
    let error = reference::run(&m.import().unwrap(), &inputs).unwrap_err().to_string();
    assert!(error.contains("index 4 is outside an axis of 4 elements"), "{error}");
}

#[test]
fn a_known_size_is_not_a_symbol() {
    let mut m = Model::new(13);
    let x = m.floats("x", &[2, 2], &[1.0, 0.0, 2.0, 3.0]);
    let places = m.node("NonZero", "places", &[&x], vec![]);
    m.node("Identity", "y", &[&places], vec![]);
    m.output("y");
    let (graph, found) = m.transformed(&[]);
    assert_eq!((graph.symbols.len(), graph.run_time_sizes.len()), (0, 0));
    assert_eq!(found, [Tensor::ints(DType::I64, vec![2, 3], vec![0, 1, 1, 0, 0, 1])]);
}

#[test]
fn sizes_that_would_have_to_be_equal_are_refused() {
    let mut m = Model::new(13);
    let [x, a, b] = [("x", DataType::Float), ("a", DataType::Bool), ("b", DataType::Bool)]
        .map(|(name, ty)| m.input(name, ty, &[4i64]));
    let left = m.node("Compress", "left", &[&x, &a], vec![]);
    let right = m.node("Compress", "right", &[&x, &b], vec![]);
    m.node("Add", "sum", &[&left, &right], vec![]);
    m.output("sum");
    let error = m.import().unwrap_err().to_string();
    assert!(error.contains("sum") && error.contains("a size that is computed while the model runs"), "{error}");
}
