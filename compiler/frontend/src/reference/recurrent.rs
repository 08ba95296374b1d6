//! Recurrent cells.

use super::pointwise::sigmoid;
use super::{OutputType, ReferenceError};
use crate::tensor::Tensor;
use crate::tensor_graph::Direction;

/// Weights of one direction.
struct Cell<'a> {
    hidden: usize,
    w: &'a [f64],
    r: &'a [f64],
    bias: &'a [f64],
}

pub(super) fn lstm(hidden: usize, direction: Direction, inputs: &[&Tensor], outputs: &[OutputType]) -> Result<Vec<Tensor>, ReferenceError> {
    let [x, w, r, bias, h0, c0] = inputs else { return Err(ReferenceError::Invalid("an LSTM has six operands".into())) };
    let [steps, batch, width] = [x.shape[0], x.shape[1], x.shape[2]];
    let directions = w.shape[0];
    let values: Vec<Vec<f64>> = [x, w, r, bias, h0, c0].map(|t| t.to_f64()).into();
    let [x, w, r, bias, mut h, mut c]: [Vec<f64>; 6] =
        values.try_into().map_err(|_| ReferenceError::Invalid("an LSTM has six operands".into()))?;
    let mut y = vec![0.0; steps * directions * batch * hidden];
    for d in 0..directions {
        let cell = Cell { hidden, w: &w[d * 4 * hidden * width..], r: &r[d * 4 * hidden * hidden..], bias: &bias[d * 8 * hidden..] };
        let backwards = d == 1 || direction == Direction::Reverse;
        for step in 0..steps {
            let t = if backwards { steps - 1 - step } else { step };
            for b in 0..batch {
                let state = (d * batch + b) * hidden..(d * batch + b + 1) * hidden;
                cell.step(&x[(t * batch + b) * width..][..width], &mut h[state.clone()], &mut c[state.clone()]);
                y[((t * directions + d) * batch + b) * hidden..][..hidden].copy_from_slice(&h[state]);
            }
        }
    }
    let tensors = [y, h, c].into_iter().zip(outputs);
    Ok(tensors.map(|(values, (dtype, shape))| Tensor::floats(*dtype, shape.clone(), values)).collect())
}

impl Cell<'_> {
    /// One step for one row of the batch; gates in ONNX's order: input, output, forget, cell.
    fn step(&self, x: &[f64], h: &mut [f64], c: &mut [f64]) {
        let before = h.to_vec();
        let gate = |gate: usize, unit: usize| {
            let row = gate * self.hidden + unit;
            let dot = |weights: &[f64], v: &[f64]| weights[row * v.len()..].iter().zip(v).map(|(w, x)| w * x).sum::<f64>();
            dot(self.w, x) + dot(self.r, &before) + self.bias[row] + self.bias[4 * self.hidden + row]
        };
        for unit in 0..self.hidden {
            let [input, output, forget] = [0, 1, 2].map(|g| sigmoid(gate(g, unit)));
            c[unit] = forget * c[unit] + input * gate(3, unit).tanh();
            h[unit] = output * c[unit].tanh();
        }
    }
}
