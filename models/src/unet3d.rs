//! 3D-UNet (Çiçek et al. 2016) with the sizes of MLPerf: five levels of two convolutions each,
//! instance normalization, transposed convolutions in the decoder.

use crate::builder::{Attribute, Builder, Size};
use atoll_frontend::onnx::proto::DataType;

const CHANNELS: [u32; 5] = [32, 64, 128, 256, 320];
const CLASSES: u32 = 3;

pub(crate) fn build(b: &mut Builder, image: u32) {
    let image = image / 16 * 16;
    let side = Size::from(image);
    let mut x = b.input("input", DataType::Float, &[Size::Batch, 1.into(), side, side, side]);
    let mut from = 1;
    let mut levels = Vec::new();
    for (level, published) in CHANNELS.into_iter().enumerate() {
        let to = b.channels(published);
        x = conv_norm_relu(b, &x, [from, to], if level == 0 { 1 } else { 2 });
        x = conv_norm_relu(b, &x, [to, to], 1);
        levels.push((x.clone(), to));
        from = to;
    }
    for (skipped, to) in levels.into_iter().rev().skip(1) {
        let up = transposed(b, &x, [from, to]);
        let joined = b.concat(&[&up, &skipped], 1);
        x = conv_norm_relu(b, &joined, [2 * to, to], 1);
        x = conv_norm_relu(b, &x, [to, to], 1);
        from = to;
    }
    let x = conv(b, &x, [from, CLASSES], 1, 1);
    b.output("output", &x, &[Size::Batch, CLASSES.into(), side, side, side]);
}

fn cube(size: i64) -> Attribute {
    Attribute::Ints(vec![size; 3])
}

fn conv(b: &mut Builder, x: &str, [from, to]: [u32; 2], size: u32, stride: i64) -> String {
    let bound = (6.0 / (from * size * size * size) as f32).sqrt();
    let weights = b.random(&[to, from, size, size, size], -bound, bound);
    let bias = b.random(&[to], -0.1, 0.1);
    let pads = Attribute::Ints(vec![i64::from(size / 2); 6]);
    b.node(
        "Conv",
        &[x, &weights, &bias],
        &[("kernel_shape", cube(size.into())), ("strides", cube(stride)), ("pads", pads)],
    )
}

fn conv_norm_relu(b: &mut Builder, x: &str, channels: [u32; 2], stride: i64) -> String {
    let x = conv(b, x, channels, 3, stride);
    let scale = b.random(&[channels[1]], 0.5, 1.5);
    let bias = b.random(&[channels[1]], -0.2, 0.2);
    let x = b.node("InstanceNormalization", &[&x, &scale, &bias], &[("epsilon", Attribute::Float(1e-5))]);
    b.relu(&x)
}

/// A transposed convolution that doubles the size of each axis.
fn transposed(b: &mut Builder, x: &str, [from, to]: [u32; 2]) -> String {
    let bound = (6.0 / from as f32).sqrt();
    let weights = b.random(&[from, to, 2, 2, 2], -bound, bound);
    b.node("ConvTranspose", &[x, &weights], &[("kernel_shape", cube(2)), ("strides", cube(2))])
}
