//! Narrow types: conversion to and from them, and operators that move their elements.

use super::*;

/// Numbers within, at and beyond the range of narrow types, and between neighbours.
fn numbers() -> Vec<f64> {
    let mut numbers = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e30, -1e30, 1e-30, -1e-30];
    for magnitude in [464.0, 465.0, 248.0, 240.1, 57_344.0, 61_440.0, 61_439.0, 7.0, 5.0, 2.5] {
        numbers.extend([magnitude, -magnitude]);
    }
    // Every tie of a type with a 3-bit mantissa, and the numbers next to it, in all binades.
    for exponent in -20..17 {
        for step in 16..32 {
            let number = f64::from(step) / 16.0 * 2f64.powi(exponent);
            numbers.extend([number, number * (1.0 + 1e-6), -number * (1.0 - 1e-6)]);
        }
    }
    numbers
}

/// Every number of a narrow type.
fn every_number(dtype: DType) -> Tensor {
    let codes: Vec<u8> = (0..=u8::MAX >> (8 - dtype.bits())).collect();
    Tensor::from_bytes(dtype, &[codes.len()], &codes).expect("one byte is one element")
}

fn cast(m: &mut Model, x: ValueId, to: DType) -> ValueId {
    let shape = m.graph.value(x).shape.clone();
    m.op(Op::Pointwise(PointProgram::cast(to)), &[x], to, shape)
}

pub fn narrow() -> Vec<Model> {
    DType::NARROW.into_iter().flat_map(|dtype| [conversions(dtype), moves(dtype)]).collect()
}

fn conversions(dtype: DType) -> Model {
    let mut m = Model::new(&format!("narrow_{dtype:?}"));
    let wide = if is_float(dtype) {
        Tensor::floats(F32, vec![numbers().len()], numbers())
    } else {
        Tensor::floats(F32, vec![200], (0..200).map(|i| f64::from(i - 100) / 4.0))
    };
    let wide = m.input_of(dims(&[wide.len() as i64]), wide);
    let whole = m.input_of(dims(&[300]), Tensor::ints(I32, vec![300], (0..300).map(|i| i - 150)));
    let all = every_number(dtype);
    let all = m.input_of(dims(&[all.len() as i64]), all);
    let mut outputs = vec![cast(&mut m, wide, dtype), cast(&mut m, whole, dtype)];
    outputs.extend([F32, F16, F64].map(|to| cast(&mut m, all, to)));
    // A cast inside a program rounds, too.
    let step = |ty, arg| PointStep { op: PointOp::Cast, ty, args: vec![arg] };
    let twice = PointProgram { steps: vec![step(dtype, Input(0)), step(F32, Step(0))] };
    let shape = m.graph.value(wide).shape.clone();
    outputs.push(m.op(Op::Pointwise(twice), &[wide], F32, shape));
    for to in DType::NARROW.into_iter().chain([U8, I8]).filter(|to| to.bits() == dtype.bits()) {
        let shape = m.graph.value(all).shape.clone();
        let step = PointProgram { steps: vec![PointStep { op: PointOp::BitCast, ty: to, args: vec![Input(0)] }] };
        outputs.push(m.op(Op::Pointwise(step), &[all], to, shape));
    }
    m.output(&outputs)
}

fn moves(dtype: DType) -> Model {
    let mut m = Model::new(&format!("narrow_moves_{dtype:?}"));
    let codes: Vec<u8> = (0..35).map(|i| (i * 37 % 101) as u8 & (u8::MAX >> (8 - dtype.bits()))).collect();
    let x = Tensor::from_bytes(dtype, &[5, 7], &codes).expect("one byte is one element");
    let x = m.input_of(dims(&[5, 7]), x);
    let turned = m.op(Op::Transpose { permutation: vec![1, 0] }, &[x], dtype, dims(&[7, 5]));
    let cut = Op::Slice { starts: dims(&[4, 1]), steps: vec![-2, 3] };
    let cut = m.op(cut, &[x], dtype, dims(&[3, 2]));
    let joined = m.op(Op::Concat { axis: 0 }, &[x, x], dtype, dims(&[10, 7]));
    let before = dims(&[1, 2]);
    let padded = m.op(Op::Pad { before: before.clone(), mode: PadMode::Edge }, &[x], dtype, dims(&[7, 9]));
    let filled = m.op(Op::Pad { before, mode: PadMode::Constant(1.0) }, &[x], dtype, dims(&[7, 9]));
    let indices = m.constant(&Tensor::ints(I64, vec![3], [4, 0, -1]));
    let gathered = m.op(Op::Gather { axis: 0 }, &[x, indices], dtype, dims(&[3, 7]));
    let spread = m.op(Op::Pointwise(PointProgram::default()), &[x], dtype, dims(&[2, 5, 7]));
    m.output(&[turned, cut, joined, padded, filled, gathered, spread])
}
