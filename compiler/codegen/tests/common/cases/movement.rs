//! Broadcasting, and operators that only move elements.

use super::*;

/// Pointwise operators with broadcasting.
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

/// Operators that move elements.
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
