//! One small graph per thing a kernel can get wrong.
#![expect(clippy::type_complexity, reason = "tables of cases read best as plain tuples")]

use super::{Model, dims};
use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use PointArg::{Const, Input, Step};
use atoll_frontend::nest::{NestArg, NestBuilder};
use atoll_frontend::program::ProgramBuilder;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::*;
use atoll_kgraph::{Condition, DType, Expr, Relation};

/// A program of steps in one type.
fn steps(ty: DType, steps: &[(PointOp, &[PointArg])]) -> PointProgram {
    let mut builder = ProgramBuilder::default();
    for (op, args) in steps {
        builder.step(*op, ty, args);
    }
    builder.finish()
}

fn unary(op: PointOp) -> Op {
    Op::Pointwise(steps(F32, &[(op, &[Input(0)])]))
}

fn binary(op: PointOp, ty: DType) -> Op {
    Op::Pointwise(steps(ty, &[(op, &[Input(0), Input(1)])]))
}

/// `relu(x + bias)`
fn bias_relu() -> PointProgram {
    steps(F32, &[(PointOp::Add, &[Input(0), Input(1)]), (PointOp::Relu, &[Step(0)])])
}

/// Every case, by family.
pub fn all() -> Vec<Model> {
    [
        functions(),
        integers(),
        broadcasting(),
        movement(),
        reductions(),
        products(),
        convolutions(),
        volumes(),
        windows(),
        recurrence(),
        buffers(),
        symbolic(),
        super::nests::nests(),
    ]
    .concat()
}

/// Scalar functions over the ranges where they are hard.
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
    for dtype in [F32, F64] {
        models.push(special_values(dtype));
        models.push(powers_and_remainders(dtype));
    }
    models
}

/// Infinities, zeros and NaN through every step: none loses a NaN.
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

/// Powers of whole and other exponents, and remainders with quotients that a division rounds.
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

/// Arithmetic, comparisons, logic and casts of the other types.
pub fn integers() -> Vec<Model> {
    let mut models = Vec::new();
    for dtype in [I32, I64, U8, I8] {
        let mut m = Model::new(&format!("arithmetic_{dtype:?}"));
        let (a, b) = (m.input(dtype, &[300]), m.input(dtype, &[300]));
        let mut outputs = Vec::new();
        for op in [PointOp::Add, PointOp::Sub, PointOp::Mul, PointOp::Min, PointOp::Max] {
            outputs.push(m.op(binary(op, dtype), &[a, b], dtype, dims(&[300])));
        }
        let divisor = steps(dtype, &[(PointOp::Max, &[Input(1), Const(3.0)]), (PointOp::Div, &[Input(0), Step(0)])]);
        outputs.push(m.op(Op::Pointwise(divisor), &[a, b], dtype, dims(&[300])));
        let modulo = steps(dtype, &[(PointOp::Max, &[Input(1), Const(7.0)]), (PointOp::Mod, &[Input(0), Step(0)])]);
        outputs.push(m.op(Op::Pointwise(modulo), &[a, b], dtype, dims(&[300])));
        let power = steps(dtype, &[(PointOp::Pow, &[Input(0), Const(3.0)])]);
        outputs.push(m.op(Op::Pointwise(power), &[a], dtype, dims(&[300])));
        let power =
            steps(dtype, &[(PointOp::Clip, &[Input(1), Const(0.0), Const(9.0)]), (PointOp::Pow, &[Input(0), Step(0)])]);
        outputs.push(m.op(Op::Pointwise(power), &[a, b], dtype, dims(&[300])));
        let clip = steps(dtype, &[(PointOp::Clip, &[Input(0), Const(5.0), Const(40.0)])]);
        outputs.push(m.op(Op::Pointwise(clip), &[a], dtype, dims(&[300])));
        models.push(m.output(&outputs));
    }
    for dtype in [F32, I64, I32] {
        let mut m = Model::new(&format!("comparisons_{dtype:?}"));
        let (a, b) = (m.input(dtype, &[200]), m.input(dtype, &[200]));
        let ops = [PointOp::Equal, PointOp::Less, PointOp::LessOrEqual, PointOp::Greater, PointOp::GreaterOrEqual];
        let found: Vec<ValueId> =
            ops.into_iter().map(|op| m.op(binary(op, dtype), &[a, b], Bool, dims(&[200]))).collect();
        let logic = [PointOp::And, PointOp::Or, PointOp::Xor, PointOp::Equal];
        let mut outputs: Vec<ValueId> =
            logic.into_iter().map(|op| m.op(binary(op, Bool), &[found[1], found[4]], Bool, dims(&[200]))).collect();
        outputs.push(m.op(Op::Pointwise(steps(Bool, &[(PointOp::Not, &[Input(0)])])), &[found[0]], Bool, dims(&[200])));
        let choice = PointProgram {
            steps: vec![PointStep { op: PointOp::Where, ty: dtype, args: vec![Input(0), Input(1), Input(2)] }],
        };
        outputs.push(m.op(Op::Pointwise(choice), &[found[3], a, b], dtype, dims(&[200])));
        models.push(m.output(&outputs));
    }
    models.extend([F32, F64].map(special_powers));
    for dtype in [U8, U16, U32, U64, I8, I16, I32, I64] {
        models.push(bits(dtype));
        models.push(integer_powers(dtype));
    }
    for from in TYPES {
        models.push(casts(from));
    }
    let mut m = Model::new("bit_casts");
    let mut outputs = Vec::new();
    for types in [&[F32, I32, U32][..], &[F64, I64, U64], &[F16, Bf16, I16, U16], &[I8, U8]] {
        for &from in types {
            let x = m.input(from, &[50]);
            for &to in types {
                let step =
                    PointProgram { steps: vec![PointStep { op: PointOp::BitCast, ty: to, args: vec![Input(0)] }] };
                outputs.push(m.op(Op::Pointwise(step), &[x], to, dims(&[50])));
            }
        }
    }
    models.push(m.output(&outputs));
    for dtype in [F16, Bf16] {
        // Each step is rounded: without it the small term would survive.
        let mut m = Model::new(&format!("rounding_{dtype:?}"));
        let x = m.input(dtype, &[100]);
        let program =
            steps(dtype, &[(PointOp::Add, &[Input(0), Const(300.0)]), (PointOp::Sub, &[Step(0), Const(300.0)])]);
        let y = m.op(Op::Pointwise(program), &[x], dtype, dims(&[100]));
        models.push(m.output(&[y]));
    }
    let mut m = Model::new("half_arithmetic");
    let (a, b) = (m.input(F16, &[100]), m.input(F16, &[100]));
    let sum = m.op(binary(PointOp::Add, F16), &[a, b], F16, dims(&[100]));
    let (c, d) = (m.input(F64, &[100]), m.input(F64, &[100]));
    let product = m.op(binary(PointOp::Mul, F64), &[c, d], F64, dims(&[100]));
    models.push(m.output(&[sum, product]));
    models
}

