//! ResNet (He et al. 2015), v1.5: the 3×3 convolution of a bottleneck has the stride, as in
//! torchvision.

use crate::builder::{Builder, same};

/// The shape of a ResNet.
#[derive(Debug)]
pub(crate) struct Shape {
    blocks: [u32; 4],
    bottleneck: bool,
    /// Groups of the 3×3 convolution of a bottleneck. ResNeXt has many groups, and twice as many
    /// channels in this convolution.
    groups: u32,
}

pub(crate) const RESNET18: Shape = Shape { blocks: [2, 2, 2, 2], bottleneck: false, groups: 1 };
pub(crate) const RESNET50: Shape = Shape { blocks: [3, 4, 6, 3], bottleneck: true, groups: 1 };
pub(crate) const RESNET152: Shape = Shape { blocks: [3, 8, 36, 3], bottleneck: true, groups: 1 };

/// ResNeXt-50 32x4d (Xie et al. 2017).
pub(crate) const RESNEXT50: Shape = Shape { blocks: [3, 4, 6, 3], bottleneck: true, groups: 32 };

pub(crate) fn build(b: &mut Builder, image: u32, shape: &Shape) {
    let x = b.image(image);
    let mut channels = b.channels(64);
    let x = b.conv_norm_relu(&x, [3, channels], same(7, 2));
    let mut x = b.max_pool(&x, same(3, 2), false);
    for (stage, &count) in shape.blocks.iter().enumerate() {
        let narrow = b.channels(64 << stage);
        let inner = if shape.groups > 1 { (2 * narrow).next_multiple_of(shape.groups) } else { narrow };
        let outer = if shape.bottleneck { narrow * 4 } else { narrow };
        for block in 0..count {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let branch = if shape.bottleneck {
                bottleneck(b, &x, [channels, inner, outer], stride, shape.groups)
            } else {
                basic(b, &x, [channels, outer], stride)
            };
            let shortcut = if stride != 1 || channels != outer {
                let projected = b.conv(&x, [channels, outer], same(1, stride), 1, false);
                b.batch_norm(&projected, outer, 1.0)
            } else {
                x
            };
            let sum = b.node("Add", &[&branch, &shortcut], &[]);
            x = b.relu(&sum);
            channels = outer;
        }
    }
    b.classifier(&x, channels);
}

fn basic(b: &mut Builder, x: &str, [from, to]: [u32; 2], stride: u32) -> String {
    let x = b.conv_norm_relu(x, [from, to], same(3, stride));
    let x = b.conv(&x, [to, to], same(3, 1), 1, false);
    b.batch_norm(&x, to, 0.5)
}

fn bottleneck(b: &mut Builder, x: &str, [from, inner, to]: [u32; 3], stride: u32, groups: u32) -> String {
    let x = b.conv_norm_relu(x, [from, inner], same(1, 1));
    let x = b.conv(&x, [inner, inner], same(3, stride), groups, false);
    let x = b.batch_norm(&x, inner, 1.5);
    let x = b.relu(&x);
    let x = b.conv(&x, [inner, to], same(1, 1), 1, false);
    b.batch_norm(&x, to, 0.5)
}
