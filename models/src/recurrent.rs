//! Recurrent models: a two-layer LSTM, RNN-T (Graves 2012) and GNMT (Wu et al. 2016), the latter
//! two with the sizes of MLPerf.

use crate::builder::{Attribute, Builder, Size};
use atoll_frontend::onnx::proto::DataType;

/// Two LSTM layers over a sequence, and a linear layer.
pub(crate) fn lstm(b: &mut Builder, steps: u32) {
    let (features, hidden) = (b.channels(256), b.channels(512));
    let x = b.input("input", DataType::Float, &[Size::Sequence(steps), Size::Batch, features.into()]);
    let x = layers(b, &x, features, hidden, 2);
    let x = b.linear(&x, hidden, 128);
    b.output("output", &x, &[Size::Sequence(steps), Size::Batch, 128.into()]);
}

fn layers(b: &mut Builder, x: &str, from: u32, hidden: u32, count: u32) -> String {
    let mut x = x.to_owned();
    for layer in 0..count {
        x = layer_of(b, &x, if layer == 0 { from } else { hidden }, hidden, false);
    }
    x
}

/// One LSTM layer: `[steps, batch, from]` to `[steps, batch, hidden]`, or `2 * hidden` if
/// bidirectional.
fn layer_of(b: &mut Builder, x: &str, from: u32, hidden: u32, both: bool) -> String {
    let directions = if both { 2 } else { 1 };
    let bound = 1.0 / (hidden as f32).sqrt();
    let w = b.random(&[directions, 4 * hidden, from], -bound, bound);
    let r = b.random(&[directions, 4 * hidden, hidden], -bound, bound);
    let bias = b.random(&[directions, 8 * hidden], -bound, bound);
    let direction = Attribute::Text(if both { "bidirectional" } else { "forward" });
    let y = b.node(
        "LSTM",
        &[x, &w, &r, &bias],
        &[("hidden_size", Attribute::Int(hidden.into())), ("direction", direction)],
    );
    if both {
        let y = b.node("Transpose", &[&y], &[("perm", Attribute::Ints(vec![0, 2, 1, 3]))]);
        let shape = b.ints(&[0, 0, -1]);
        return b.node("Reshape", &[&y, &shape], &[]);
    }
    let axis = b.ints(&[1]);
    b.node("Squeeze", &[&y, &axis], &[])
}

/// RNN-T: encoder, prediction and joint network; logits for every pair of frame and token.
pub(crate) fn rnnt(b: &mut Builder, frames: u32) {
    const CLASSES: u32 = 29;
    const TOKENS: u32 = 20;
    let frames = frames.next_multiple_of(2);
    let (features, hidden, predicted, joint) = (b.channels(240), b.channels(1024), b.channels(320), b.channels(512));
    let x = b.input("features", DataType::Float, &[frames.into(), Size::Batch, features.into()]);
    let x = layers(b, &x, features, hidden, 2);
    // Concatenates pairs of frames.
    let shape = b.ints(&[(frames / 2).into(), 2, -1, hidden.into()]);
    let x = b.node("Reshape", &[&x, &shape], &[]);
    let x = b.node("Transpose", &[&x], &[("perm", Attribute::Ints(vec![0, 2, 1, 3]))]);
    let shape = b.ints(&[(frames / 2).into(), -1, (2 * hidden).into()]);
    let x = b.node("Reshape", &[&x, &shape], &[]);
    let encoded = layers(b, &x, 2 * hidden, hidden, 3);

    let tokens = b.input("tokens", DataType::Int64, &[TOKENS.into(), Size::Batch]);
    // 256 tokens, because tests draw tokens as bytes.
    let table = b.random(&[256, predicted], -0.5, 0.5);
    let embedded = b.node("Gather", &[&table, &tokens], &[("axis", Attribute::Int(0))]);
    let prediction = layers(b, &embedded, predicted, predicted, 2);

    // A linear layer on the concatenation of both is the sum of one linear layer on each.
    let (encoded, prediction) = (b.linear(&encoded, hidden, joint), b.linear(&prediction, predicted, joint));
    let (inner, outer) = (b.ints(&[1]), b.ints(&[0]));
    let encoded = b.node("Unsqueeze", &[&encoded, &inner], &[]);
    let prediction = b.node("Unsqueeze", &[&prediction, &outer], &[]);
    let sum = b.node("Add", &[&encoded, &prediction], &[]);
    let sum = b.relu(&sum);
    let scores = b.linear(&sum, joint, CLASSES);
    b.output("scores", &scores, &[(frames / 2).into(), TOKENS.into(), Size::Batch, CLASSES.into()]);
}

/// GNMT: an encoder with one bidirectional layer and three unidirectional ones, and a decoder with
/// four layers, which gets the previous words; Bahdanau's attention follows its first layer.
pub(crate) fn gnmt(b: &mut Builder, words: u32) {
    let (hidden, vocabulary) = (b.channels(1024), b.channels(32_320));
    let table = b.random(&[vocabulary, hidden], -0.5, 0.5);
    let source = b.input("source", DataType::Int64, &[Size::Sequence(words), Size::Batch]);
    let x = b.node("Gather", &[&table, &source], &[("axis", Attribute::Int(0))]);
    let x = layer_of(b, &x, hidden, hidden, true);
    let mut x = layer_of(b, &x, 2 * hidden, hidden, false);
    for _ in 0..2 {
        let y = layer_of(b, &x, hidden, hidden, false);
        x = b.node("Add", &[&x, &y], &[]);
    }
    let target = b.input("target", DataType::Int64, &[words.into(), Size::Batch]);
    let table = b.random(&[vocabulary, hidden], -0.5, 0.5);
    let y = b.node("Gather", &[&table, &target], &[("axis", Attribute::Int(0))]);
    let y = layer_of(b, &y, hidden, hidden, false);
    let context = attention(b, &y, &x, hidden);
    let mut y = y;
    for layer in 0..3 {
        let joined = b.concat(&[&y, &context], 2);
        let next = layer_of(b, &joined, 2 * hidden, hidden, false);
        y = if layer == 0 { next } else { b.node("Add", &[&y, &next], &[]) };
    }
    let scores = b.linear(&y, hidden, vocabulary);
    b.output("scores", &scores, &[words.into(), Size::Batch, vocabulary.into()]);
}

/// Bahdanau's attention of `[steps, batch, hidden]` queries over `[words, batch, hidden]` values.
fn attention(b: &mut Builder, queries: &str, values: &str, hidden: u32) -> String {
    let by_batch = |b: &mut Builder, x: &str| b.node("Transpose", &[x], &[("perm", Attribute::Ints(vec![1, 0, 2]))]);
    let (queries, values) = (by_batch(b, queries), by_batch(b, values));
    let (query, key) = (b.linear(&queries, hidden, hidden), b.linear(&values, hidden, hidden));
    let (inner, outer) = (b.ints(&[2]), b.ints(&[1]));
    let query = b.node("Unsqueeze", &[&query, &inner], &[]);
    let key = b.node("Unsqueeze", &[&key, &outer], &[]);
    let sum = b.node("Add", &[&query, &key], &[]);
    let sum = b.node("Tanh", &[&sum], &[]);
    let scores = b.linear(&sum, hidden, 1);
    let last = b.ints(&[-1]);
    let scores = b.node("Squeeze", &[&scores, &last], &[]);
    let weights = b.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
    let context = b.node("MatMul", &[&weights, &values], &[]);
    by_batch(b, &context)
}