/// Every element type.
const TYPES: [DType; 13] = [Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, Bf16, F32, F64];

fn is_float(dtype: DType) -> bool {
    atoll_frontend::tensor::is_float(dtype)
}

/// Operations on bits, and comparisons that a sign would turn around.
fn bits(dtype: DType) -> Model {
    let mut m = Model::new(&format!("bits_{dtype:?}"));
    let (a, b) = (m.input(dtype, &[200]), m.input(dtype, &[200]));
    let mut outputs: Vec<ValueId> = [PointOp::BitAnd, PointOp::BitOr, PointOp::BitXor]
        .into_iter()
        .map(|op| m.op(binary(op, dtype), &[a, b], dtype, dims(&[200])))
        .collect();
    outputs.push(m.op(Op::Pointwise(steps(dtype, &[(PointOp::BitNot, &[Input(0)])])), &[a], dtype, dims(&[200])));
    for op in [PointOp::Less, PointOp::GreaterOrEqual] {
        outputs.push(m.op(binary(op, dtype), &[a, b], Bool, dims(&[200])));
    }
    for op in [PointOp::Abs, PointOp::Sign, PointOp::Neg, PointOp::Relu] {
        outputs.push(m.op(Op::Pointwise(steps(dtype, &[(op, &[Input(0)])])), &[a], dtype, dims(&[200])));
    }
    if matches!(dtype, U8 | U16 | U32 | U64) {
        let by = m.input_of(dims(&[200]), Tensor::ints(dtype, vec![200], (0..200).map(|i| i % 70)));
        for op in [PointOp::ShiftLeft, PointOp::ShiftRight] {
            outputs.push(m.op(binary(op, dtype), &[a, by], dtype, dims(&[200])));
        }
    }
    m.output(&outputs)
}

/// Powers where the base, the exponent or both are an infinity, one or no number.
fn special_powers(dtype: DType) -> Model {
    let mut m = Model::new(&format!("special_powers_{dtype:?}"));
    let bases = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, 1.0, -1.0, 2.5, -2.5];
    let exponents = [0.0, 1.0, 2.0, 3.0, 0.5, 1.7, -1.0, -2.0, -0.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let base = m.input_of(dims(&[8]), Tensor::floats(dtype, vec![8], bases));
    let exponent = m.input_of(dims(&[12, 1]), Tensor::floats(dtype, vec![12, 1], exponents));
    let y = m.op(binary(PointOp::Pow, dtype), &[base, exponent], dtype, dims(&[12, 8]));
    m.output(&[y])
}

fn integer_powers(dtype: DType) -> Model {
    let mut m = Model::new(&format!("integer_powers_{dtype:?}"));
    let base = m.input_of(dims(&[7]), Tensor::ints(dtype, vec![7], [0, 1, -1, 2, 3, -5, 10]));
    let exponents = if matches!(dtype, U8 | U16 | U32 | U64) {
        [0, 1, 2, 5, 31, 40, 64, 100]
    } else {
        [0, 1, 2, 5, 31, 64, -1, -2]
    };
    let exponent = m.input_of(dims(&[8, 1]), Tensor::ints(dtype, vec![8, 1], exponents));
    let y = m.op(binary(PointOp::Pow, dtype), &[base, exponent], dtype, dims(&[8, 7]));
    m.output(&[y])
}

