//! Matrix products.

use super::*;

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
