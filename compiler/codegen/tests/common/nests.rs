//! Loop nests: one graph per kind of statement.

use super::{Model, dims};
use DType::{Bool, F16, F32, I32, I64};
use atoll_frontend::nest::{NestArg, NestBuilder};
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::{Op, PointOp};
use atoll_kgraph::{DType, Expr};

/// Every case.
pub fn nests() -> Vec<Model> {
    vec![one_point(), chosen_elements(), first_above(), scattered_lines(), symbolic_sums(), every_type()]
}

/// A domain without dimensions: one thread counts the positive elements.
fn one_point() -> Model {
    let mut m = Model::new("nest_one_point");
    let x = m.x(&[100]);
    let mut nest = NestBuilder::new("count_positive", Vec::new());
    let count = nest.variable(I64, &NestArg::Const(0.0));
    nest.count(&0.into(), &100.into(), |nest, i| {
        let x = nest.load(0, F32, i);
        let positive = nest.compare(PointOp::Greater, F32, &x, &NestArg::Const(0.0));
        nest.when(&positive, |nest| nest.accumulate(&count, PointOp::Add, &NestArg::Const(1.0)));
    });
    nest.store(0, &0.into(), &count);
    let y = m.op(Op::Nest(nest.finish()), &[x], I64, Vec::new());
    m.graph.outputs.push(y);
    m
}

/// `y[i, j] = x[index[i, j], j]`; negative indices count from the end.
fn chosen_elements() -> Model {
    let mut m = Model::new("nest_chosen_elements");
    let x = m.x(&[7, 5]);
    let index = Tensor::ints(I64, vec![3, 5], [0, -1, 6, 3, -7, 1, 2, 3, 4, 5, 6, 0, -2, -3, -4]);
    let index = m.input_of(dims(&[3, 5]), index);
    let mut nest = NestBuilder::new("chosen_elements", dims(&[3, 5]));
    let point = nest.point();
    let at = nest.offset(&dims(&[3, 5]), &point);
    let row = nest.load(1, I64, &at);
    let row = nest.cast(&row, I32);
    let negative = nest.compare(PointOp::Less, I32, &row, &NestArg::Const(0.0));
    let from_end = nest.add(&row, &NestArg::Const(7.0));
    let row = nest.select(I32, &negative, &from_end, &row);
    let from = nest.offset(&dims(&[7, 5]), &[row, point[1].clone()]);
    let value = nest.load(0, F32, &from);
    nest.store(0, &at, &value);
    let y = m.op(Op::Nest(nest.finish()), &[x, index], F32, dims(&[3, 5]));
    m.graph.outputs.push(y);
    m
}

/// For each line, the first element above 0.5 and whether there is one: a loop that ends early, and
/// two results.
fn first_above() -> Model {
    let mut m = Model::new("nest_first_above");
    let shape = dims(&[40, 9]);
    let x = m.x(&[40, 9]);
    let mut nest = NestBuilder::new("first_above", dims(&[40]));
    let line = nest.point();
    let found = nest.variable(F32, &NestArg::Const(-1.0));
    let searching = nest.variable(Bool, &NestArg::Const(1.0));
    nest.count_while(&0.into(), &9.into(), &searching, |nest, i| {
        let at = nest.offset(&shape, &[line[0].clone(), i.clone()]);
        let x = nest.load(0, F32, &at);
        let above = nest.compare(PointOp::Greater, F32, &x, &NestArg::Const(0.5));
        nest.choose(
            &above,
            |nest| {
                nest.set(&found, &x);
                nest.set(&searching, &NestArg::Const(0.0));
            },
            |nest| nest.accumulate(&found, PointOp::Mul, &NestArg::Const(2.0)),
        );
    });
    nest.store(0, &line[0], &found);
    let found = nest.step(PointOp::Not, Bool, &[searching]);
    nest.store(1, &line[0], &found);
    let nest = Op::Nest(nest.finish());
    let shapes = vec![dims(&[40]), dims(&[40])];
    let results = m.ops(nest, &[x], F32, shapes);
    m.graph.values[results[1].0 as usize].dtype = Bool;
    m.graph.outputs.extend(results);
    m
}

/// Each line is copied, then changed at an index, twice at the same position: loads a stored
/// element, and copies a variable that changes later.
fn scattered_lines() -> Model {
    let mut m = Model::new("nest_scattered_lines");
    let x = m.x(&[6, 50]);
    let index = m.input_of(dims(&[4]), Tensor::ints(I32, vec![4], [5, 0, 5, 2]));
    let shape = dims(&[6, 50]);
    let mut nest = NestBuilder::new("scattered_lines", dims(&[50]));
    let column = nest.point()[0].clone();
    nest.count(&0.into(), &6.into(), |nest, row| {
        let at = nest.offset(&shape, &[row.clone(), column.clone()]);
        let x = nest.load(0, F32, &at);
        nest.store(0, &at, &x);
    });
    let sum = nest.variable(F32, &NestArg::Const(1.0));
    nest.count(&0.into(), &4.into(), |nest, i| {
        let row = nest.load(1, I32, i);
        let at = nest.offset(&shape, &[row, column.clone()]);
        let before = nest.load_result(0, F32, &at);
        let held = nest.step(PointOp::Identity, F32, std::slice::from_ref(&sum));
        nest.accumulate(&sum, PointOp::Add, &before);
        let value = nest.step(PointOp::Mul, F32, &[held, before]);
        nest.store(0, &at, &value);
    });
    let y = m.op(Op::Nest(nest.finish()), &[x, index], F32, shape);
    m.graph.outputs.push(y);
    m
}

/// Sums of lines whose length is known only when shapes are bound.
fn symbolic_sums() -> Model {
    let mut m = Model::new("nest_symbolic_sums");
    let (n, k) = (m.symbol("n"), m.symbol("k"));
    let shape = vec![n.clone(), k.clone()];
    let x = m.x_of(shape.clone(), &[67, 13]);
    let mut nest = NestBuilder::new("symbolic_sums", vec![n.clone()]);
    let line = nest.point()[0].clone();
    let sum = nest.variable(F32, &NestArg::Const(0.0));
    nest.count(&0.into(), &NestArg::from(&k), |nest, i| {
        let at = nest.offset(&shape, &[line.clone(), i.clone()]);
        let x = nest.load(0, F32, &at);
        nest.accumulate(&sum, PointOp::Add, &x);
    });
    nest.store(0, &line, &sum);
    let y = m.op(Op::Nest(nest.finish()), &[x], F32, vec![n]);
    m.graph.outputs.push(y);
    m
}

/// Elements of every type, reversed in three dimensions.
fn every_type() -> Model {
    let mut m = Model::new("nest_every_type");
    let shape: [Expr; 3] = [3, 4, 5].map(Expr::Const);
    for ty in [
        F32,
        F16,
        DType::Bf16,
        DType::F64,
        I32,
        I64,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::U16,
        DType::U32,
        DType::U64,
        Bool,
    ] {
        let x = m.input(ty, &[3, 4, 5]);
        let mut nest = NestBuilder::new("reversed", shape.to_vec());
        let point = nest.point();
        let at = nest.offset(&shape, &point);
        let from = nest.sub(&NestArg::Const(59.0), &at);
        let back = nest.unravel(&from, &shape);
        let from = nest.offset(&shape, &back);
        let value = nest.variable(ty, &NestArg::Const(1.0));
        let element = nest.load(0, ty, &from);
        nest.set(&value, &element);
        nest.store(0, &at, &value);
        let y = m.op(Op::Nest(nest.finish()), &[x], ty, shape.to_vec());
        m.graph.outputs.push(y);
    }
    m
}
