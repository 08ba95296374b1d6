//! SqueezeNet 1.1 (Iandola et al. 2016).

use crate::builder::{Attribute, Builder, Size, Window, same, valid};

pub(crate) fn build(b: &mut Builder, image: u32) {
    let mut channels = b.channels(64);
    let x = b.image(image);
    let mut x = conv_relu(b, &x, [3, channels], valid(3, 2));
    for (squeeze, expand, pools_before) in [
        (16, 64, true),
        (16, 64, false),
        (32, 128, true),
        (32, 128, false),
        (48, 192, true),
        (48, 192, false),
        (64, 256, false),
        (64, 256, false),
    ] {
        if pools_before {
            x = b.max_pool(&x, valid(3, 2), true);
        }
        let (squeeze, expand) = (b.channels(squeeze), b.channels(expand));
        let squeezed = conv_relu(b, &x, [channels, squeeze], valid(1, 1));
        let narrow = conv_relu(b, &squeezed, [squeeze, expand], valid(1, 1));
        let wide = conv_relu(b, &squeezed, [squeeze, expand], same(3, 1));
        x = b.concat(&[&narrow, &wide], 1);
        channels = 2 * expand;
    }
    let x = conv_relu(b, &x, [channels, 1000], valid(1, 1));
    let x = b.node("GlobalAveragePool", &[&x], &[]);
    let x = b.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]);
    b.output("output", &x, &[Size::Batch, 1000.into()]);
}

fn conv_relu(b: &mut Builder, x: &str, channels: [u32; 2], window: Window) -> String {
    let x = b.conv(x, channels, window, 1, true);
    b.relu(&x)
}
