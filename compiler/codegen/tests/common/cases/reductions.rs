//! Reductions and normalisations.

use super::*;

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

/// Every kind of reduction in one type, by warps and by threads, and over no elements.
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
            // The mean of a sum that overflowed depends on the width of the sum.
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
