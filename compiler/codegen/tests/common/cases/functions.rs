//! Scalar functions of floats.

use super::*;

/// Scalar functions over ranges in which they are numerically difficult.
pub fn functions() -> Vec<Model> {
    let spread = |from: f64, to: f64| -> Tensor {
        let values: Vec<f64> = (0..1000).map(|i| from + (to - from) * f64::from(i) / 999.0).collect();
        Tensor::floats(F32, vec![1000], values)
    };
    let cases: &[(&str, PointOp, f64, f64)] = &[
        ("exp", PointOp::Exp, -20.0, 20.0),
        ("exp_far", PointOp::Exp, -110.0, -80.0),
        ("log", PointOp::Log, 0.01, 20.0),
        ("log_near_one", PointOp::Log, 0.99, 1.01),
        ("log_negative", PointOp::Log, -1.0, 1.0),
        ("erf", PointOp::Erf, -5.0, 5.0),
        ("tanh", PointOp::Tanh, -10.0, 10.0),
        ("sigmoid", PointOp::Sigmoid, -30.0, 30.0),
        ("softplus", PointOp::Softplus, -30.0, 30.0),
        ("sin", PointOp::Sin, -100.0, 100.0),
        ("cos", PointOp::Cos, -100.0, 100.0),
        ("sqrt", PointOp::Sqrt, 0.0, 100.0),
        ("reciprocal", PointOp::Reciprocal, 0.1, 10.0),
        ("round", PointOp::Round, -5.0, 5.0),
        ("floor", PointOp::Floor, -5.0, 5.0),
        ("ceil", PointOp::Ceil, -5.0, 5.0),
        ("sign", PointOp::Sign, -1.0, 1.0),
        ("abs", PointOp::Abs, -1.0, 1.0),
        ("neg", PointOp::Neg, -1.0, 1.0),
        ("relu", PointOp::Relu, -1.0, 1.0),
        ("leaky_relu", PointOp::LeakyRelu(0.1), -1.0, 1.0),
        ("elu", PointOp::Elu(1.5), -3.0, 3.0),
        ("hard_sigmoid", PointOp::HardSigmoid(0.2, 0.5), -5.0, 5.0),
        ("asin", PointOp::Asin, -1.0, 1.0),
        ("acos", PointOp::Acos, -1.0, 1.0),
        ("atan", PointOp::Atan, -6.0, 6.0),
        ("sinh", PointOp::Sinh, -8.0, 8.0),
        ("cosh", PointOp::Cosh, -8.0, 8.0),
        ("asinh", PointOp::Asinh, -20.0, 20.0),
        ("acosh", PointOp::Acosh, 0.9, 20.0),
        ("atanh", PointOp::Atanh, -1.0, 1.0),
    ];
    let mut models: Vec<Model> = cases
        .iter()
        .map(|&(name, op, from, to)| {
            let mut m = Model::new(name);
            let x = m.input_of(dims(&[1000]), spread(from, to));
            let y = m.f32(unary(op), &[x], &[1000]);
            m.output(&[y])
        })
        .collect();
    for (name, exponent) in
        [("pow_square", 2.0), ("pow_cube", 3.0), ("pow_half", 0.5), ("pow_odd", -3.0), ("pow_any", 1.7)]
    {
        let mut m = Model::new(name);
        let x = m.input_of(dims(&[1000]), spread(if exponent == 0.5 || exponent == 1.7 { 0.0 } else { -4.0 }, 4.0));
        let op = Op::Pointwise(steps(F32, &[(PointOp::Pow, &[Input(0), Const(exponent)])]));
        let y = m.f32(op, &[x], &[1000]);
        models.push(m.output(&[y]));
    }
    // The same functions in f64, over the same ranges.
    for &(name, op, from, to) in cases {
        let mut m = Model::new(&format!("{name}_f64"));
        let values: Vec<f64> = (0..1000).map(|i| from + (to - from) * f64::from(i) / 999.0).collect();
        let x = m.input_of(dims(&[1000]), Tensor::floats(F64, vec![1000], values));
        let y = m.op(Op::Pointwise(steps(F64, &[(op, &[Input(0)])])), &[x], F64, dims(&[1000]));
        models.push(m.output(&[y]));
    }
    models.push(large_angles());
    for dtype in [F32, F64] {
        models.push(special_values(dtype));
        models.push(powers_and_remainders(dtype));
    }
    models
}

