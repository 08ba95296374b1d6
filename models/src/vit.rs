//! Vision Transformer B/16 (Dosovitskiy et al. 2020).

use crate::builder::{Attribute, Builder, Size, valid};
use crate::transformer::{Mask, Sizes, attention, feed_forward, gelu, layer_norm};

const DIM: u32 = 768;
const HIDDEN: u32 = 3072;
const HEADS: u32 = 12;
const LAYERS: u32 = 12;
const PATCH: u32 = 16;
const EPSILON: f32 = 1e-6;

pub(crate) fn build(b: &mut Builder, image: u32) {
    let sizes = Sizes::scaled(b, DIM, HIDDEN, HEADS);
    let patches = (image / PATCH) * (image / PATCH);
    let image = b.image(image);
    let x = b.conv(&image, [3, sizes.dim], valid(PATCH, PATCH), 1, true);
    let shape = b.ints(&[0, sizes.dim.into(), patches.into()]);
    let x = b.node("Reshape", &[&x, &shape], &[]);
    let x = b.node("Transpose", &[&x], &[("perm", Attribute::Ints(vec![0, 2, 1]))]);
    let class = b.random(&[1, 1, sizes.dim], -0.5, 0.5);
    let class = if b.is_symbolic() {
        let (batch, rest) = (b.size_of(&image, 0), b.ints(&[1, sizes.dim.into()]));
        let shape = b.concat(&[&batch, &rest], 0);
        b.node("Expand", &[&class, &shape], &[])
    } else {
        class
    };
    let x = b.concat(&[&class, &x], 1);
    let positions = b.random(&[1, patches + 1, sizes.dim], -0.5, 0.5);
    let mut x = b.node("Add", &[&x, &positions], &[]);
    for _ in 0..LAYERS {
        let normal = layer_norm(b, &x, sizes.dim, EPSILON);
        let attended = attention(b, &normal, Mask::None, &sizes);
        let sum = b.node("Add", &[&attended, &x], &[]);
        let normal = layer_norm(b, &sum, sizes.dim, EPSILON);
        let fed = feed_forward(b, &normal, &sizes, gelu);
        x = b.node("Add", &[&fed, &sum], &[]);
    }
    let x = layer_norm(b, &x, sizes.dim, EPSILON);
    let zero = b.ints(&[0]);
    let zero = b.node("Squeeze", &[&zero], &[]);
    let class = b.node("Gather", &[&x, &zero], &[("axis", Attribute::Int(1))]);
    let x = b.gemm(&class, sizes.dim, 1000);
    b.output("output", &x, &[Size::Batch, 1000.into()]);
}
