//! Measures single kernels on one core of this machine. Not a test: run it with
//! `--ignored --nocapture`.

mod common;

use atoll_codegen::TargetDescription;
use atoll_frontend::program::ProgramBuilder;
use atoll_frontend::tensor_graph::*;
use atoll_kgraph::DType::F32;
use common::Model;
use common::device::{Session, levels};
use regex::Regex;

fn conv(name: &str, x: [i64; 4], filters: i64, kernel: i64, stride: u32, groups: i64) -> (Model, f64) {
    let mut m = Model::new(name);
    let pad = (kernel as u32 - 1) / 2;
    let out = |extent: i64| (extent + 2 * i64::from(pad) - kernel) / i64::from(stride) + 1;
    let shape = [x[0], filters, out(x[2]), out(x[3])];
    let (input, w, bias) = (m.x(&x), m.weights(&[filters, x[1] / groups, kernel, kernel]), m.weights(&[filters, 1, 1]));
    let mut epilogue = ProgramBuilder::default();
    let sum = epilogue.step(PointOp::Add, F32, &[PointArg::Input(0), PointArg::Input(1)]);
    epilogue.step(PointOp::Relu, F32, &[sum]);
    let conv = Conv {
        strides: vec![stride; 2],
        pads: vec![pad; 4],
        dilations: vec![1; 2],
        groups: groups as u32,
        epilogue: epilogue.finish(),
    };
    let y = m.f32(Op::Conv(conv), &[input, w, bias], &shape);
    let products = shape.iter().product::<i64>() * x[1] / groups * kernel * kernel;
    (m.output(&[y]), 2.0 * products as f64)
}

fn matmul(name: &str, batch: i64, rows: i64, depth: i64, columns: i64, transpose_b: bool) -> (Model, f64) {
    let mut m = Model::new(name);
    let a = m.x(&[batch, rows, depth]);
    let b = match (batch, transpose_b) {
        (1, _) => m.weights(&[depth, columns]),
        (_, true) => m.x(&[batch, columns, depth]),
        (_, false) => m.x(&[batch, depth, columns]),
    };
    let op = Op::MatMul(MatMul {
        transpose_a: false,
        transpose_b: transpose_b && batch > 1,
        epilogue: PointProgram::default(),
    });
    let y = m.f32(op, &[a, b], &[batch, rows, columns]);
    (m.output(&[y]), (2 * batch * rows * depth * columns) as f64)
}

fn single(name: &str, op: Op, shape: &[i64], inputs: usize) -> (Model, f64) {
    let mut m = Model::new(name);
    let x: Vec<ValueId> = (0..inputs).map(|_| m.x(shape)).collect();
    let y = m.f32(op, &x, shape);
    (m.output(&[y]), shape.iter().product::<i64>() as f64)
}

#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stderr, reason = "its only purpose")]
fn speed() {
    let cases = [
        conv("conv1x1 64>256 56", [1, 64, 56, 56], 256, 1, 1, 1),
        conv("conv1x1 256>64 56", [1, 256, 56, 56], 64, 1, 1, 1),
        conv("conv1x1 1024>256 14", [1, 1024, 14, 14], 256, 1, 1, 1),
        conv("conv1x1 2048>512 7", [1, 2048, 7, 7], 512, 1, 1, 1),
        conv("conv1x1 s2 256>512 56", [1, 256, 56, 56], 512, 1, 2, 1),
        conv("conv3x3 64 56", [1, 64, 56, 56], 64, 3, 1, 1),
        conv("conv3x3 128 28", [1, 128, 28, 28], 128, 3, 1, 1),
        conv("conv3x3 256 14", [1, 256, 14, 14], 256, 3, 1, 1),
        conv("conv3x3 512 7", [1, 512, 7, 7], 512, 3, 1, 1),
        conv("conv3x3 s2 128 56", [1, 128, 56, 56], 128, 3, 2, 1),
        conv("conv7x7 s2 3>64 224", [1, 3, 224, 224], 64, 7, 2, 1),
        conv("depthwise 96 56", [1, 96, 56, 56], 96, 3, 1, 96),
        conv("depthwise 240 14", [1, 240, 14, 14], 240, 5, 1, 240),
        conv("resnext 32x4 56", [1, 128, 56, 56], 128, 3, 1, 32),
        matmul("matmul 128 768 768", 1, 128, 768, 768, false),
        matmul("matmul 128 768 3072", 1, 128, 768, 3072, false),
        matmul("matmul 512^3", 1, 512, 512, 512, false),
        matmul("attention qk", 12, 128, 64, 128, true),
        matmul("attention av", 12, 128, 128, 64, false),
        matmul("gemv 2048 1000", 1, 1, 2048, 1000, false),
        single("add 1M", Op::Pointwise(PointProgram::single(PointOp::Add, F32, 2)), &[1 << 20], 2),
        single("erf 1M", Op::Pointwise(PointProgram::single(PointOp::Erf, F32, 1)), &[1 << 20], 1),
        single("sigmoid 1M", Op::Pointwise(PointProgram::single(PointOp::Sigmoid, F32, 1)), &[1 << 20], 1),
        single("softmax 1536x128", Op::Softmax { axis: 1, log: false }, &[1536, 128], 1),
        single("softmax 8x1000", Op::Softmax { axis: 1, log: false }, &[8, 1000], 1),
    ];
    let filter = Regex::new(&std::env::var("CASE").unwrap_or_default())
        .unwrap_or_else(|error| panic!("CASE is not a regular expression: {error}"));
    for (level, host) in levels().into_iter().rev().take(if std::env::var_os("ALL_LEVELS").is_some() { 2 } else { 1 }) {
        for (model, operations) in cases.iter().filter(|(m, _)| filter.is_match(&m.graph.name)) {
            let start = std::time::Instant::now();
            let mut session = Session::new(model, level, &TargetDescription::host(host));
            let compile = start.elapsed();
            session.measure(3);
            let (_, best) = session.measure(12).pop().expect("one node");
            let seconds = best.as_secs_f64();
            let blocks = session.blocks(0);
            eprintln!(
                "{host:?} {:<24} {:>9.1} us {:>7.2} G/s {blocks:>6} blocks of {:>7.1} us, compiled in {:>4} ms",
                model.graph.name,
                seconds * 1e6,
                operations / seconds / 1e9,
                seconds * 1e6 / blocks as f64,
                compile.as_millis()
            );
        }
    }
}
