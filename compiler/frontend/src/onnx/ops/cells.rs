//! The steps of recurrent layers, composed of operators of the tensor graph.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid};
use super::builder::Builder;
use super::recurrent::Layer;
use crate::program::ProgramBuilder;
use crate::tensor_graph::{Cell, Direction, PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

/// The activation function of a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Activation {
    Affine(f32, f32),
    Elu(f32),
    HardSigmoid(f32, f32),
    LeakyRelu(f32),
    Relu,
    ScaledTanh(f32, f32),
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu(f32),
}

/// The default activations of a cell, for each direction.
pub(super) fn default_activations(cell: Cell, directions: i64) -> Vec<Activation> {
    let one = match cell {
        Cell::Rnn => vec![Activation::Tanh],
        Cell::Gru => vec![Activation::Sigmoid, Activation::Tanh],
        Cell::Lstm => vec![Activation::Sigmoid, Activation::Tanh, Activation::Tanh],
    };
    one.repeat(directions as usize)
}

/// The activations of a node. Each takes its parameters from the front of the lists
/// `activation_alpha` and `activation_beta`.
pub(super) fn read_activations(call: &Call<'_>, cell: Cell, directions: i64) -> LowerResult<Vec<Activation>> {
    let usual = default_activations(cell, directions);
    let Some(names) = call.strings("activations")? else { return Ok(usual) };
    if names.len() != usual.len() {
        return invalid(format!("it lists {} activations, but needs {}", names.len(), usual.len()));
    }
    let (alphas, betas) =
        (call.floats("activation_alpha")?.unwrap_or_default(), call.floats("activation_beta")?.unwrap_or_default());
    let (mut alphas, mut betas) = (alphas.into_iter(), betas.into_iter());
    names.iter().map(|name| read_activation(name, &mut alphas, &mut betas)).collect()
}

fn read_activation(
    name: &str,
    alphas: &mut impl Iterator<Item = f32>,
    betas: &mut impl Iterator<Item = f32>,
) -> LowerResult<Activation> {
    let missing = || LowerError::Invalid(format!("activation {name} needs activation_alpha and activation_beta"));
    Ok(match name.to_ascii_lowercase().as_str() {
        "affine" => Activation::Affine(alphas.next().ok_or_else(missing)?, betas.next().ok_or_else(missing)?),
        "elu" => Activation::Elu(alphas.next().unwrap_or(1.0)),
        "hardsigmoid" => Activation::HardSigmoid(alphas.next().unwrap_or(0.2), betas.next().unwrap_or(0.5)),
        "leakyrelu" => Activation::LeakyRelu(alphas.next().unwrap_or(0.01)),
        "relu" => Activation::Relu,
        "scaledtanh" => Activation::ScaledTanh(alphas.next().ok_or_else(missing)?, betas.next().ok_or_else(missing)?),
        "sigmoid" => Activation::Sigmoid,
        "softplus" => Activation::Softplus,
        "softsign" => Activation::Softsign,
        "tanh" => Activation::Tanh,
        "thresholdedrelu" => Activation::ThresholdedRelu(alphas.next().unwrap_or(1.0)),
        _ => return invalid(format!("its activation {name:?} is not one that ONNX defines")),
    })
}

