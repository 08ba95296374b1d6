//! GPT-2 small (Radford et al. 2019) on a whole prompt: logits of the next token at every position.

use crate::builder::{Attribute, Builder, Size};
use crate::transformer::{Mask, Sizes, attend, feed_forward, gelu_tanh, layer_norm};
use atoll_frontend::onnx::proto::DataType;

const DIM: u32 = 768;
const HIDDEN: u32 = 3072;
const HEADS: u32 = 12;
const LAYERS: u32 = 12;
const VOCABULARY: u32 = 50_257;
const CONTEXT: u32 = 1024;
const EPSILON: f32 = 1e-5;

pub(crate) fn build(b: &mut Builder, sequence: u32) {
    let sizes = Sizes::scaled(b, DIM, HIDDEN, HEADS);
    let vocabulary = b.channels(VOCABULARY);
    let ids = b.input("input_ids", DataType::Int64, &[Size::Batch, Size::Sequence(sequence)]);
    let words = b.random(&[vocabulary, sizes.dim], -0.1, 0.1);
    let embedded = b.node("Gather", &[&words, &ids], &[("axis", Attribute::Int(0))]);
    let positions = b.random(&[1, CONTEXT, sizes.dim], -0.1, 0.1);
    let shown = b.causal(CONTEXT);
    let length = if b.is_symbolic() { b.size_of(&ids, 1) } else { b.ints(&[sequence.into()]) };
    let positions = b.first(&positions, 1, &length);
    let shown = b.first(&shown, 2, &length);
    let shown = b.first(&shown, 3, &length);
    let mut x = b.node("Add", &[&embedded, &positions], &[]);
    for _ in 0..LAYERS {
        let normal = layer_norm(b, &x, sizes.dim, EPSILON);
        let joined = b.linear(&normal, sizes.dim, 3 * sizes.dim);
        let parts = b.ints(&[i64::from(sizes.dim); 3]);
        let parts = b.nodes("Split", &[&joined, &parts], &[("axis", Attribute::Int(2))], 3);
        let context = attend(b, [&parts[0], &parts[1], &parts[2]], Mask::Shown(&shown), &sizes);
        let attended = b.linear(&context, sizes.dim, sizes.dim);
        let sum = b.node("Add", &[&attended, &x], &[]);
        let normal = layer_norm(b, &sum, sizes.dim, EPSILON);
        let fed = feed_forward(b, &normal, &sizes, gelu_tanh);
        x = b.node("Add", &[&fed, &sum], &[]);
    }
    let x = layer_norm(b, &x, sizes.dim, EPSILON);
    // The output layer shares its weights with the embedding.
    let words = b.node("Transpose", &[&words], &[("perm", Attribute::Ints(vec![1, 0]))]);
    let logits = b.node("MatMul", &[&x, &words], &[]);
    b.output("logits", &logits, &[Size::Batch, Size::Sequence(sequence), vocabulary.into()]);
}