/// Numbers inside, at and beyond the ends of every type, to every type.
fn casts(from: DType) -> Model {
    let mut m = Model::new(&format!("cast_from_{from:?}"));
    let mut numbers = vec![0.0, 1.0, -1.0, 1.5, -1.5, 127.6, 128.0, 255.9, 300.7, -300.2, 32_768.0, 65_536.0];
    numbers.extend([2_147_483_648.0, -2_147_483_649.0, 3e9, -3e9, 5e9, 9.3e18, 1.9e19, 1e20, -1e20]);
    let x = if is_float(from) {
        numbers.extend([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        Tensor::floats(from, vec![numbers.len()], numbers.iter().copied())
    } else {
        let more = [i64::MAX, i64::MIN, -2, (1 << 53) + 1, (1 << 24) + 1];
        let all: Vec<i64> = numbers.iter().map(|v| *v as i64).chain(more).collect();
        Tensor::ints(from, vec![all.len()], all)
    };
    let count = dims(&[x.len() as i64]);
    let x = m.input_of(count.clone(), x);
    let outputs: Vec<ValueId> =
        TYPES.into_iter().map(|to| m.op(Op::Pointwise(PointProgram::cast(to)), &[x], to, count.clone())).collect();
    m.output(&outputs)
}

/// Pointwise operators over shapes that repeat.
pub fn broadcasting() -> Vec<Model> {
    let cases: &[(&str, &[i64], &[i64], &[i64])] = &[
        ("add_same", &[5, 40], &[5, 40], &[5, 40]),
        ("add_large", &[3, 20_011], &[3, 20_011], &[3, 20_011]),
        ("add_scalar", &[5, 40], &[], &[5, 40]),
        ("add_channel", &[2, 6, 9, 11], &[6, 1, 1], &[2, 6, 9, 11]),
        ("add_row", &[7, 33], &[33], &[7, 33]),
        ("add_column", &[7, 33], &[7, 1], &[7, 33]),
        ("add_outer", &[7, 1], &[1, 50], &[7, 50]),
        ("add_narrow", &[50, 3], &[50, 1], &[50, 3]),
        ("add_holes", &[4, 1, 6, 1], &[1, 5, 1, 40], &[4, 5, 6, 40]),
        ("add_long_rows", &[2, 9000], &[2, 1], &[2, 9000]),
        ("add_nothing", &[0, 4], &[4], &[0, 4]),
    ];
    cases
        .iter()
        .map(|(name, a, b, shape)| {
            let mut m = Model::new(name);
            let (a, b) = (m.x(a), m.x(b));
            let y = m.f32(binary(PointOp::Add, F32), &[a, b], shape);
            m.output(&[y])
        })
        .collect()
}

/// What moves elements.
pub fn movement() -> Vec<Model> {
    let mut models = Vec::new();
    let transposes: &[(&[i64], &[usize])] = &[
        (&[30, 50], &[1, 0]),
        (&[2, 3, 40], &[1, 0, 2]),
        (&[2, 5, 6, 7], &[0, 2, 3, 1]),
        (&[4, 3], &[0, 1]),
        (&[3, 4, 2], &[2, 1, 0]),
    ];
    for (i, (shape, permutation)) in transposes.iter().enumerate() {
        let mut m = Model::new(&format!("transpose_{i}"));
        let x = m.x(shape);
        let turned: Vec<i64> = permutation.iter().map(|&axis| shape[axis]).collect();
        let y = m.f32(Op::Transpose { permutation: permutation.to_vec() }, &[x], &turned);
        models.push(m.output(&[y]));
    }
    let slices: &[(&[i64], &[i64], &[i64], &[i64])] = &[
        (&[10, 50], &[2, 7], &[1, 1], &[5, 40]),
        (&[10, 50], &[9, 0], &[-1, 1], &[10, 50]),
        (&[10, 50], &[0, 49], &[1, -3], &[10, 17]),
        (&[3, 4, 60], &[1, 0, 3], &[1, 2, 1], &[1, 2, 55]),
        (&[100], &[99], &[-2], &[50]),
    ];
    for (i, (shape, starts, step, out)) in slices.iter().enumerate() {
        let mut m = Model::new(&format!("slice_{i}"));
        let x = m.x(shape);
        let y = m.f32(Op::Slice { starts: dims(starts), steps: step.to_vec() }, &[x], out);
        models.push(m.output(&[y]));
    }
    for (name, axis, parts) in [("concat_rows", 0, 3), ("concat_columns", 1, 3), ("concat_many", 1, 27)] {
        let mut m = Model::new(name);
        let shapes: Vec<[i64; 3]> = (0..parts).map(|i| if axis == 0 { [i + 1, 5, 9] } else { [2, i + 1, 9] }).collect();
        let inputs: Vec<ValueId> = shapes.iter().map(|s| m.x(s)).collect();
        let total: i64 = shapes.iter().map(|s| s[axis]).sum();
        let out = if axis == 0 { [total, 5, 9] } else { [2, total, 9] };
        let y = m.f32(Op::Concat { axis }, &inputs, &out);
        models.push(m.output(&[y]));
    }
    let mut m = Model::new("concat_twice_the_same");
    let x = m.input(I64, &[3, 70]);
    let y = m.op(Op::Concat { axis: 1 }, &[x, x], I64, dims(&[3, 140]));
    models.push(m.output(&[y]));
    for (name, mode) in [
        ("pad_constant", PadMode::Constant(1.5)),
        ("pad_reflect", PadMode::Reflect),
        ("pad_edge", PadMode::Edge),
        ("pad_wrap", PadMode::Wrap),
    ] {
        let mut m = Model::new(name);
        let (x, thin) = (m.x(&[2, 6, 30]), m.x(&[5, 4]));
        let y = m.f32(Op::Pad { before: dims(&[0, 2, 3]), mode }, &[x], &[2, 11, 37]);
        let z = m.f32(Op::Pad { before: dims(&[1, -1]), mode }, &[thin], &[7, 3]);
        models.push(m.output(&[y, z]));
    }
    let mut m = Model::new("pad_wide_reflection");
    let x = m.x(&[3, 4]);
    let y = m.f32(Op::Pad { before: dims(&[0, 7]), mode: PadMode::Reflect }, &[x], &[3, 40]);
    models.push(m.output(&[y]));
    for (name, data, axis, indices) in [
        ("gather_rows", vec![20, 64], 0, vec![3, 5]),
        ("gather_columns", vec![6, 20], 1, vec![7]),
        ("gather_scalar", vec![4, 20, 3], 1, vec![]),
    ] {
        let mut m = Model::new(name);
        let x = m.x(&data);
        let count: i64 = indices.iter().product();
        let numbers = Tensor::ints(
            I64,
            indices.iter().map(|&d| d as usize).collect(),
            (0..count).map(|i| (i * 7) % 20 - if i % 3 == 0 { 20 } else { 0 }),
        );
        let indices_id = m.input_of(dims(&indices), numbers);
        let shape = [&data[..axis], &indices, &data[axis + 1..]].concat();
        let y = m.f32(Op::Gather { axis }, &[x, indices_id], &shape);
        models.push(m.output(&[y]));
    }
    models
}

/// Reductions and normalisations.
pub fn reductions() -> Vec<Model> {
    let mut models = Vec::new();
    let axes: &[(&[i64], &[usize])] = &[
        (&[6, 100], &[1]),
        (&[6, 100], &[0]),
        (&[2, 5, 7, 9], &[2, 3]),
        (&[3, 5, 7, 9], &[0, 2, 3]),
        (&[2, 5, 7, 40], &[1]),
        (&[3, 4], &[0, 1]),
        (&[5, 3], &[1]),
        (&[1, 8, 1], &[0]),
    ];
    for (i, (shape, axes)) in axes.iter().enumerate() {
        for keep_dims in [false, true] {
            let mut m = Model::new(&format!("reduce_{i}_{keep_dims}"));
            let x = m.x(shape);
            let n = m.input(I32, shape);
            let out: Vec<i64> = shape
                .iter()
                .enumerate()
                .filter(|(axis, _)| keep_dims || !axes.contains(axis))
                .map(|(axis, &d)| if axes.contains(&axis) { 1 } else { d })
                .collect();
            let kinds = [
                ReduceKind::Sum,
                ReduceKind::Mean,
                ReduceKind::Max,
                ReduceKind::Min,
                ReduceKind::Prod,
                ReduceKind::SumSquare,
                ReduceKind::L2,
            ];
            let kinds: &[ReduceKind] = if keep_dims { &kinds[..2] } else { &kinds };
            let reduce = |kind| Op::Reduce(Reduce { kind, axes: axes.to_vec(), keep_dims });
            let mut outputs: Vec<ValueId> = kinds.iter().map(|&kind| m.f32(reduce(kind), &[x], &out)).collect();
            outputs.extend([ReduceKind::Sum, ReduceKind::Max].map(|kind| m.op(reduce(kind), &[n], I32, dims(&out))));
            models.push(m.output(&outputs));
        }
    }
    for dtype in TYPES.into_iter().filter(|dtype| *dtype != Bool) {
        models.push(typed_reductions(dtype));
    }
    for (name, shape, axis) in [
        ("softmax_rows", vec![7, 100], 1),
        ("softmax_short", vec![3, 4, 10], 2),
        ("softmax_inner", vec![2, 5, 40], 1),
        ("softmax_outer", vec![6, 3], 0),
    ] {
        let mut m = Model::new(name);
        let x = m.x(&shape);
        let outputs = [false, true].map(|log| m.f32(Op::Softmax { axis, log }, &[x], &shape));
        models.push(m.output(&outputs));
    }
    for (name, shape, axis, bias) in [
        ("layer_norm", vec![5, 96], 1, true),
        ("layer_norm_plain", vec![2, 3, 50], 2, false),
        ("layer_norm_two", vec![4, 5, 6], 1, true),
    ] {
        let mut m = Model::new(name);
        let x = m.x(&shape);
        let mut inputs = vec![x, m.weights(&shape[axis..])];
        if bias {
            inputs.push(m.weights(&shape[axis..]));
        }
        let y = m.f32(Op::LayerNorm { axis, epsilon: 1e-5 }, &inputs, &shape);
        models.push(m.output(&[y]));
    }
    models
}

/// Every kind in one type, by warps and by threads, and over no elements.
fn typed_reductions(dtype: DType) -> Model {
    let mut m = Model::new(&format!("reduce_{dtype:?}"));
    let x = m.input(dtype, &[5, 40]);
    let none = m.input_of(
        dims(&[3, 0]),
        if is_float(dtype) { Tensor::floats(dtype, vec![3, 0], []) } else { Tensor::ints(dtype, vec![3, 0], []) },
    );
    let mut outputs = Vec::new();
    for kind in
        [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod, ReduceKind::SumSquare]
    {
        for (axis, out) in [(1, 5), (0, 40)] {
            // Means of sums that overflowed depend on the width of the sum.
            if kind != ReduceKind::Mean || is_float(dtype) {
                outputs.push(m.op(
                    Op::Reduce(Reduce { kind, axes: vec![axis], keep_dims: false }),
                    &[x],
                    dtype,
                    dims(&[out]),
                ));
            }
        }
        if kind != ReduceKind::Mean || is_float(dtype) {
            outputs.push(m.op(
                Op::Reduce(Reduce { kind, axes: vec![1], keep_dims: false }),
                &[none],
                dtype,
                dims(&[3]),
            ));
        }
    }
    m.output(&outputs)
}

/// Matrix products of every form.
pub fn products() -> Vec<Model> {
    let mut models = Vec::new();
    let sizes: &[(i64, i64, i64)] =
        &[(64, 64, 64), (65, 33, 70), (9, 200, 31), (100, 1, 40), (130, 96, 257), (17, 40, 1)];
    for &(rows, depth, columns) in sizes {
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true)] {
            let mut m = Model::new(&format!("matmul_{rows}_{depth}_{columns}_{transpose_a}_{transpose_b}"));
            let a = m.x(&if transpose_a { [depth, rows] } else { [rows, depth] });
            let b = m.x(&if transpose_b { [columns, depth] } else { [depth, columns] });
            let op = Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: PointProgram::default() });
            let y = m.f32(op, &[a, b], &[rows, columns]);
            models.push(m.output(&[y]));
        }
    }
    for (rows, depth, columns) in [(1, 300, 200), (3, 70, 33), (8, 33, 64), (2, 3, 5)] {
        let mut m = Model::new(&format!("gemv_{rows}_{depth}_{columns}"));
        let (a, b, bias) = (m.x(&[rows, depth]), m.weights(&[columns, depth]), m.weights(&[columns]));
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: true, epilogue: bias_relu() });
        let y = m.f32(op, &[a, b, bias], &[rows, columns]);
        models.push(m.output(&[y]));
    }
    let plain = |transpose_b| Op::MatMul(MatMul { transpose_a: false, transpose_b, epilogue: PointProgram::default() });
    let mut m = Model::new("matmul_batched_weights");
    let (a, b, bias, residual) = (m.x(&[3, 11, 64]), m.weights(&[64, 48]), m.weights(&[48]), m.x(&[3, 11, 48]));
    let epilogue = steps(
        F32,
        &[(PointOp::Add, &[Input(0), Input(1)]), (PointOp::Erf, &[Step(0)]), (PointOp::Add, &[Step(1), Input(2)])],
    );
    let y = m.f32(
        Op::MatMul(MatMul { transpose_a: false, transpose_b: false, epilogue }),
        &[a, b, bias, residual],
        &[3, 11, 48],
    );
    models.push(m.output(&[y]));
    let mut m = Model::new("matmul_attention");
    let (q, k, v) = (m.x(&[2, 3, 20, 16]), m.x(&[2, 3, 20, 16]), m.x(&[2, 3, 20, 16]));
    let mask = m.x(&[2, 1, 1, 20]);
    let epilogue = steps(F32, &[(PointOp::Mul, &[Input(0), Const(0.25)]), (PointOp::Add, &[Step(0), Input(1)])]);
    let scores =
        m.f32(Op::MatMul(MatMul { transpose_a: false, transpose_b: true, epilogue }), &[q, k, mask], &[2, 3, 20, 20]);
    let weights = m.f32(Op::Softmax { axis: 3, log: false }, &[scores], &[2, 3, 20, 20]);
    let y = m.f32(plain(false), &[weights, v], &[2, 3, 20, 16]);
    models.push(m.output(&[y]));
    let mut m = Model::new("matmul_broadcast");
    let (a, b) = (m.x(&[2, 1, 10, 40]), m.x(&[5, 40, 33]));
    let y = m.f32(plain(false), &[a, b], &[2, 5, 10, 33]);
    let (c, d) = (m.x(&[4, 2, 16]), m.x(&[4, 16, 50]));
    let z = m.f32(plain(false), &[c, d], &[4, 2, 50]);
    models.push(m.output(&[y, z]));
    let mut m = Model::new("matmul_half");
    let (a, b) = (m.input(F16, &[20, 50]), m.input(F16, &[50, 40]));
    let y = m.op(plain(false), &[a, b], F16, dims(&[20, 40]));
    let (a, b) = (m.input(F16, &[20, 50]), m.input(F16, &[41, 50]));
    let z = m.op(plain(true), &[a, b], F16, dims(&[20, 41]));
    models.push(m.output(&[y, z]));
    for dtype in [F64, I32, I64, U32, U64, I8] {
        let mut m = Model::new(&format!("matmul_{dtype:?}"));
        let (a, b) = (m.input(dtype, &[2, 1, 7, 30]), m.input(dtype, &[3, 30, 45]));
        let y = m.op(plain(false), &[a, b], dtype, dims(&[2, 3, 7, 45]));
        let (c, d) = (m.input(dtype, &[30, 1]), m.input(dtype, &[9, 30]));
        let product = MatMul {
            transpose_a: true,
            transpose_b: true,
            epilogue: steps(dtype, &[(PointOp::Add, &[Input(0), Input(1)])]),
        };
        let extra = m.input(dtype, &[9]);
        let z = m.op(Op::MatMul(product), &[c, d, extra], dtype, dims(&[1, 9]));
        models.push(m.output(&[y, z]));
    }
    let mut m = Model::new("matmul_requantised");
    let (a, b) = (m.input(I32, &[6, 50]), m.input(I32, &[50, 20]));
    let mut p = ProgramBuilder::default();
    let sum = p.step(PointOp::Cast, F32, &[Input(0)]);
    let scaled = p.step(PointOp::Mul, F32, &[sum, Const(0.0005)]);
    let rounded = p.step(PointOp::Round, F32, &[scaled]);
    let bounded = p.step(PointOp::Clip, F32, &[rounded, Const(-128.0), Const(127.0)]);
    p.step(PointOp::Cast, I8, &[bounded]);
    let product = MatMul { transpose_a: false, transpose_b: false, epilogue: p.finish() };
    let y = m.op(Op::MatMul(product), &[a, b], I8, dims(&[6, 20]));
    models.push(m.output(&[y]));
    models
}