impl Activation {
    fn apply(self, p: &mut ProgramBuilder, ty: DType, x: PointArg) -> PointArg {
        let number = |number: f32| PointArg::Const(number.into());
        match self {
            Activation::Affine(alpha, beta) => {
                let scaled = p.step(PointOp::Mul, ty, &[x, number(alpha)]);
                p.step(PointOp::Add, ty, &[scaled, number(beta)])
            }
            Activation::Elu(alpha) => p.step(PointOp::Elu(alpha), ty, &[x]),
            Activation::HardSigmoid(alpha, beta) => p.step(PointOp::HardSigmoid(alpha, beta), ty, &[x]),
            Activation::LeakyRelu(alpha) => p.step(PointOp::LeakyRelu(alpha), ty, &[x]),
            Activation::Relu => p.step(PointOp::Relu, ty, &[x]),
            Activation::ScaledTanh(alpha, beta) => {
                let scaled = p.step(PointOp::Mul, ty, &[x, number(beta)]);
                let bent = p.step(PointOp::Tanh, ty, &[scaled]);
                p.step(PointOp::Mul, ty, &[bent, number(alpha)])
            }
            Activation::Sigmoid => p.step(PointOp::Sigmoid, ty, &[x]),
            Activation::Softplus => p.step(PointOp::Softplus, ty, &[x]),
            Activation::Softsign => {
                let magnitude = p.step(PointOp::Abs, ty, &[x]);
                let divisor = p.step(PointOp::Add, ty, &[magnitude, number(1.0)]);
                p.step(PointOp::Div, ty, &[x, divisor])
            }
            Activation::Tanh => p.step(PointOp::Tanh, ty, &[x]),
            Activation::ThresholdedRelu(alpha) => {
                let passes = p.step(PointOp::GreaterOrEqual, ty, &[x, number(alpha)]);
                p.step(PointOp::Where, ty, &[passes, x, number(0.0)])
            }
        }
    }
}

/// Lowers all steps; the results are `y [T, D, B, H]` and the last states `[D, B, H]`.
pub(super) fn unroll(b: &mut Builder<'_>, layer: &Layer, steps: i64) -> LowerResult<Vec<ValueId>> {
    let mut results = vec![Vec::new(); 1 + layer.cell.states()];
    for direction in 0..layer.directions {
        let line = DirectionOperands::new(b, layer, direction)?;
        let is_reverse = direction == 1 || layer.direction == Direction::Reverse;
        let (rows, states) = line.run(b, layer, steps, is_reverse)?;
        let y = b.stack("steps", &rows, 0)?;
        results
            .iter_mut()
            .zip([y].into_iter().chain(states))
            .for_each(|(result, of_direction)| result.push(of_direction));
    }
    results.iter().enumerate().map(|(i, parts)| b.stack("directions", parts, usize::from(i == 0))).collect()
}

/// The operands of one direction that all its steps share.
struct DirectionOperands {
    /// `[T, B, G H]`: products of the input with the weights, plus the biases that are added before
    /// the activation.
    inputs: ValueId,
    /// `[G H, H]`
    r: ValueId,
    /// `[H]`: for GRU, the bias of the product to which the reset gate is applied.
    hidden_bias: ValueId,
    /// `[B, H]` each: the initial states.
    states: Vec<ValueId>,
    /// `[H]` each: for LSTM, of the gates input, output and forget.
    peepholes: Option<[ValueId; 3]>,
    activations: Vec<Activation>,
}

impl DirectionOperands {
    fn new(b: &mut Builder<'_>, layer: &Layer, direction: i64) -> LowerResult<DirectionOperands> {
        let (hidden, gates) = (layer.hidden, layer.cell.gates() as i64);
        let w = b.element("w", layer.w, 0, direction)?;
        let r = b.element("r", layer.r, 0, direction)?;
        let bias = b.element("bias", layer.bias, 0, direction)?;
        let [steps, batch, width] = b.dims("X", layer.x)?;
        let x = b.reshape("x", layer.x, vec![steps.clone() * batch.clone(), width])?;
        let product = b.matmul("inputs", x, w, true)?;
        let of_input = b.part("input_bias", bias, 0, 0, gates * hidden)?;
        let of_state = b.part("state_bias", bias, 0, gates * hidden, gates * hidden)?;
        let hidden_bias = b.part("hidden_bias", of_state, 0, (gates - 1) * hidden, hidden)?;
        let added = if layer.cell == Cell::Gru && layer.reset_after {
            // The state's bias of the hidden gate is added before the reset gate is applied.
            let first = b.part("gate_bias", of_state, 0, 0, 2 * hidden)?;
            let none = b.fill("no_bias", b.dtype(bias), vec![hidden.into()], 0.0)?;
            b.join("state_bias", &[first, none], 0)?
        } else {
            of_state
        };
        let bias = b.add("bias", of_input, added)?;
        let inputs = b.add("biased", product, bias)?;
        let inputs = b.reshape("inputs", inputs, vec![steps, batch, Expr::Const(gates * hidden)])?;
        let states =
            layer.states.iter().map(|state| b.element("state", *state, 0, direction)).collect::<LowerResult<_>>()?;
        let peepholes = match layer.peepholes {
            Some(peepholes) => {
                let row = b.element("peepholes", peepholes, 0, direction)?;
                let [i, o, f] = [0, 1, 2].map(|gate| b.part("peephole", row, 0, gate * hidden, hidden));
                Some([i?, o?, f?])
            }
            None => None,
        };
        let each = layer.activations.len() / layer.directions as usize;
        let activations = layer.activations[direction as usize * each..][..each].to_vec();
        Ok(DirectionOperands { inputs, r, hidden_bias, states, peepholes, activations })
    }

