//! ConvNeXt-T (Liu et al. 2022): depthwise 7×7 convolutions, and linear layers on channels-last
//! tensors.

use crate::builder::{Attribute, Builder, Size, same, valid};
use crate::transformer::{gelu, layer_norm};

const DEPTHS: [u32; 4] = [3, 3, 9, 3];
const CHANNELS: [u32; 4] = [96, 192, 384, 768];
const EPSILON: f32 = 1e-6;

pub(crate) fn build(b: &mut Builder, image: u32) {
    let x = b.image(image);
    let mut channels = b.channels(CHANNELS[0]);
    let x = b.conv(&x, [3, channels], valid(4, 4), 1, true);
    let mut x = normal(b, &x, channels);
    for (stage, (&depth, &published)) in DEPTHS.iter().zip(&CHANNELS).enumerate() {
        let to = b.channels(published);
        if stage > 0 {
            let even = normal(b, &x, channels);
            x = b.conv(&even, [channels, to], valid(2, 2), 1, true);
            channels = to;
        }
        for _ in 0..depth {
            x = block(b, &x, channels);
        }
    }
    let x = b.node("GlobalAveragePool", &[&x], &[]);
    let x = b.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]);
    let x = layer_norm(b, &x, channels, EPSILON);
    let x = b.gemm(&x, channels, 1000);
    b.output("output", &x, &[Size::Batch, 1000.into()]);
}

fn transpose(b: &mut Builder, x: &str, permutation: [i64; 4]) -> String {
    b.node("Transpose", &[x], &[("perm", Attribute::Ints(permutation.to_vec()))])
}

/// Layer normalization over the channels of an image.
fn normal(b: &mut Builder, x: &str, channels: u32) -> String {
    let x = transpose(b, x, [0, 2, 3, 1]);
    let x = layer_norm(b, &x, channels, EPSILON);
    transpose(b, &x, [0, 3, 1, 2])
}

fn block(b: &mut Builder, x: &str, channels: u32) -> String {
    let y = b.conv(x, [channels, channels], same(7, 1), channels, true);
    let y = transpose(b, &y, [0, 2, 3, 1]);
    let y = layer_norm(b, &y, channels, EPSILON);
    let y = b.linear(&y, channels, 4 * channels);
    let y = gelu(b, &y);
    let y = b.linear(&y, 4 * channels, channels);
    let y = transpose(b, &y, [0, 3, 1, 2]);
    let scale = b.random(&[channels, 1, 1], 0.1, 0.5);
    let y = b.node("Mul", &[&scale, &y], &[]);
    b.node("Add", &[&y, x], &[])
}
