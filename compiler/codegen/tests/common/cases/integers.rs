//! Integers, booleans, and conversions between types.

use super::*;

/// Arithmetic, comparisons, logic and casts of integers, booleans and other types.
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
        // Each step rounds: without rounding, the small term would remain.
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

/// Bitwise operations, and comparisons that give another result with a sign.
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

/// Powers in which the base, the exponent or both are infinite, 1 or NaN.
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

/// Values inside, at and beyond the limits of every type, cast to every type.
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
