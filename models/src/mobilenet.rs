//! MobileNetV2 (Sandler et al. 2018).

use crate::builder::{Builder, Window, same};

pub(crate) fn build(b: &mut Builder, image: u32) {
    let mut channels = b.channels(32);
    let x = b.image(image);
    let mut x = conv_norm_relu6(b, &x, [3, channels], same(3, 2), 1);
    // Expansion, published channels, repetitions, stride of the first block: table 2 of the paper.
    for (expansion, published, count, stride) in
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    {
        let to = b.channels(published);
        for index in 0..count {
            let stride = if index == 0 { stride } else { 1 };
            let y = inverted_residual(b, &x, [channels, channels * expansion, to], stride);
            x = if stride == 1 && channels == to { b.node("Add", &[&x, &y], &[]) } else { y };
            channels = to;
        }
    }
    let last = b.channels(1280);
    let x = conv_norm_relu6(b, &x, [channels, last], same(1, 1), 1);
    b.classifier(&x, last);
}

fn inverted_residual(b: &mut Builder, x: &str, [from, hidden, to]: [u32; 3], stride: u32) -> String {
    let x = if hidden == from { x.to_string() } else { conv_norm_relu6(b, x, [from, hidden], same(1, 1), 1) };
    let x = conv_norm_relu6(b, &x, [hidden, hidden], same(3, stride), hidden);
    let x = b.conv(&x, [hidden, to], same(1, 1), 1, false);
    b.batch_norm(&x, to, 1.0)
}

fn conv_norm_relu6(b: &mut Builder, x: &str, channels: [u32; 2], window: Window, groups: u32) -> String {
    let x = b.conv(x, channels, window, groups, false);
    let x = b.batch_norm(&x, channels[1], 1.5);
    let (low, high) = (b.scalar(0.0), b.scalar(6.0));
    b.node("Clip", &[&x, &low, &high], &[])
}
