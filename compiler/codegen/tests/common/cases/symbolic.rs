//! Buffers that values share, and shapes that are known only in an invocation.

use super::*;

/// Which values share buffers.
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

/// Shapes that are known only in the invocation.
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
    // The variants for few rows: one row, as many as accumulators, part of a tile, a whole tile.
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

/// Two operands in which each dimension may be 1 or equal to that of the other.
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

/// A slice with negative steps in a dimension after a symbolic one; sizes stored as a tensor; and a
/// slice that may be empty.
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
