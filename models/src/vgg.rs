//! VGG-19 (Simonyan and Zisserman 2014), configuration E without batch normalization.

use crate::builder::{Attribute, Builder, Size, same, valid};

pub(crate) fn build(b: &mut Builder, image: u32) {
    let mut x = b.image(image);
    let mut channels = 3;
    let mut pixels = image;
    for (published, layers) in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)] {
        let to = b.channels(published);
        for _ in 0..layers {
            x = b.conv(&x, [channels, to], same(3, 1), 1, true);
            x = b.relu(&x);
            channels = to;
        }
        x = b.max_pool(&x, valid(2, 2), false);
        pixels /= 2;
    }
    let hidden = b.channels(4096);
    let mut x = b.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]);
    let mut from = channels * pixels * pixels;
    for _ in 0..2 {
        x = b.gemm(&x, from, hidden);
        x = b.relu(&x);
        from = hidden;
    }
    let x = b.gemm(&x, from, 1000);
    b.output("output", &x, &[Size::Batch, 1000.into()]);
}
