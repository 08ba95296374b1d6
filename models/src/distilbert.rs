//! DistilBERT for sequence classification (Sanh et al. 2019), as the PyTorch exporter writes it: layer normalisation, GELU and attention in small operators.

use crate::builder::{Attribute, Builder};
use atoll_frontend::onnx::proto::DataType;

/// Published sizes; the width factor scales the first three.
const DIM: u32 = 768;
const HIDDEN: u32 = 3072;
const VOCABULARY: u32 = 30_522;
const HEADS: u32 = 12;
const LAYERS: u32 = 6;
const CLASSES: u32 = 2;

/// What every layer needs to know.
struct Sizes {
    sequence: u32,
    dim: u32,
    hidden: u32,
    heads: u32,
}

pub(crate) fn build(b: &mut Builder, sequence: u32) {
    // A head keeps its 64 numbers; the width factor takes heads away.
    let heads = (b.channels(HEADS * 8) / 8).max(1);
    let sizes = Sizes { sequence, dim: heads * (DIM / HEADS), hidden: b.channels(HIDDEN), heads };
    let vocabulary = b.channels(VOCABULARY);
    let shape = [1, i64::from(sequence)];
    let ids = b.input("input_ids", DataType::Int64, &shape);
    let mask = b.input("attention_mask", DataType::Int64, &shape);

    let words = b.random(&[vocabulary, sizes.dim], -0.5, 0.5);
    let words = b.node("Gather", &[&words, &ids], &[("axis", Attribute::Int(0))]);
    let positions = b.random(&[1, sequence, sizes.dim], -0.5, 0.5);
    let x = b.node("Add", &[&words, &positions], &[]);
    let mut x = layer_norm(b, &x, sizes.dim);

    let masked = masked_positions(b, &mask);
    for _ in 0..LAYERS {
        let attended = attention(b, &x, &masked, &sizes);
        let sum = b.node("Add", &[&attended, &x], &[]);
        x = layer_norm(b, &sum, sizes.dim);
        let fed = feed_forward(b, &x, &sizes);
        let sum = b.node("Add", &[&fed, &x], &[]);
        x = layer_norm(b, &sum, sizes.dim);
    }
    let first = b.ints(&[0]);
    let first_index = b.node("Squeeze", &[&first], &[]);
    let pooled = b.node("Gather", &[&x, &first_index], &[("axis", Attribute::Int(1))]);
    let pooled = b.gemm(&pooled, sizes.dim, sizes.dim);
    let pooled = b.relu(&pooled);
    let logits = b.gemm(&pooled, sizes.dim, CLASSES);
    b.output("logits", &logits, &[1, CLASSES.into()]);
}

/// `[1, 1, 1, sequence]`, true where the attention must not look.
fn masked_positions(b: &mut Builder, mask: &str) -> String {
    let mask = b.node("Cast", &[mask], &[("to", Attribute::Int(DataType::Float as i64))]);
    let zero = b.scalar(0.0);
    let masked = b.node("Equal", &[&mask, &zero], &[]);
    let axes = b.ints(&[1, 2]);
    b.node("Unsqueeze", &[&masked, &axes], &[])
}

/// Spelled out as exporters below opset 17 do.
fn layer_norm(b: &mut Builder, x: &str, dim: u32) -> String {
    let last = || [("axes", Attribute::Ints(vec![-1])), ("keepdims", Attribute::Int(1))];
    let mean = b.node("ReduceMean", &[x], &last());
    let centred = b.node("Sub", &[x, &mean], &[]);
    let two = b.scalar(2.0);
    let squared = b.node("Pow", &[&centred, &two], &[]);
    let variance = b.node("ReduceMean", &[&squared], &last());
    let epsilon = b.scalar(1e-12);
    let stable = b.node("Add", &[&variance, &epsilon], &[]);
    let deviation = b.node("Sqrt", &[&stable], &[]);
    let normal = b.node("Div", &[&centred, &deviation], &[]);
    let scale = b.random(&[dim], 0.5, 1.5);
    let bias = b.random(&[dim], -0.2, 0.2);
    let scaled = b.node("Mul", &[&normal, &scale], &[]);
    b.node("Add", &[&scaled, &bias], &[])
}

/// `[1, sequence, dim]` as `[1, heads, …]` with the given order of axes.
fn heads(b: &mut Builder, x: &str, sizes: &Sizes, permutation: &[i64]) -> String {
    let shape = b.ints(&[1, -1, sizes.heads.into(), (sizes.dim / sizes.heads).into()]);
    let split = b.node("Reshape", &[x, &shape], &[]);
    b.node("Transpose", &[&split], &[("perm", Attribute::Ints(permutation.to_vec()))])
}

fn attention(b: &mut Builder, x: &str, masked: &str, sizes: &Sizes) -> String {
    let dim = sizes.dim;
    let query = b.linear(x, dim, dim);
    let key = b.linear(x, dim, dim);
    let value = b.linear(x, dim, dim);
    let query = heads(b, &query, sizes, &[0, 2, 1, 3]);
    let key = heads(b, &key, sizes, &[0, 2, 3, 1]);
    let value = heads(b, &value, sizes, &[0, 2, 1, 3]);
    let scale = b.scalar(((dim / sizes.heads) as f32).sqrt());
    let query = b.node("Div", &[&query, &scale], &[]);
    let scores = b.node("MatMul", &[&query, &key], &[]);
    let shape = b.ints(&[1, sizes.heads.into(), sizes.sequence.into(), sizes.sequence.into()]);
    let masked = b.node("Expand", &[masked, &shape], &[]);
    let lowest = b.scalar(f32::MIN);
    let scores = b.node("Where", &[&masked, &lowest, &scores], &[]);
    let weights = b.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
    let context = b.node("MatMul", &[&weights, &value], &[]);
    let context = b.node("Transpose", &[&context], &[("perm", Attribute::Ints(vec![0, 2, 1, 3]))]);
    let shape = b.ints(&[1, -1, dim.into()]);
    let context = b.node("Reshape", &[&context, &shape], &[]);
    b.linear(&context, dim, dim)
}

fn feed_forward(b: &mut Builder, x: &str, sizes: &Sizes) -> String {
    let x = b.linear(x, sizes.dim, sizes.hidden);
    let root_two = b.scalar(std::f32::consts::SQRT_2);
    let scaled = b.node("Div", &[&x, &root_two], &[]);
    let erf = b.node("Erf", &[&scaled], &[]);
    let one = b.scalar(1.0);
    let gate = b.node("Add", &[&erf, &one], &[]);
    let gated = b.node("Mul", &[&x, &gate], &[]);
    let half = b.scalar(0.5);
    let x = b.node("Mul", &[&gated, &half], &[]);
    b.linear(&x, sizes.hidden, sizes.dim)
}