    /// Lowers all steps; returns the rows of the result in time order, and the last states.
    fn run(
        &self,
        b: &mut Builder<'_>,
        layer: &Layer,
        steps: i64,
        is_reverse: bool,
    ) -> LowerResult<(Vec<ValueId>, Vec<ValueId>)> {
        let lengths = match layer.lengths {
            Some(lengths) => Some(b.reshape("lengths", lengths, vec![layer.batch.clone(), 1.into()])?),
            None => None,
        };
        let mut states = self.states.clone();
        let mut rows = Vec::with_capacity(steps as usize);
        for step in 0..steps {
            let t = if is_reverse { steps - 1 - step } else { step };
            let x = b.element("input", self.inputs, 0, t)?;
            let mut next = match layer.cell {
                Cell::Rnn => self.rnn(b, layer, x, &states)?,
                Cell::Gru => self.gru(b, layer, x, &states)?,
                Cell::Lstm => self.lstm(b, layer, x, &states)?,
            };
            rows.push(next[0]);
            if let Some(lengths) = lengths {
                // After its end, a sequence has results of 0 and keeps its states.
                let goes_on = b.with_number("goes_on", PointOp::Greater, lengths, t as f64)?;
                rows[step as usize] = b.select_or("row", goes_on, next[0], 0.0)?;
                for (next, state) in next.iter_mut().zip(&states) {
                    *next = b.select("kept", goes_on, *next, *state)?;
                }
            }
            states = next;
        }
        if is_reverse {
            rows.reverse();
        }
        Ok((rows, states))
    }

    /// Clips a gate and applies its activation.
    fn activate(&self, b: &mut Builder<'_>, layer: &Layer, x: ValueId, which: usize) -> LowerResult<ValueId> {
        let x = match layer.clip {
            Some(clip) => {
                let (ty, number) = (b.dtype(x), f64::from(clip));
                b.program("clipped", &[x], ty, |p, x| {
                    p.step(PointOp::Clip, ty, &[x[0], PointArg::Const(-number), PointArg::Const(number)]);
                })?
            }
            None => x,
        };
        self.activate_unclipped(b, x, which)
    }

    fn activate_unclipped(&self, b: &mut Builder<'_>, x: ValueId, which: usize) -> LowerResult<ValueId> {
        let (ty, activation) = (b.dtype(x), self.activations[which]);
        b.program("gate", &[x], ty, |p, x| {
            activation.apply(p, ty, x[0]);
        })
    }

    /// The products of a state with the weights of `count` gates, starting with gate `first`:
    /// `[B, count H]`.
    fn product(
        &self,
        b: &mut Builder<'_>,
        layer: &Layer,
        state: ValueId,
        first: i64,
        count: i64,
    ) -> LowerResult<ValueId> {
        let r = b.part("r", self.r, 0, first * layer.hidden, count * layer.hidden)?;
        b.matmul("product", state, r, true)
    }

