//! Convolutions.

use super::*;

/// Convolutions of every form.
pub fn convolutions() -> Vec<Model> {
    struct Case {
        name: &'static str,
        x: [i64; 4],
        filters: i64,
        groups: i64,
        kernel: [i64; 2],
        strides: [u32; 2],
        pads: [u32; 4],
        dilations: [u32; 2],
    }
    let plain = Case {
        name: "conv1x1",
        x: [1, 32, 14, 14],
        filters: 40,
        groups: 1,
        kernel: [1, 1],
        strides: [1; 2],
        pads: [0; 4],
        dilations: [1; 2],
    };
    let cases = [
        Case { ..plain },
        Case { name: "conv1x1_batch", x: [3, 17, 7, 7], filters: 64, ..plain },
        Case { name: "conv1x1_stride", x: [2, 16, 9, 9], strides: [2, 2], ..plain },
        Case { name: "conv3x3", kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv3x3_wide", x: [1, 8, 20, 61], filters: 70, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv3x3_valid", x: [2, 8, 12, 40], filters: 16, kernel: [3, 3], ..plain },
        Case { name: "conv3x3_small_images", x: [3, 12, 7, 7], filters: 24, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv5x5_uneven", x: [1, 9, 15, 33], filters: 20, kernel: [5, 3], pads: [2, 1, 2, 1], ..plain },
        Case {
            name: "conv7x7_stride",
            x: [1, 3, 40, 40],
            filters: 64,
            kernel: [7, 7],
            strides: [2, 2],
            pads: [3; 4],
            ..plain
        },
        Case { name: "conv3x3_dilated", kernel: [3, 3], pads: [2; 4], dilations: [2, 2], ..plain },
        Case { name: "conv_row", x: [1, 12, 1, 90], kernel: [1, 5], pads: [0, 2, 0, 2], ..plain },
        Case { name: "conv_one_sided", x: [2, 10, 9, 30], kernel: [3, 3], pads: [0, 2, 1, 0], ..plain },
        Case {
            name: "conv_grouped",
            x: [1, 32, 10, 10],
            filters: 64,
            groups: 4,
            kernel: [3, 3],
            pads: [1; 4],
            ..plain
        },
        Case { name: "conv_grouped_1x1", x: [2, 32, 10, 10], filters: 48, groups: 2, ..plain },
        Case { name: "conv_resnext", x: [1, 32, 9, 40], filters: 32, groups: 8, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv_few_filters", x: [1, 20, 9, 9], filters: 3, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "conv_deep_few", x: [1, 256, 3, 3], filters: 4, kernel: [3, 3], pads: [1; 4], ..plain },
        Case { name: "depthwise", x: [1, 24, 30, 30], filters: 24, groups: 24, kernel: [3, 3], pads: [1; 4], ..plain },
        Case {
            name: "depthwise_small",
            x: [2, 24, 7, 7],
            filters: 24,
            groups: 24,
            kernel: [5, 5],
            pads: [2; 4],
            ..plain
        },
        Case {
            name: "depthwise_stride",
            x: [1, 24, 28, 56],
            filters: 24,
            groups: 24,
            kernel: [3, 3],
            strides: [2, 2],
            pads: [1; 4],
            ..plain
        },
        Case {
            name: "depthwise_double",
            x: [1, 6, 8, 8],
            filters: 12,
            groups: 6,
            kernel: [3, 3],
            pads: [1; 4],
            ..plain
        },
        Case {
            name: "depthwise_large",
            x: [1, 4, 20, 33],
            filters: 4,
            groups: 4,
            kernel: [9, 9],
            pads: [4; 4],
            ..plain
        },
        Case {
            name: "depthwise_bands",
            x: [2, 3, 61, 50],
            filters: 3,
            groups: 3,
            kernel: [7, 7],
            pads: [3; 4],
            ..plain
        },
        Case { name: "depthwise_valid", x: [1, 5, 20, 20], filters: 5, groups: 5, kernel: [5, 4], ..plain },
        Case {
            name: "depthwise_dilated",
            x: [1, 5, 19, 37],
            filters: 5,
            groups: 5,
            kernel: [5, 5],
            pads: [4, 6, 4, 2],
            dilations: [2, 2],
            ..plain
        },
        Case { name: "conv_whole_image", x: [2, 16, 4, 4], filters: 20, kernel: [4, 4], ..plain },
        Case { name: "conv_one_pixel", x: [1, 48, 1, 1], filters: 20, ..plain },
    ];
    cases
        .into_iter()
        .map(|c| {
            let mut m = Model::new(c.name);
            let out = |axis: usize| {
                let [extent, kernel] = [c.x[2 + axis], c.kernel[axis]];
                let padded = extent + i64::from(c.pads[axis] + c.pads[2 + axis]);
                (padded - i64::from(c.dilations[axis]) * (kernel - 1) - 1) / i64::from(c.strides[axis]) + 1
            };
            let shape = [c.x[0], c.filters, out(0), out(1)];
            let (x, w) = (m.x(&c.x), m.weights(&[c.filters, c.x[1] / c.groups, c.kernel[0], c.kernel[1]]));
            let (bias, residual) = (m.weights(&[c.filters, 1, 1]), m.x(&shape));
            let epilogue = steps(
                F32,
                &[
                    (PointOp::Add, &[Input(0), Input(1)]),
                    (PointOp::Add, &[Step(0), Input(2)]),
                    (PointOp::Relu, &[Step(1)]),
                ],
            );
            let conv = Conv {
                strides: c.strides.to_vec(),
                pads: c.pads.to_vec(),
                dilations: c.dilations.to_vec(),
                groups: c.groups as u32,
                epilogue,
            };
            let y = m.f32(Op::Conv(conv), &[x, w, bias, residual], &shape);
            m.output(&[y])
        })
        .collect()
}

/// Convolutions over volumes.
pub fn volumes() -> Vec<Model> {
    let cases: &[(&str, [i64; 5], i64, i64, [i64; 3], [u32; 3], [u32; 6], [u32; 3])] = &[
        ("conv3d", [1, 5, 6, 9, 10], 16, 1, [3, 3, 3], [1; 3], [1; 6], [1; 3]),
        ("conv3d_small_images", [2, 6, 4, 5, 6], 12, 1, [3, 2, 3], [1, 2, 1], [1, 0, 1, 0, 1, 1], [1; 3]),
        ("conv3d_dilated", [1, 3, 9, 8, 20], 8, 1, [3, 3, 2], [2, 1, 1], [2, 1, 0, 2, 1, 1], [2, 1, 1]),
        ("conv3d_pointwise", [2, 10, 3, 4, 5], 9, 1, [1; 3], [1; 3], [0; 6], [1; 3]),
        ("conv3d_grouped", [1, 8, 5, 6, 7], 32, 2, [2, 3, 3], [1; 3], [1, 1, 1, 0, 1, 1], [1; 3]),
        ("conv3d_depthwise", [1, 6, 7, 6, 30], 6, 6, [3, 3, 3], [1; 3], [1; 6], [1; 3]),
        ("conv3d_depthwise_stride", [2, 3, 9, 8, 9], 6, 3, [5, 3, 2], [2, 2, 1], [2, 1, 0, 2, 1, 1], [1, 1, 2]),
        ("conv3d_few_filters", [1, 4, 5, 6, 26], 3, 1, [3, 9, 9], [1; 3], [1, 4, 4, 1, 4, 4], [1; 3]),
        ("conv3d_whole_volume", [2, 4, 2, 3, 3], 20, 1, [2, 3, 3], [1; 3], [0; 6], [1; 3]),
    ];
    cases
        .iter()
        .map(|(name, x, filters, groups, kernel, strides, pads, dilations)| {
            let mut m = Model::new(name);
            let out = |axis: usize| {
                let padded = x[2 + axis] + i64::from(pads[axis] + pads[3 + axis]);
                (padded - i64::from(dilations[axis]) * (kernel[axis] - 1) - 1) / i64::from(strides[axis]) + 1
            };
            let shape = [x[0], *filters, out(0), out(1), out(2)];
            let weights = [*filters, x[1] / groups, kernel[0], kernel[1], kernel[2]];
            let (x, w, bias) = (m.x(x), m.weights(&weights), m.weights(&[*filters, 1, 1, 1]));
            let conv = Conv {
                strides: strides.to_vec(),
                pads: pads.to_vec(),
                dilations: dilations.to_vec(),
                groups: *groups as u32,
                epilogue: bias_relu(),
            };
            let y = m.f32(Op::Conv(conv), &[x, w, bias], &shape);
            m.output(&[y])
        })
        .collect()
}
