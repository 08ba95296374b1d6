//! Inception v3 (Szegedy et al. 2015) as in torchvision, without the auxiliary classifier.

use crate::builder::{Builder, Window, same, valid};

/// A window such as 1×7 or 3×1 that keeps the image size.
fn strip(height: u32, width: u32) -> Window {
    Window { size: [height, width], stride: 1, pads: [height / 2, width / 2] }
}

/// A sequence of convolutions, each given by its published number of channels and its window.
fn branch(b: &mut Builder, x: &str, from: u32, layers: &[(u32, Window)]) -> (String, u32) {
    let mut x = x.to_string();
    let mut from = from;
    for &(published, window) in layers {
        let to = b.channels(published);
        x = b.conv_norm_relu(&x, [from, to], window);
        from = to;
    }
    (x, from)
}

/// Concatenates branches; returns the tensor and its number of channels.
fn join(b: &mut Builder, branches: &[(String, u32)]) -> (String, u32) {
    let parts: Vec<&str> = branches.iter().map(|(name, _)| name.as_str()).collect();
    (b.concat(&parts, 1), branches.iter().map(|(_, channels)| channels).sum())
}

pub(crate) fn build(b: &mut Builder, image: u32) {
    let x = b.image(image);
    let (x, channels) = branch(b, &x, 3, &[(32, valid(3, 2)), (32, valid(3, 1)), (64, same(3, 1))]);
    let x = b.max_pool(&x, valid(3, 2), false);
    let (x, channels) = branch(b, &x, channels, &[(80, valid(1, 1)), (192, valid(3, 1))]);
    let mut state = (b.max_pool(&x, valid(3, 2), false), channels);
    for pooled in [32, 64, 64] {
        state = inception_a(b, &state, pooled);
    }
    state = inception_b(b, &state);
    for inner in [128, 160, 160, 192] {
        state = inception_c(b, &state, inner);
    }
    state = inception_d(b, &state);
    for _ in 0..2 {
        state = inception_e(b, &state);
    }
    b.classifier(&state.0, state.1);
}

type State = (String, u32);

fn pooled(b: &mut Builder, (x, from): &State, published: u32) -> State {
    let x = b.average_pool(x, same(3, 1));
    branch(b, &x, *from, &[(published, valid(1, 1))])
}

fn inception_a(b: &mut Builder, state: &State, pool_channels: u32) -> State {
    let (x, from) = state;
    let branches = [
        branch(b, x, *from, &[(64, valid(1, 1))]),
        branch(b, x, *from, &[(48, valid(1, 1)), (64, same(5, 1))]),
        branch(b, x, *from, &[(64, valid(1, 1)), (96, same(3, 1)), (96, same(3, 1))]),
        pooled(b, state, pool_channels),
    ];
    join(b, &branches)
}

fn inception_b(b: &mut Builder, (x, from): &State) -> State {
    let branches = [
        branch(b, x, *from, &[(384, valid(3, 2))]),
        branch(b, x, *from, &[(64, valid(1, 1)), (96, same(3, 1)), (96, valid(3, 2))]),
        (b.max_pool(x, valid(3, 2), false), *from),
    ];
    join(b, &branches)
}

fn inception_c(b: &mut Builder, state: &State, inner: u32) -> State {
    let (x, from) = state;
    let (row, column) = (strip(1, 7), strip(7, 1));
    let branches = [
        branch(b, x, *from, &[(192, valid(1, 1))]),
        branch(b, x, *from, &[(inner, valid(1, 1)), (inner, row), (192, column)]),
        branch(b, x, *from, &[(inner, valid(1, 1)), (inner, column), (inner, row), (inner, column), (192, row)]),
        pooled(b, state, 192),
    ];
    join(b, &branches)
}

fn inception_d(b: &mut Builder, (x, from): &State) -> State {
    let branches = [
        branch(b, x, *from, &[(192, valid(1, 1)), (320, valid(3, 2))]),
        branch(b, x, *from, &[(192, valid(1, 1)), (192, strip(1, 7)), (192, strip(7, 1)), (192, valid(3, 2))]),
        (b.max_pool(x, valid(3, 2), false), *from),
    ];
    join(b, &branches)
}

fn inception_e(b: &mut Builder, state: &State) -> State {
    let (x, from) = state;
    let fork = |b: &mut Builder, (stem, channels): State| {
        let sides =
            [branch(b, &stem, channels, &[(384, strip(1, 3))]), branch(b, &stem, channels, &[(384, strip(3, 1))])];
        join(b, &sides)
    };
    let plain = branch(b, x, *from, &[(320, valid(1, 1))]);
    let stem = branch(b, x, *from, &[(384, valid(1, 1))]);
    let forked = fork(b, stem);
    let stem = branch(b, x, *from, &[(448, valid(1, 1)), (384, same(3, 1))]);
    let forked_deep = fork(b, stem);
    let pool = pooled(b, state, 192);
    join(b, &[plain, forked, forked_deep, pool])
}