    fn rnn(&self, b: &mut Builder<'_>, layer: &Layer, x: ValueId, states: &[ValueId]) -> LowerResult<Vec<ValueId>> {
        let product = self.product(b, layer, states[0], 0, 1)?;
        let sum = b.add("sum", x, product)?;
        Ok(vec![self.activate(b, layer, sum, 0)?])
    }

    fn gru(&self, b: &mut Builder<'_>, layer: &Layer, x: ValueId, states: &[ValueId]) -> LowerResult<Vec<ValueId>> {
        let (h, hidden) = (states[0], layer.hidden);
        let product = self.product(b, layer, h, 0, 2)?;
        let of_x = b.part("x", x, 1, 0, 2 * hidden)?;
        let sum = b.add("sum", of_x, product)?;
        let mut gate = |at: i64| {
            let gate = b.part("gate", sum, 1, at * hidden, hidden)?;
            self.activate(b, layer, gate, 0)
        };
        let (update, reset) = (gate(0)?, gate(1)?);
        let of_state = if layer.reset_after {
            let product = self.product(b, layer, h, 2, 1)?;
            let biased = b.add("biased", product, self.hidden_bias)?;
            b.mul("reset", reset, biased)?
        } else {
            let kept = b.mul("reset", reset, h)?;
            self.product(b, layer, kept, 2, 1)?
        };
        let of_x = b.part("x", x, 1, 2 * hidden, hidden)?;
        let sum = b.add("sum", of_x, of_state)?;
        let candidate = self.activate(b, layer, sum, 1)?;
        // (1 - update) * candidate + update * h
        let ty = b.dtype(h);
        let h = b.program("h", &[update, candidate, h], ty, |p, x| {
            let left = p.step(PointOp::Sub, ty, &[PointArg::Const(1.0), x[0]]);
            let new = p.step(PointOp::Mul, ty, &[left, x[1]]);
            let old = p.step(PointOp::Mul, ty, &[x[0], x[2]]);
            p.step(PointOp::Add, ty, &[new, old]);
        })?;
        Ok(vec![h])
    }

    fn lstm(&self, b: &mut Builder<'_>, layer: &Layer, x: ValueId, states: &[ValueId]) -> LowerResult<Vec<ValueId>> {
        let (h, c, hidden) = (states[0], states[1], layer.hidden);
        let product = self.product(b, layer, h, 0, 4)?;
        let sum = b.add("sum", x, product)?;
        // Adds the peephole of the cell state to a gate.
        let gate = |b: &mut Builder<'_>, at: usize, cell: ValueId| {
            let gate = b.part("gate", sum, 1, at as i64 * hidden, hidden)?;
            match self.peepholes.and_then(|peepholes| peepholes.get(at).copied()) {
                Some(peephole) => {
                    let seen = b.mul("seen", peephole, cell)?;
                    b.add("gate", gate, seen)
                }
                None => Ok(gate),
            }
        };
        let input = gate(b, 0, c)?;
        let input = self.activate(b, layer, input, 0)?;
        let forget = if layer.input_forget {
            let ty = b.dtype(input);
            b.program("forget", &[input], ty, |p, x| {
                p.step(PointOp::Sub, ty, &[PointArg::Const(1.0), x[0]]);
            })?
        } else {
            let forget = gate(b, 2, c)?;
            self.activate(b, layer, forget, 0)?
        };
        let candidate = gate(b, 3, c)?;
        let candidate = self.activate(b, layer, candidate, 1)?;
        let (kept, new) = (b.mul("kept", forget, c)?, b.mul("new", input, candidate)?);
        let c = b.add("c", kept, new)?;
        let output = gate(b, 1, c)?;
        let output = self.activate(b, layer, output, 0)?;
        // As in ONNX Runtime, the cell is not clipped.
        let shown = self.activate_unclipped(b, c, 2)?;
        Ok(vec![b.mul("h", output, shown)?, c])
    }
}
