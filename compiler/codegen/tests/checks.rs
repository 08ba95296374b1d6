//! Kernels report exactly the checks that are violated.

mod common;

use atoll_codegen::TargetDescription;
use atoll_frontend::nest::{NestArg, NestBuilder};
use atoll_frontend::reference::{self, ReferenceError};
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::{Op, PointArg, PointOp, PointProgram, PointStep, ValueId};
use atoll_kgraph::{DType, Expr};
use common::device::{Session, levels};
use common::{Model, dims};

/// The message of the first violated check, when the model runs on this machine.
fn violation(model: &Model) -> Option<String> {
    let (level, host) = *levels().last().expect("a level");
    let mut session = Session::new(model, level, &TargetDescription::host(host));
    session.run();
    session.violation()
}

fn gather(name: &str, rows: i64, width: i64, indices: Vec<i64>) -> Model {
    let mut m = Model::new(name);
    let data = m.x(&[rows, width]);
    let count = indices.len();
    let indices = m.input_of(dims(&[count as i64]), Tensor::ints(DType::I64, vec![count], indices));
    let y = m.f32(Op::Gather { axis: 0 }, &[data, indices], &[count as i64, width]);
    m.output(&[y])
}

#[test]
fn an_index_outside_its_axis_is_reported_at_every_position() {
    for width in [1, 7, 40, 2000] {
        for (bad, at) in [(9, 0), (-10, 3), (i64::MAX, 70), (i64::MIN, 99), (1 << 32, 50)] {
            let mut indices: Vec<i64> = (0..100).map(|i| i % 18 - 9).collect();
            let good = gather("gather_good", 9, width, indices.clone());
            assert_eq!(violation(&good), None);
            indices[at] = bad;
            let model = gather("gather_bad", 9, width, indices);
            assert_eq!(
                violation(&model).as_deref(),
                Some("an index is outside of -9 to 8"),
                "{bad} at {at}, rows of {width}"
            );
            let expected = ReferenceError::IndexOutOfRange { index: bad, extent: 9 };
            assert_eq!(reference::run(&model.graph, &model.inputs).unwrap_err(), expected);
        }
    }
}

#[test]
fn a_message_has_the_extent_of_the_invocation() {
    let mut m = Model::new("gather_symbolic");
    let n = m.symbol("n");
    let data = m.x_of(vec![n, Expr::Const(3)], &[5, 3]);
    let indices = m.input_of(dims(&[2]), Tensor::ints(DType::I32, vec![2], vec![-5, 5]));
    let y = m.f32(Op::Gather { axis: 0 }, &[data, indices], &[2, 3]);
    assert_eq!(violation(&m.output(&[y])).as_deref(), Some("an index is outside of -5 to 4"));
}

fn divided(op: PointOp, ty: DType, by: &[i64]) -> Model {
    let mut m = Model::new("division");
    let count = by.len() as i64;
    let a = m.input(ty, &[count]);
    let b = m.input_of(dims(&[count]), Tensor::ints(ty, vec![by.len()], by.to_vec()));
    // A program with one more step, as fusion produces.
    let steps = vec![
        PointStep { op, ty, args: vec![PointArg::Input(0), PointArg::Input(1)] },
        PointStep { op: PointOp::Add, ty, args: vec![PointArg::Step(0), PointArg::Const(1.0)] },
    ];
    let y = m.op(Op::Pointwise(PointProgram { steps }), &[a, b], ty, dims(&[count]));
    m.output(&[y])
}

#[test]
fn an_integer_division_by_zero_is_reported() {
    for op in [PointOp::Div, PointOp::Mod] {
        for ty in [DType::I8, DType::U8, DType::I32, DType::U32, DType::I64, DType::U64] {
            for at in [0, 5, 64] {
                let mut by: Vec<i64> = (0..65).map(|i| i % 7 + 1).collect();
                assert_eq!(violation(&divided(op, ty, &by)), None);
                by[at] = 0;
                let model = divided(op, ty, &by);
                assert_eq!(violation(&model).as_deref(), Some("an integer is divided by zero"), "{op:?} of {ty:?}");
                assert_eq!(reference::run(&model.graph, &model.inputs).unwrap_err(), ReferenceError::DivisionByZero);
            }
        }
    }
}

#[test]
fn a_nonzero_divisor_needs_no_check() {
    let mut m = Model::new("constant_divisor");
    let a = m.input(DType::I32, &[65]);
    let by = |divisor| PointStep {
        op: PointOp::Div,
        ty: DType::I32,
        args: vec![PointArg::Input(0), PointArg::Const(divisor)],
    };
    let model = |mut m: Model, a: ValueId, divisor| {
        let y = m.op(Op::Pointwise(PointProgram { steps: vec![by(divisor)] }), &[a], DType::I32, dims(&[65]));
        m.output(&[y])
    };
    let checks = |model: &Model| atoll_codegen::schedule(&model.graph).expect("a schedule").graph.checks.len();
    assert_eq!(checks(&model(m.clone(), a, 3.0)), 0);
    assert_eq!(checks(&model(m, a, 0.0)), 1);
    assert_eq!(checks(&divided(PointOp::Add, DType::I32, &[1, 2])), 0);
}

#[test]
fn a_nest_reports_the_refusals_of_its_operator() {
    let model = |index: Vec<i64>| {
        let mut m = Model::new("nest_refuses");
        let n = m.symbol("n");
        let x = m.x_of(vec![n.clone()], &[7]);
        let count = index.len();
        let index = m.input_of(dims(&[count as i64]), Tensor::ints(DType::I64, vec![count], index));
        let mut nest = NestBuilder::new("chosen", dims(&[count as i64]));
        let at = nest.point()[0].clone();
        let wanted = nest.load(1, DType::I64, &at);
        let is_three = nest.compare(PointOp::Equal, DType::I64, &wanted, &NestArg::Const(3.0));
        nest.when(&is_three, |nest| nest.refuse(&is_three, "three is not accepted", &[]));
        let from = nest.checked_index(&wanted, DType::I64, &n);
        let value = nest.load(0, DType::F32, &from);
        nest.store(0, &at, &value);
        let y = m.f32(Op::Nest(nest.finish()), &[x, index], &[count as i64]);
        m.output(&[y])
    };
    let refusal = |index: Vec<i64>| {
        let model = model(index);
        let found = violation(&model);
        let expected = reference::run(&model.graph, &model.inputs);
        assert_eq!(found.is_some(), expected.is_err(), "{expected:?}");
        found
    };
    let good: Vec<i64> = (0..70).map(|i| (i % 14 - 7) + i64::from(i % 14 == 10)).collect();
    assert_eq!(refusal(good.clone()), None);
    for bad in [7, -8, i64::MAX, i64::MIN, 1 << 32] {
        assert_eq!(
            refusal([good.clone(), vec![bad]].concat()).as_deref(),
            Some("an index is outside of -7 to 6"),
            "{bad}"
        );
    }
    assert_eq!(refusal([vec![3], good].concat()).as_deref(), Some("three is not accepted"));
}