/// Convolutions of every form.
pub fn convolutions() -> Vec<Model> {
    struct Case {
        name: &'static str,
        x: [i64; 4],
        filters: i64,
        groups: i64,
        kernel: [i64; 2],
        strides: [u32; 2],
        pads: [u32; 4],
        dilations: [u32; 2],
    }
    let plain = Case {
        name: "conv1x1",
        x: [1, 32, 14, 14],
        filters: 40,
        groups: 1,
        kernel: [1, 1],
        strides: [1; 2],
        pads: [0; 4],
        dilations: [1; 2],
    };
    let cases = [
        Case { ..plain },
        Case { name: "conv1x1_batch", x: [3, 17, 7, 7], filters: 64, ..plain },
        Case { name: "conv1x1_stride", x: [2, 16, 9, 9], strides: [2, 2], ..plain },
        Case { name: "conv3x3", kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv3x3_wide", x: [1, 8, 20, 61], filters: 70, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv3x3_valid", x: [2, 8, 12, 40], filters: 16, kernel: [3, 3], ..plain },
        Case { name: "conv3x3_small_images", x: [3, 12, 7, 7], filters: 24, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv5x5_uneven", x: [1, 9, 15, 33], filters: 20, kernel: [5, 3], pads: [2, 1, 2, 1], ..plain },
        Case {
            name: "conv7x7_stride",
            x: [1, 3, 40, 40],
            filters: 64,
            kernel: [7, 7],
            strides: [2, 2],
            pads: [3; 4],
            ..plain
        },
        Case { name: "conv3x3_dilated", kernel: [3, 3], pads: [2; 4], dilations: [2, 2], ..plain },
        Case { name: "conv_row", x: [1, 12, 1, 90], kernel: [1, 5], pads: [0, 2, 0, 2], ..plain },
        Case { name: "conv_one_sided", x: [2, 10, 9, 30], kernel: [3, 3], pads: [0, 2, 1, 0], ..plain },
        Case {
            name: "conv_grouped",
            x: [1, 32, 10, 10],
            filters: 64,
            groups: 4,
            kernel: [3, 3],
            pads: [1; 4],
            ..plain
        },
        Case { name: "conv_grouped_1x1", x: [2, 32, 10, 10], filters: 48, groups: 2, ..plain },
        Case { name: "conv_resnext", x: [1, 32, 9, 40], filters: 32, groups: 8, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv_few_filters", x: [1, 20, 9, 9], filters: 3, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "depthwise", x: [1, 24, 30, 30], filters: 24, groups: 24, kernel: [3, 3], pads: [1; 4], ..plain },
        Case {
            name: "depthwise_small",
            x: [2, 24, 7, 7],
            filters: 24,
            groups: 24,
            kernel: [5, 5],
            pads: [2; 4],
            ..plain
        },
        Case {
            name: "depthwise_stride",
            x: [1, 24, 28, 56],
            filters: 24,
            groups: 24,
            kernel: [3, 3],
            strides: [2, 2],
            pads: [1; 4],
            ..plain
        },
        Case {
            name: "depthwise_double",
            x: [1, 6, 8, 8],
            filters: 12,
            groups: 6,
            kernel: [3, 3],
            pads: [1; 4],
            ..plain
        },
        Case {
            name: "depthwise_large",
            x: [1, 4, 20, 33],
            filters: 4,
            groups: 4,
            kernel: [9, 9],
            pads: [4; 4],
            ..plain
        },
        Case {
            name: "depthwise_bands",
            x: [2, 3, 61, 50],
            filters: 3,
            groups: 3,
            kernel: [7, 7],
            pads: [3; 4],
            ..plain
        },
        Case { name: "depthwise_valid", x: [1, 5, 20, 20], filters: 5, groups: 5, kernel: [5, 4], ..plain },
        Case {
            name: "depthwise_dilated",
            x: [1, 5, 19, 37],
            filters: 5,
            groups: 5,
            kernel: [5, 5],
            pads: [4, 6, 4, 2],
            dilations: [2, 2],
            ..plain
        },
        Case { name: "conv_whole_image", x: [2, 16, 4, 4], filters: 20, kernel: [4, 4], ..plain },
        Case { name: "conv_one_pixel", x: [1, 48, 1, 1], filters: 20, ..plain },
    ];
    cases
        .into_iter()
        .map(|c| {
            let mut m = Model::new(c.name);
            let out = |axis: usize| {
                let [extent, kernel] = [c.x[2 + axis], c.kernel[axis]];
                let padded = extent + i64::from(c.pads[axis] + c.pads[2 + axis]);
                (padded - i64::from(c.dilations[axis]) * (kernel - 1) - 1) / i64::from(c.strides[axis]) + 1
            };
            let shape = [c.x[0], c.filters, out(0), out(1)];
            let (x, w) = (m.x(&c.x), m.weights(&[c.filters, c.x[1] / c.groups, c.kernel[0], c.kernel[1]]));
            let (bias, residual) = (m.weights(&[c.filters, 1, 1]), m.x(&shape));
            let epilogue = steps(
                F32,
                &[
                    (PointOp::Add, &[Input(0), Input(1)]),
                    (PointOp::Add, &[Step(0), Input(2)]),
                    (PointOp::Relu, &[Step(1)]),
                ],
            );
            let conv = Conv {
                strides: c.strides.to_vec(),
                pads: c.pads.to_vec(),
                dilations: c.dilations.to_vec(),
                groups: c.groups as u32,
                epilogue,
            };
            let y = m.f32(Op::Conv(conv), &[x, w, bias, residual], &shape);
            m.output(&[y])
        })
        .collect()
}

/// Convolutions over volumes.
pub fn volumes() -> Vec<Model> {
    let cases: &[(&str, [i64; 5], i64, i64, [i64; 3], [u32; 3], [u32; 6], [u32; 3])] = &[
        ("conv3d", [1, 5, 6, 9, 10], 16, 1, [3, 3, 3], [1; 3], [1; 6], [1; 3]),
        ("conv3d_small_images", [2, 6, 4, 5, 6], 12, 1, [3, 2, 3], [1, 2, 1], [1, 0, 1, 0, 1, 1], [1; 3]),
        ("conv3d_dilated", [1, 3, 9, 8, 20], 8, 1, [3, 3, 2], [2, 1, 1], [2, 1, 0, 2, 1, 1], [2, 1, 1]),
        ("conv3d_pointwise", [2, 10, 3, 4, 5], 9, 1, [1; 3], [1; 3], [0; 6], [1; 3]),
        ("conv3d_grouped", [1, 8, 5, 6, 7], 32, 2, [2, 3, 3], [1; 3], [1, 1, 1, 0, 1, 1], [1; 3]),
        ("conv3d_depthwise", [1, 6, 7, 6, 30], 6, 6, [3, 3, 3], [1; 3], [1; 6], [1; 3]),
        ("conv3d_depthwise_stride", [2, 3, 9, 8, 9], 6, 3, [5, 3, 2], [2, 2, 1], [2, 1, 0, 2, 1, 1], [1, 1, 2]),
        ("conv3d_few_filters", [1, 4, 5, 6, 26], 3, 1, [3, 9, 9], [1; 3], [1, 4, 4, 1, 4, 4], [1; 3]),
        ("conv3d_whole_volume", [2, 4, 2, 3, 3], 20, 1, [2, 3, 3], [1; 3], [0; 6], [1; 3]),
    ];
    cases
        .iter()
        .map(|(name, x, filters, groups, kernel, strides, pads, dilations)| {
            let mut m = Model::new(name);
            let out = |axis: usize| {
                let padded = x[2 + axis] + i64::from(pads[axis] + pads[3 + axis]);
                (padded - i64::from(dilations[axis]) * (kernel[axis] - 1) - 1) / i64::from(strides[axis]) + 1
            };
            let shape = [x[0], *filters, out(0), out(1), out(2)];
            let weights = [*filters, x[1] / groups, kernel[0], kernel[1], kernel[2]];
            let (x, w, bias) = (m.x(x), m.weights(&weights), m.weights(&[*filters, 1, 1, 1]));
            let conv = Conv {
                strides: strides.to_vec(),
                pads: pads.to_vec(),
                dilations: dilations.to_vec(),
                groups: *groups as u32,
                epilogue: bias_relu(),
            };
            let y = m.f32(Op::Conv(conv), &[x, w, bias], &shape);
            m.output(&[y])
        })
        .collect()
}

/// Pooling and resizing.
pub fn windows() -> Vec<Model> {
    let mut models = Vec::new();
    let kinds = [
        PoolKind::Max,
        PoolKind::Sum,
        PoolKind::Average { count_include_pad: true },
        PoolKind::Average { count_include_pad: false },
    ];
    let pools: &[(&str, [i64; 4], [u32; 2], [u32; 2], [u32; 4], [u32; 2], [i64; 2])] = &[
        ("pool2", [1, 5, 20, 60], [2, 2], [2, 2], [0; 4], [1, 1], [10, 30]),
        ("pool3", [2, 5, 13, 13], [3, 3], [2, 2], [1; 4], [1, 1], [7, 7]),
        ("pool_ceil", [1, 3, 13, 14], [3, 3], [2, 2], [0; 4], [1, 1], [6, 7]),
        ("pool_global", [2, 9, 7, 7], [7, 7], [1, 1], [0; 4], [1, 1], [1, 1]),
        ("pool_large", [1, 3, 30, 40], [10, 9], [1, 1], [4, 4, 5, 4], [1, 1], [30, 40]),
        ("pool_dilated", [1, 3, 20, 40], [3, 2], [1, 2], [1, 0, 1, 1], [2, 3], [18, 19]),
    ];
    for (name, shape, window, strides, pads, dilations, out) in pools {
        let mut m = Model::new(name);
        let x = m.x(shape);
        let out = [shape[0], shape[1], out[0], out[1]];
        let outputs = kinds.map(|kind| {
            let pool = Pool { kind, window: *window, strides: *strides, pads: *pads, dilations: *dilations };
            m.f32(Op::Pool(pool), &[x], &out)
        });
        models.push(m.output(&outputs));
    }
    let mut m = Model::new("pool_nan");
    let mut pixels = vec![1.0; 2 * 40 * 40];
    pixels[45] = f64::NAN;
    let x = m.input_of(dims(&[1, 2, 40, 40]), Tensor::floats(F32, vec![1, 2, 40, 40], pixels));
    let pool = Pool { kind: PoolKind::Max, window: [3, 3], strides: [1, 1], pads: [1; 4], dilations: [1, 1] };
    let y = m.f32(Op::Pool(pool), &[x], &[1, 2, 40, 40]);
    models.push(m.output(&[y]));
    let modes = [
        ResizeMode::NearestFloor,
        ResizeMode::NearestCeil,
        ResizeMode::NearestRoundPreferFloor,
        ResizeMode::NearestRoundPreferCeil,
        ResizeMode::Linear,
    ];
    for coordinates in [
        CoordinateMode::HalfPixel,
        CoordinateMode::PytorchHalfPixel,
        CoordinateMode::AlignCorners,
        CoordinateMode::Asymmetric,
    ] {
        let mut m = Model::new(&format!("resize_{coordinates:?}"));
        let (x, y) = (m.x(&[1, 3, 10, 20]), m.x(&[1, 2, 9, 9]));
        let mut outputs = Vec::new();
        for mode in modes {
            outputs.push(m.f32(Op::Resize(Resize { mode, coordinates, scales: [2.0, 2.0] }), &[x], &[1, 3, 20, 40]));
            outputs.push(m.f32(
                Op::Resize(Resize { mode, coordinates, scales: [0.6, 1.0 / 9.0] }),
                &[y],
                &[1, 2, 5, 1],
            ));
        }
        models.push(m.output(&outputs));
    }
    models
}

/// Recurrent cells.
pub fn recurrence() -> Vec<Model> {
    let mut models = Vec::new();
    for (name, cell, direction, steps, batch, width, hidden) in [
        ("lstm", Cell::Lstm, Direction::Forward, 5, 1, 20, 32),
        ("lstm_reverse", Cell::Lstm, Direction::Reverse, 4, 3, 10, 33),
        ("lstm_both", Cell::Lstm, Direction::Bidirectional, 3, 2, 7, 50),
        ("lstm_wide", Cell::Lstm, Direction::Forward, 2, 1, 8, 300),
        ("gru", Cell::Gru, Direction::Forward, 5, 2, 9, 32),
        ("gru_both", Cell::Gru, Direction::Bidirectional, 3, 2, 7, 45),
        ("rnn_reverse", Cell::Rnn, Direction::Reverse, 4, 2, 6, 35),
    ] {
        let mut m = Model::new(name);
        let d = if direction == Direction::Bidirectional { 2 } else { 1 };
        let rows = cell.gates() as i64 * hidden;
        let mut inputs = vec![
            m.x(&[steps, batch, width]),
            m.weights(&[d, rows, width]),
            m.weights(&[d, rows, hidden]),
            m.weights(&[d, 2 * rows]),
        ];
        let state = dims(&[d, batch, hidden]);
        let mut shapes = vec![dims(&[steps, d, batch, hidden])];
        for _ in 0..cell.states() {
            inputs.push(m.x(&[d, batch, hidden]));
            shapes.push(state.clone());
        }
        let outputs = m.ops(Op::Recurrent { cell, hidden: hidden as usize, direction }, &inputs, F32, shapes);
        models.push(m.output(&outputs));
    }
    let mut m = Model::new("lstm_of_inputs");
    let inputs =
        [m.x(&[3, 1, 6]), m.x(&[1, 40, 6]), m.x(&[1, 40, 10]), m.x(&[1, 80]), m.x(&[1, 1, 10]), m.x(&[1, 1, 10])];
    let shapes = vec![dims(&[3, 1, 1, 10]), dims(&[1, 1, 10]), dims(&[1, 1, 10])];
    let outputs =
        m.ops(Op::Recurrent { cell: Cell::Lstm, hidden: 10, direction: Direction::Forward }, &inputs, F32, shapes);
    models.push(m.output(&outputs));
    models
}

/// Who owns which buffer.
pub fn buffers() -> Vec<Model> {
    let mut models = Vec::new();
    let mut m = Model::new("input_is_output");
    let x = m.x(&[4, 5]);
    let reshaped = m.f32(Op::Reshape, &[x], &[20]);
    models.push(m.output(&[x, reshaped]));
    let mut m = Model::new("constant_is_output");
    let c = m.weights(&[3, 3]);
    models.push(m.output(&[c]));
    let mut m = Model::new("output_is_used_and_reshaped");
    let x = m.x(&[4, 6]);
    let y = m.f32(unary(PointOp::Neg), &[x], &[4, 6]);
    let flat = m.f32(Op::Reshape, &[y], &[24]);
    let z = m.f32(unary(PointOp::Abs), &[flat], &[24]);
    models.push(m.output(&[flat, y, z, z]));
    let mut m = Model::new("reshaped_constant");
    let (x, c) = (m.x(&[8, 12]), m.weights(&[8, 12]));
    let c = m.f32(Op::Reshape, &[c], &[12, 8]);
    let plain = MatMul { transpose_a: false, transpose_b: false, epilogue: PointProgram::default() };
    let y = m.f32(Op::MatMul(plain.clone()), &[x, c], &[8, 8]);
    let turned = m.f32(Op::Reshape, &[c], &[8, 12]);
    let z = m.f32(Op::MatMul(MatMul { transpose_b: true, ..plain }), &[x, turned], &[8, 8]);
    models.push(m.output(&[y, z]));
    models
}

/// Shapes that are known only when the function is invoked.
pub fn symbolic() -> Vec<Model> {
    let mut models = Vec::new();
    for extent in [1, 5, 40] {
        let mut m = Model::new(&format!("symbolic_transformer_{extent}"));
        let (batch, tokens) = (m.symbol("batch"), m.symbol("tokens"));
        let of =
            |last: &[i64]| -> Vec<Expr> { [batch.clone(), tokens.clone()].into_iter().chain(dims(last)).collect() };
        let x = m.x_of(of(&[32]), &[2, extent, 32]);
        let (w, bias) = (m.weights(&[32, 64]), m.weights(&[64]));
        let up = m.op(
            Op::MatMul(MatMul { transpose_a: false, transpose_b: false, epilogue: bias_relu() }),
            &[x, w, bias],
            F32,
            of(&[64]),
        );
        let (scale, shift) = (m.weights(&[64]), m.weights(&[64]));
        let normal = m.op(Op::LayerNorm { axis: 2, epsilon: 1e-5 }, &[up, scale, shift], F32, of(&[64]));
        let heads = m.op(Op::Reshape, &[normal], F32, of(&[4, 16]));
        let by_head = vec![batch.clone(), Expr::Const(4), tokens.clone(), Expr::Const(16)];
        let heads = m.op(Op::Transpose { permutation: vec![0, 2, 1, 3] }, &[heads], F32, by_head);
        let scores_shape = vec![batch.clone(), Expr::Const(4), tokens.clone(), tokens.clone()];
        let scores = MatMul { transpose_a: false, transpose_b: true, epilogue: PointProgram::default() };
        let scores = m.op(Op::MatMul(scores), &[heads, heads], F32, scores_shape.clone());
        let weights = m.op(Op::Softmax { axis: 3, log: false }, &[scores], F32, scores_shape);
        let mean = Op::Reduce(Reduce { kind: ReduceKind::Mean, axes: vec![1], keep_dims: false });
        let pooled = m.op(mean, &[normal], F32, vec![batch.clone(), Expr::Const(64)]);
        models.push(m.output(&[weights, pooled]));
    }
    // A kernel of their own for few rows: one, as many as accumulators, parts of a tile, a whole one.
    for rows in [1, 3, 8, 13, 30, 33] {
        let mut m = Model::new(&format!("symbolic_rows_{rows}"));
        let (batch, tokens) = (m.symbol("batch"), m.symbol("tokens"));
        let of = |last: i64| vec![batch.clone(), tokens.clone(), Expr::Const(last)];
        let x = m.x_of(of(70), &[1, rows, 70]);
        let plain = |transpose_b| Op::MatMul(MatMul { transpose_a: false, transpose_b, epilogue: bias_relu() });
        let (w, bias) = (m.weights(&[70, 150]), m.weights(&[150]));
        let up = m.op(plain(false), &[x, w, bias], F32, of(150));
        let (w, bias) = (m.weights(&[40, 150]), m.weights(&[40]));
        let down = m.op(plain(true), &[up, w, bias], F32, of(40));
        models.push(m.output(&[down]));
    }
    for extent in [9, 50] {
        let mut m = Model::new(&format!("symbolic_image_{extent}"));
        let (height, width) = (m.symbol("height"), m.symbol("width"));
        let of = |channels: i64, h: &Expr, w: &Expr| vec![Expr::Const(1), Expr::Const(channels), h.clone(), w.clone()];
        let x = m.x_of(of(3, &height, &width), &[1, 3, extent, extent + 3]);
        let (w, bias) = (m.weights(&[16, 3, 3, 3]), m.weights(&[16, 1, 1]));
        let half = |e: &Expr| (e.clone() - 1).floor_div(2) + 1;
        let (h2, w2) = (half(&height), half(&width));
        let conv =
            Conv { strides: vec![2, 2], pads: vec![1; 4], dilations: vec![1, 1], groups: 1, epilogue: bias_relu() };
        let y = m.op(Op::Conv(conv), &[x, w, bias], F32, of(16, &h2, &w2));
        let w = m.weights(&[20, 16, 1, 1]);
        let one = Conv {
            strides: vec![1, 1],
            pads: vec![0; 4],
            dilations: vec![1, 1],
            groups: 1,
            epilogue: PointProgram::default(),
        };
        let y = m.op(Op::Conv(one), &[y, w], F32, of(20, &h2, &w2));
        let w = m.weights(&[20, 1, 3, 3]);
        let depthwise = Conv {
            strides: vec![1, 1],
            pads: vec![1; 4],
            dilations: vec![1, 1],
            groups: 20,
            epilogue: PointProgram::default(),
        };
        let y = m.op(Op::Conv(depthwise), &[y, w], F32, of(20, &h2, &w2));
        let (h4, w4) = (h2.clone() * 2, w2.clone() * 2);
        let resize = Resize { mode: ResizeMode::Linear, coordinates: CoordinateMode::HalfPixel, scales: [2.0, 2.0] };
        let z = m.op(Op::Resize(resize), &[y], F32, of(20, &h4, &w4));
        let joined = m.op(Op::Concat { axis: 1 }, &[z, z], F32, of(40, &h4, &w4));
        let mean = Op::Reduce(Reduce { kind: ReduceKind::Mean, axes: vec![2, 3], keep_dims: true });
        let mean = m.op(mean, &[joined], F32, dims(&[1, 40, 1, 1]));
        models.push(m.output(&[joined, mean]));
    }
    models.extend(
        [[1, 70, 5, 1], [6, 70, 1, 70], [6, 1, 6, 70], [1, 1, 1, 1]]
            .map(|[a, b, c, d]| broadcast_at_run_time([a, b], [c, d])),
    );
    models.extend([0, 1, 9].map(reversed_and_cut));
    models
}

/// Two operands of which each dimension may be 1 or that of the other.
fn broadcast_at_run_time(left: [i64; 2], right: [i64; 2]) -> Model {
    let name = left.iter().chain(&right).map(i64::to_string).collect::<Vec<String>>().join("_");
    let mut m = Model::new(&format!("broadcast_at_run_time_{name}"));
    let [a, b] = [["n", "k"], ["rows", "columns"]].map(|names| names.map(|name| m.symbol(name)));
    let result: Vec<Expr> = a.iter().zip(&b).map(|(a, b)| a.clone().max(b.clone())).collect();
    for (dim, to) in a.iter().zip(&result).chain(b.iter().zip(&result)) {
        let condition =
            Condition { place: "test".into(), relation: Relation::Broadcasts, left: dim.clone(), right: to.clone() };
        m.graph.conditions.push(condition);
    }
    let (x, y) = (m.x_of(a.to_vec(), &left), m.x_of(b.to_vec(), &right));
    let sum = m.op(binary(PointOp::Add, F32), &[x, y], F32, result);
    m.output(&[sum])
}

/// A slice backwards within a dimension that lies behind a symbolic one, sizes stored as a tensor,
/// and a part that may have no elements.
fn reversed_and_cut(extent: i64) -> Model {
    let mut m = Model::new(&format!("reversed_and_cut_{extent}"));
    let n = m.symbol("n");
    m.graph.symbols[0].min = 0;
    let x = m.x_of(vec![n.clone(), n.clone() + 2, Expr::Const(3)], &[extent, extent + 2, 3]);
    let (zero, last) = (Expr::Const(0), n.clone() + 1);
    let slice = |starts: &[&Expr], steps: [i64; 3]| Op::Slice {
        starts: starts.iter().map(|s| (*s).clone()).collect(),
        steps: steps.to_vec(),
    };
    let back =
        m.op(slice(&[&zero, &last, &zero], [1, -1, 1]), &[x], F32, vec![n.clone(), n.clone() + 2, Expr::Const(3)]);
    let few = n.clone().min(1);
    let cut = m.op(
        slice(&[&zero, &zero, &zero], [1, 2, 1]),
        &[back],
        F32,
        vec![few, (n.clone() + 2).ceil_div(2), Expr::Const(3)],
    );
    let mut nest = NestBuilder::new("sizes", Vec::new());
    for (index, size) in [n.clone(), n.clone() * 2 - 7].iter().enumerate() {
        let value = nest.cast(&NestArg::from(size), DType::I64);
        nest.store(0, &NestArg::from(index as i64), &value);
    }
    let sizes = m.op(Op::Nest(nest.finish()), &[], DType::I64, dims(&[2]));
    m.output(&[back, cut, sizes])
}