/// Sines and cosines of angles of every magnitude from 1e3 on, of infinities and NaN.
fn large_angles() -> Model {
    let mut m = Model::new("large_angles");
    let angle = |i: i32| f64::from(10_f64.powf(3.0 + 35.5 * f64::from(i) / 996.0) as f32);
    let mut values: Vec<f64> = (0..997).map(|i| if i % 3 == 0 { -angle(i) } else { angle(i) }).collect();
    values.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let x = m.input_of(dims(&[1000]), Tensor::floats(F32, vec![1000], values));
    let outputs = [PointOp::Sin, PointOp::Cos].map(|op| m.f32(unary(op), &[x], &[1000]));
    m.output(&outputs)
}

/// Infinities, zeros and NaN through every step; every step must propagate NaN.
fn special_values(dtype: DType) -> Model {
    let mut m = Model::new(&format!("special_values_{dtype:?}"));
    let values = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, -0.0, 1.0, -1.0];
    let count = values.len() as i64;
    let x = m.input_of(dims(&[count]), Tensor::floats(dtype, vec![values.len()], values));
    let across = m.input_of(dims(&[count, 1]), Tensor::floats(dtype, vec![values.len(), 1], values));
    let functions = [
        PointOp::Exp,
        PointOp::Log,
        PointOp::Tanh,
        PointOp::Sigmoid,
        PointOp::Erf,
        PointOp::Softplus,
        PointOp::Relu,
        PointOp::Sign,
        PointOp::HardSigmoid(0.2, 0.5),
        PointOp::LeakyRelu(0.1),
        PointOp::Elu(1.5),
        PointOp::Sqrt,
        PointOp::Reciprocal,
        PointOp::Abs,
        PointOp::Asin,
        PointOp::Acos,
        PointOp::Atan,
        PointOp::Sinh,
        PointOp::Cosh,
        PointOp::Asinh,
        PointOp::Acosh,
        PointOp::Atanh,
    ];
    let mut outputs: Vec<ValueId> = functions
        .iter()
        .map(|&op| m.op(Op::Pointwise(steps(dtype, &[(op, &[Input(0)])])), &[x], dtype, dims(&[count])))
        .collect();
    let clip = steps(dtype, &[(PointOp::Clip, &[Input(0), Const(-0.5), Const(0.5)])]);
    outputs.push(m.op(Op::Pointwise(clip), &[x], dtype, dims(&[count])));
    for op in [PointOp::Min, PointOp::Max, PointOp::Mod] {
        outputs.push(m.op(binary(op, dtype), &[x, across], dtype, dims(&[count, count])));
    }
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        for axes in [vec![0], vec![0, 1], vec![1]] {
            let out: Vec<i64> = (0..2).filter(|axis| !axes.contains(axis)).map(|_| count).collect();
            let grid = m.op(binary(PointOp::Add, dtype), &[x, across], dtype, dims(&[count, count]));
            outputs.push(m.op(Op::Reduce(Reduce { kind, axes, keep_dims: false }), &[grid], dtype, dims(&out)));
        }
    }
    m.output(&outputs)
}

/// Powers with integral and other exponents, and remainders whose quotients a division rounds.
fn powers_and_remainders(dtype: DType) -> Model {
    let mut m = Model::new(&format!("powers_and_remainders_{dtype:?}"));
    let (x, y) = ([0.0, 1.0, -1.0, 2.0, -2.5, 7.0, 0.3, 1000.0], [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.7, 1.7]);
    let x = m.input_of(dims(&[8]), Tensor::floats(dtype, vec![8], x));
    let y = m.input_of(dims(&[8, 1]), Tensor::floats(dtype, vec![8, 1], y));
    let power = m.op(binary(PointOp::Pow, dtype), &[x, y], dtype, dims(&[8, 8]));
    let (a, b) = ([60_000.0, -60_000.0, 5.5, -5.5, 0.1, 30_000.0], [3.0, 0.7, -0.11, 2.1, 1e-3, 1e4]);
    let scale = if matches!(dtype, F32 | F64 | Bf16) { 1e20 } else { 1.0 };
    let a = m.input_of(dims(&[6]), Tensor::floats(dtype, vec![6], a.map(|a| a * scale)));
    let b = m.input_of(dims(&[6, 1]), Tensor::floats(dtype, vec![6, 1], b));
    let remainder = m.op(binary(PointOp::Mod, dtype), &[a, b], dtype, dims(&[6, 6]));
    m.output(&[power, remainder])
}
