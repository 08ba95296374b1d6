//! DenseNet-BC (Huang et al. 2016): growth rate 32, bottlenecks with four times the growth rate,
//! transitions that halve the channels.

use crate::builder::{Builder, same, valid};

pub(crate) fn build(b: &mut Builder, image: u32, blocks: &[u32]) {
    let growth = b.channels(32);
    let mut channels = b.channels(64);
    let x = b.image(image);
    let x = b.conv_norm_relu(&x, [3, channels], same(7, 2));
    let mut x = b.max_pool(&x, same(3, 2), false);
    for (index, &layers) in blocks.iter().enumerate() {
        let mut features = vec![x];
        for _ in 0..layers {
            let joined = if features.len() == 1 { features[0].clone() } else { b.concat(&names(&features), 1) };
            let grown = norm_relu_conv(b, &joined, [channels, 4 * growth], same(1, 1));
            features.push(norm_relu_conv(b, &grown, [4 * growth, growth], same(3, 1)));
            channels += growth;
        }
        x = b.concat(&names(&features), 1);
        if index + 1 < blocks.len() {
            let halved = norm_relu_conv(b, &x, [channels, channels / 2], same(1, 1));
            x = b.average_pool(&halved, valid(2, 2));
            channels /= 2;
        }
    }
    let x = b.batch_norm(&x, channels, 1.5);
    let x = b.relu(&x);
    b.classifier(&x, channels);
}

fn names(features: &[String]) -> Vec<&str> {
    features.iter().map(String::as_str).collect()
}

fn norm_relu_conv(b: &mut Builder, x: &str, channels: [u32; 2], window: crate::builder::Window) -> String {
    let x = b.batch_norm(x, channels[0], 1.2);
    let x = b.relu(&x);
    b.conv(&x, channels, window, 1, false)
}
