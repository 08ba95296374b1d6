//! Recurrent cells.

use super::pointwise::sigmoid;
use super::{OutputType, ReferenceError};
use crate::tensor::Tensor;
use crate::tensor_graph::{Cell, Direction};

/// One direction of a cell with its weights.
struct DirectionWeights<'a> {
    cell: Cell,
    hidden: usize,
    w: &'a [f64],
    r: &'a [f64],
    bias: &'a [f64],
}

pub(super) fn run(
    cell: Cell,
    hidden: usize,
    direction: Direction,
    inputs: &[&Tensor],
    outputs: &[OutputType],
) -> Result<Vec<Tensor>, ReferenceError> {
    let [x, w, r, bias, states @ ..] = inputs else {
        return Err(ReferenceError::Invalid("a recurrent cell needs at least four operands".into()));
    };
    let [steps, batch, width] = [x.shape[0], x.shape[1], x.shape[2]];
    let (directions, gates) = (w.shape[0], cell.gates());
    let [x, w, r, bias] = [x, w, r, bias].map(|t| t.to_f64());
    // A cell with one state gets zeros as its second one.
    let mut h = states.first().map_or_else(Vec::new, |t| t.to_f64());
    let mut c = states.get(1).map_or_else(|| vec![0.0; h.len()], |t| t.to_f64());
    let mut y = vec![0.0; steps * directions * batch * hidden];
    for d in 0..directions {
        let (w, r) = (&w[d * gates * hidden * width..], &r[d * gates * hidden * hidden..]);
        let line = DirectionWeights { cell, hidden, w, r, bias: &bias[d * 2 * gates * hidden..] };
        let backwards = d == 1 || direction == Direction::Reverse;
        for step in 0..steps {
            let t = if backwards { steps - 1 - step } else { step };
            for b in 0..batch {
                let state = (d * batch + b) * hidden..(d * batch + b + 1) * hidden;
                line.step(&x[(t * batch + b) * width..][..width], &mut h[state.clone()], &mut c[state.clone()]);
                y[((t * directions + d) * batch + b) * hidden..][..hidden].copy_from_slice(&h[state]);
            }
        }
    }
    let tensors = [y, h, c].into_iter().zip(outputs);
    Ok(tensors.map(|(values, (dtype, shape))| Tensor::floats(*dtype, shape.clone(), values)).collect())
}

impl DirectionWeights<'_> {
    /// One step of one row of the batch; gates are in ONNX's order.
    fn step(&self, x: &[f64], h: &mut [f64], c: &mut [f64]) {
        let before = h.to_vec();
        let row = |gate: usize, unit: usize| gate * self.hidden + unit;
        let dot = |weights: &[f64], row: usize, v: &[f64]| {
            weights[row * v.len()..].iter().zip(v).map(|(w, x)| w * x).sum::<f64>()
        };
        let of_input = |gate, unit| dot(self.w, row(gate, unit), x) + self.bias[row(gate, unit)];
        let of_state =
            |gate, unit| dot(self.r, row(gate, unit), &before) + self.bias[row(self.cell.gates() + gate, unit)];
        let gate = |gate, unit| of_input(gate, unit) + of_state(gate, unit);
        for unit in 0..self.hidden {
            h[unit] = match self.cell {
                Cell::Rnn => gate(0, unit).tanh(),
                Cell::Gru => {
                    let [update, reset] = [0, 1].map(|g| sigmoid(gate(g, unit)));
                    let candidate = (of_input(2, unit) + reset * of_state(2, unit)).tanh();
                    (1.0 - update) * candidate + update * before[unit]
                }
                Cell::Lstm => {
                    let [input, output, forget] = [0, 1, 2].map(|g| sigmoid(gate(g, unit)));
                    c[unit] = forget * c[unit] + input * gate(3, unit).tanh();
                    output * c[unit].tanh()
                }
            };
        }
    }
}
