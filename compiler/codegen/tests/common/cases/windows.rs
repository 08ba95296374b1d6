//! Pooling, resizing and recurrent cells.

use super::*;

/// Pooling and resizing.
pub fn windows() -> Vec<Model> {
    let mut models = Vec::new();
    let kinds = [
        PoolKind::Max,
        PoolKind::Sum,
        PoolKind::Average { count_include_pad: true },
        PoolKind::Average { count_include_pad: false },
    ];
    let pools: &[(&str, [i64; 4], [u32; 2], [u32; 2], [u32; 4], [u32; 2], [i64; 2])] = &[
        ("pool2", [1, 5, 20, 60], [2, 2], [2, 2], [0; 4], [1, 1], [10, 30]),
        ("pool3", [2, 5, 13, 13], [3, 3], [2, 2], [1; 4], [1, 1], [7, 7]),
        ("pool_ceil", [1, 3, 13, 14], [3, 3], [2, 2], [0; 4], [1, 1], [6, 7]),
        ("pool_global", [2, 9, 7, 7], [7, 7], [1, 1], [0; 4], [1, 1], [1, 1]),
        ("pool_large", [1, 3, 30, 40], [10, 9], [1, 1], [4, 4, 5, 4], [1, 1], [30, 40]),
        ("pool_dilated", [1, 3, 20, 40], [3, 2], [1, 2], [1, 0, 1, 1], [2, 3], [18, 19]),
    ];
    for (name, shape, window, strides, pads, dilations, out) in pools {
        let mut m = Model::new(name);
        let x = m.x(shape);
        let out = [shape[0], shape[1], out[0], out[1]];
        let outputs = kinds.map(|kind| {
            let pool = Pool { kind, window: *window, strides: *strides, pads: *pads, dilations: *dilations };
            m.f32(Op::Pool(pool), &[x], &out)
        });
        models.push(m.output(&outputs));
    }
    let mut m = Model::new("pool_nan");
    let mut pixels = vec![1.0; 2 * 40 * 40];
    pixels[45] = f64::NAN;
    let x = m.input_of(dims(&[1, 2, 40, 40]), Tensor::floats(F32, vec![1, 2, 40, 40], pixels));
    let pool = Pool { kind: PoolKind::Max, window: [3, 3], strides: [1, 1], pads: [1; 4], dilations: [1, 1] };
    let y = m.f32(Op::Pool(pool), &[x], &[1, 2, 40, 40]);
    models.push(m.output(&[y]));
    let modes = [
        ResizeMode::NearestFloor,
        ResizeMode::NearestCeil,
        ResizeMode::NearestRoundPreferFloor,
        ResizeMode::NearestRoundPreferCeil,
        ResizeMode::Linear,
    ];
    for coordinates in [
        CoordinateMode::HalfPixel,
        CoordinateMode::PytorchHalfPixel,
        CoordinateMode::AlignCorners,
        CoordinateMode::Asymmetric,
    ] {
        let mut m = Model::new(&format!("resize_{coordinates:?}"));
        let (x, y) = (m.x(&[1, 3, 10, 20]), m.x(&[1, 2, 9, 9]));
        let mut outputs = Vec::new();
        for mode in modes {
            outputs.push(m.f32(Op::Resize(Resize { mode, coordinates, scales: [2.0, 2.0] }), &[x], &[1, 3, 20, 40]));
            outputs.push(m.f32(
                Op::Resize(Resize { mode, coordinates, scales: [0.6, 1.0 / 9.0] }),
                &[y],
                &[1, 2, 5, 1],
            ));
        }
        models.push(m.output(&outputs));
    }
    models
}

/// Recurrent cells.
pub fn recurrence() -> Vec<Model> {
    let mut models = Vec::new();
    for (name, cell, direction, steps, batch, width, hidden) in [
        ("lstm", Cell::Lstm, Direction::Forward, 5, 1, 20, 32),
        ("lstm_reverse", Cell::Lstm, Direction::Reverse, 4, 3, 10, 33),
        ("lstm_both", Cell::Lstm, Direction::Bidirectional, 3, 2, 7, 50),
        ("lstm_wide", Cell::Lstm, Direction::Forward, 2, 1, 8, 300),
        ("gru", Cell::Gru, Direction::Forward, 5, 2, 9, 32),
        ("gru_both", Cell::Gru, Direction::Bidirectional, 3, 2, 7, 45),
        ("rnn_reverse", Cell::Rnn, Direction::Reverse, 4, 2, 6, 35),
    ] {
        let mut m = Model::new(name);
        let d = if direction == Direction::Bidirectional { 2 } else { 1 };
        let rows = cell.gates() as i64 * hidden;
        let mut inputs = vec![
            m.x(&[steps, batch, width]),
            m.weights(&[d, rows, width]),
            m.weights(&[d, rows, hidden]),
            m.weights(&[d, 2 * rows]),
        ];
        let state = dims(&[d, batch, hidden]);
        let mut shapes = vec![dims(&[steps, d, batch, hidden])];
        for _ in 0..cell.states() {
            inputs.push(m.x(&[d, batch, hidden]));
            shapes.push(state.clone());
        }
        let outputs = m.ops(Op::Recurrent { cell, hidden: hidden as usize, direction }, &inputs, F32, shapes);
        models.push(m.output(&outputs));
    }
    let mut m = Model::new("lstm_of_inputs");
    let inputs =
        [m.x(&[3, 1, 6]), m.x(&[1, 40, 6]), m.x(&[1, 40, 10]), m.x(&[1, 80]), m.x(&[1, 1, 10]), m.x(&[1, 1, 10])];
    let shapes = vec![dims(&[3, 1, 1, 10]), dims(&[1, 1, 10]), dims(&[1, 1, 10])];
    let outputs =
        m.ops(Op::Recurrent { cell: Cell::Lstm, hidden: 10, direction: Direction::Forward }, &inputs, F32, shapes);
    models.push(m.output(&outputs));
    models
}
