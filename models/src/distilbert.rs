//! DistilBERT for sequence classification (Sanh et al. 2019), as the PyTorch exporter writes it:
//! layer normalization, GELU and attention as small operators.

use crate::builder::{Attribute, Builder, Size};
use crate::transformer::{Mask, Sizes, attention, feed_forward, gelu};
use atoll_frontend::onnx::proto::DataType;

/// Published sizes; the width factor scales the first three and the number of heads.
const DIM: u32 = 768;
const HIDDEN: u32 = 3072;
const VOCABULARY: u32 = 30_522;
const HEADS: u32 = 12;
const LAYERS: u32 = 6;
const CLASSES: u32 = 2;

/// Rows of the position table of a symbolic model.
const POSITIONS: u32 = 512;

pub(crate) fn build(b: &mut Builder, sequence: u32) {
    let sizes = Sizes::scaled(b, DIM, HIDDEN, HEADS);
    let vocabulary = b.channels(VOCABULARY);
    let shape = [Size::Batch, Size::Sequence(sequence)];
    let ids = b.input("input_ids", DataType::Int64, &shape);
    let mask = b.input("attention_mask", DataType::Int64, &shape);

    let words = b.random(&[vocabulary, sizes.dim], -0.5, 0.5);
    let words = b.node("Gather", &[&words, &ids], &[("axis", Attribute::Int(0))]);
    let positions = if b.is_symbolic() {
        let table = b.random(&[1, POSITIONS, sizes.dim], -0.5, 0.5);
        let length = b.size_of(&ids, 1);
        b.first(&table, 1, &length)
    } else {
        b.random(&[1, sequence, sizes.dim], -0.5, 0.5)
    };
    let x = b.node("Add", &[&words, &positions], &[]);
    let mut x = layer_norm(b, &x, sizes.dim);

    let masked = masked_positions(b, &mask);
    for _ in 0..LAYERS {
        let attended = attention(b, &x, Mask::Hidden(&masked), &sizes);
        let sum = b.node("Add", &[&attended, &x], &[]);
        x = layer_norm(b, &sum, sizes.dim);
        let fed = feed_forward(b, &x, &sizes, gelu);
        let sum = b.node("Add", &[&fed, &x], &[]);
        x = layer_norm(b, &sum, sizes.dim);
    }
    let first = b.ints(&[0]);
    let first_index = b.node("Squeeze", &[&first], &[]);
    let pooled = b.node("Gather", &[&x, &first_index], &[("axis", Attribute::Int(1))]);
    let pooled = b.gemm(&pooled, sizes.dim, sizes.dim);
    let pooled = b.relu(&pooled);
    let logits = b.gemm(&pooled, sizes.dim, CLASSES);
    b.output("logits", &logits, &[Size::Batch, CLASSES.into()]);
}

/// `[batch, 1, 1, sequence]`, true at positions that attention must ignore.
fn masked_positions(b: &mut Builder, mask: &str) -> String {
    let mask = b.node("Cast", &[mask], &[("to", Attribute::Int(DataType::Float as i64))]);
    let zero = b.scalar(0.0);
    let masked = b.node("Equal", &[&mask, &zero], &[]);
    let axes = b.ints(&[1, 2]);
    b.node("Unsqueeze", &[&masked, &axes], &[])
}

/// Layer normalization in small operators, as exporters below opset 17 write it.
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
