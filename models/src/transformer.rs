//! Parts of transformers as exporters write them: attention in small operators, GELU, layer
//! normalization.

use crate::builder::{Attribute, Builder};

/// Sizes of a transformer layer.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) dim: u32,
    pub(crate) hidden: u32,
    pub(crate) heads: u32,
}

impl Sizes {
    /// Published sizes scaled by the width factor, which reduces the number of heads but keeps the
    /// size of a head.
    pub(crate) fn scaled(b: &Builder, dim: u32, hidden: u32, heads: u32) -> Sizes {
        let kept = (b.channels(heads * 8) / 8).max(1);
        Sizes { dim: kept * (dim / heads), hidden: b.channels(hidden), heads: kept }
    }
}

/// The scores that attention masks out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask<'a> {
    None,
    /// Masked out where this tensor is true; it is expanded to the shape of the scores.
    Hidden(&'a str),
    /// Masked out where this tensor is false; it is broadcast to the scores.
    Shown(&'a str),
}

/// Layer normalization as the operator of opset 17.
pub(crate) fn layer_norm(b: &mut Builder, x: &str, dim: u32, epsilon: f32) -> String {
    let scale = b.random(&[dim], 0.5, 1.5);
    let bias = b.random(&[dim], -0.2, 0.2);
    b.node(
        "LayerNormalization",
        &[x, &scale, &bias],
        &[("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(epsilon))],
    )
}

/// Reshapes `[batch, sequence, dim]` to `[batch, sequence, heads, …]` and permutes the axes.
fn heads(b: &mut Builder, x: &str, sizes: &Sizes, permutation: &[i64]) -> String {
    let shape = b.ints(&[0, -1, sizes.heads.into(), (sizes.dim / sizes.heads).into()]);
    let split = b.node("Reshape", &[x, &shape], &[]);
    b.node("Transpose", &[&split], &[("perm", Attribute::Ints(permutation.to_vec()))])
}

/// Self-attention of `x [batch, sequence, dim]`.
pub(crate) fn attention(b: &mut Builder, x: &str, mask: Mask<'_>, sizes: &Sizes) -> String {
    let dim = sizes.dim;
    let query = b.linear(x, dim, dim);
    let key = b.linear(x, dim, dim);
    let value = b.linear(x, dim, dim);
    let context = attend(b, [&query, &key, &value], mask, sizes);
    b.linear(&context, dim, dim)
}

/// Attention of queries, keys and values, without the output projection.
pub(crate) fn attend(b: &mut Builder, [query, key, value]: [&str; 3], mask: Mask<'_>, sizes: &Sizes) -> String {
    let query = heads(b, query, sizes, &[0, 2, 1, 3]);
    let key = heads(b, key, sizes, &[0, 2, 3, 1]);
    let value = heads(b, value, sizes, &[0, 2, 1, 3]);
    let scale = b.scalar(((sizes.dim / sizes.heads) as f32).sqrt());
    let query = b.node("Div", &[&query, &scale], &[]);
    let scores = b.node("MatMul", &[&query, &key], &[]);
    let lowest = b.scalar(f32::MIN);
    let scores = match mask {
        Mask::None => scores,
        Mask::Hidden(masked) => {
            let shape = b.node("Shape", &[&scores], &[]);
            let masked = b.node("Expand", &[masked, &shape], &[]);
            b.node("Where", &[&masked, &lowest, &scores], &[])
        }
        Mask::Shown(shown) => b.node("Where", &[shown, &scores, &lowest], &[]),
    };
    let weights = b.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
    let context = b.node("MatMul", &[&weights, &value], &[]);
    let context = b.node("Transpose", &[&context], &[("perm", Attribute::Ints(vec![0, 2, 1, 3]))]);
    let shape = b.ints(&[0, -1, sizes.dim.into()]);
    b.node("Reshape", &[&context, &shape], &[])
}

/// GELU with the error function.
pub(crate) fn gelu(b: &mut Builder, x: &str) -> String {
    let root_two = b.scalar(std::f32::consts::SQRT_2);
    let scaled = b.node("Div", &[x, &root_two], &[]);
    let erf = b.node("Erf", &[&scaled], &[]);
    let one = b.scalar(1.0);
    let gate = b.node("Add", &[&erf, &one], &[]);
    let gated = b.node("Mul", &[x, &gate], &[]);
    let half = b.scalar(0.5);
    b.node("Mul", &[&gated, &half], &[])
}

/// GELU with the hyperbolic tangent, as in GPT-2.
pub(crate) fn gelu_tanh(b: &mut Builder, x: &str) -> String {
    let three = b.scalar(3.0);
    let cube = b.node("Pow", &[x, &three], &[]);
    let factor = b.scalar(0.044_715);
    let cube = b.node("Mul", &[&cube, &factor], &[]);
    let sum = b.node("Add", &[x, &cube], &[]);
    let factor = b.scalar((2.0 / std::f32::consts::PI).sqrt());
    let scaled = b.node("Mul", &[&sum, &factor], &[]);
    let tanh = b.node("Tanh", &[&scaled], &[]);
    let one = b.scalar(1.0);
    let gate = b.node("Add", &[&tanh, &one], &[]);
    let half = b.scalar(0.5);
    let x = b.node("Mul", &[x, &half], &[]);
    b.node("Mul", &[&x, &gate], &[])
}

/// Two linear layers with an activation between them.
pub(crate) fn feed_forward(
    b: &mut Builder,
    x: &str,
    sizes: &Sizes,
    activation: fn(&mut Builder, &str) -> String,
) -> String {
    let x = b.linear(x, sizes.dim, sizes.hidden);
    let x = activation(b, &x);
    b.linear(&x, sizes.hidden, sizes.dim)
}
