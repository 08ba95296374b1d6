//! The recurrence of an RNN, a GRU or an LSTM: one block per direction and batch element runs all
//! steps in one launch.
//!
//! Shared memory has the state `h` twice, of the previous step and of this one, so that one barrier
//! per step suffices. A thread computes the gates of some hidden units from rows of `r`, which
//! adjacent lanes read contiguously. The weights are either packed as `[D, H / 32, H, G, 32]`, so
//! that a warp reads its weights as consecutive lines, or plain, `[D, H, G H]`. The cell state of
//! an LSTM is in shared memory too; each element is accessed by one thread only.

use crate::error::CodegenError;
use crate::schedule::{Recurrence, Tensor};
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written, mem};
use atoll_frontend::tensor_graph::{Cell as Kind, Direction};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Products per iteration of the innermost loop.
const UNROLL: u32 = 4;
/// Largest number of warps of a block; with more, threads would have less than one unit for common
/// sizes.
const WARPS_MAX: u32 = 8;

/// Inputs `gates [T, B, D * G H]`, `r [D, H, G H]`, `bias [D, 2 G H]`, `h0`, and `c0` for LSTM;
/// outputs `y [T, D, B, H]`, `h [D, B, H]`, and `c [D, B, H]` for LSTM.
pub(crate) fn recurrence(
    target: &TargetDescription,
    layer: Recurrence,
    inputs: &[Tensor],
    outputs: &[Tensor],
) -> Result<Written, CodegenError> {
    let ([gates, r, bias, states_before @ ..], [y, states_after @ ..]) = (inputs, outputs) else {
        return Err(CodegenError::inconsistent("a recurrent layer has too few operands or results"));
    };
    if states_before.len() != layer.cell.states() || states_after.len() != layer.cell.states() {
        return Err(CodegenError::inconsistent("a recurrent layer has the wrong number of states"));
    }
    if gates.dtype != DType::F32 {
        return Err(CodegenError::unsupported("a recurrent layer of a type other than F32"));
    }
    let (hidden, direction, gate_count) = (layer.hidden as u32, layer.direction, layer.cell.gates() as u32);
    let warps = hidden.div_ceil(LANES).clamp(1, WARPS_MAX);
    let state_bytes = hidden.next_multiple_of(4) * 4;
    let shared_bytes = (1 + layer.cell.states() as u32) * state_bytes;
    if shared_bytes > target.shared_bytes_max {
        return Err(CodegenError::unsupported(format!(
            "a recurrent layer of {hidden} hidden units, whose state does not fit into shared memory"
        )));
    }
    let weights = Weights::new(r, hidden, gate_count);
    let mut w = Writer::new(match layer.cell {
        Kind::Rnn => "rnn",
        Kind::Gru => "gru",
        Kind::Lstm => "lstm",
    });
    let [gates_at, r_at, bias_at] = [gates, r, bias].map(|t| w.base(t));
    let before_at: Vec<Name> = states_before.iter().map(|t| w.base(t)).collect();
    let y_at = w.base(y);
    let after_at: Vec<Name> = states_after.iter().map(|t| w.base(t)).collect();
    let (steps, batch) = (y.shape[0].clone(), y.shape[2].clone());
    let directions = y.shape[1].clone();

    let shared = w.shared("state", shared_bytes);
    let batch_count = w.size(&batch);
    let block = w.special("%ctaid.x");
    let (d, b) = w.div_rem(&block, &batch_count);
    let lane = w.special("%tid.x");
    let warp = w.special("%tid.y");
    let hidden_int = Int::from(hidden);
    let line = w.mul(&block, &hidden_int);
    let cell = Cell {
        kind: layer.cell,
        hidden,
        warps,
        lane,
        warp,
        r: r_at,
        weights,
        bias: bias_at,
        direction: d.clone(),
        cells: w.make(ScalarType::U32, "add.s32", [(&shared).into(), (2 * state_bytes).into()]),
    };

    // Loads the initial state.
    cell.units(&mut w, |w, unit| {
        let at = w.add(&line, unit);
        for (base, place) in before_at.iter().zip([&shared, &cell.cells]) {
            let from = w.at(base, &at, 4);
            let value = w.load(DType::F32, &from, 0).operand;
            let to = shared_at(w, place, unit);
            w.emit("st.shared.f32", [mem(&to, 0), value]);
        }
    });
    w.barrier();

    let before = w.variable(&Int::Reg(shared.clone()));
    let after = w.make(ScalarType::U32, "add.s32", [(&shared).into(), state_bytes.into()]);
    let step_count = w.size(&steps);
    let last = w.sub(&step_count, &Int::Known(1));
    let directions_count = w.size(&directions);
    w.count(&Int::Known(0), &step_count, &Int::Known(1), |w, step| {
        let t = time(w, direction, &d, step, &last);
        let row = w.mad(&t, &batch_count, &b);
        let row = w.mad(&row, &directions_count, &d);
        let gates_row = w.mul(&row, &Int::from(gate_count * hidden));
        let gates_row = w.at(&gates_at, &gates_row, 4);
        let y_row = w.mad(&t, &directions_count, &d);
        let y_row = w.mad(&y_row, &batch_count, &b);
        let y_row = w.mul(&y_row, &hidden_int);
        let y_row = w.at(&y_at, &y_row, 4);
        cell.groups(w, |w, group, unit| {
            let value = cell.step(w, group, unit, &gates_row, &before);
            let to = shared_at(w, &after, unit);
            w.emit("st.shared.f32", [mem(&to, 0), value.clone()]);
            let to = w.at(&y_row, unit, 4);
            w.emit("st.global.f32", [mem(&to, 0), value]);
        });
        w.barrier();
        // Swaps the two copies of the state.
        let kept = w.variable(&Int::Reg(before.clone()));
        w.emit("mov.u32", [(&before).into(), (&after).into()]);
        w.emit("mov.u32", [(&after).into(), kept.into()]);
    });

    cell.units(&mut w, |w, unit| {
        let at = w.add(&line, unit);
        for (base, place) in after_at.iter().zip([&before, &cell.cells]) {
            let from = shared_at(w, place, unit);
            let value = w.f32("ld.shared.f32", [mem(&from, 0)]);
            let to = w.at(base, &at, 4);
            w.emit("st.global.f32", [mem(&to, 0), value]);
        }
    });
    Ok(w.finish([LANES, warps, 1], [directions * batch, Expr::Const(1), Expr::Const(1)]))
}

/// The input step of an iteration of the loop.
fn time(w: &mut Writer, direction: Direction, d: &Int, step: &Int, last: &Int) -> Int {
    match direction {
        Direction::Forward => step.clone(),
        Direction::Reverse => w.sub(last, step),
        Direction::Bidirectional => {
            let backwards = w.sub(last, step);
            let is_forward = w.compare("eq.u32", d, &Int::Known(0));
            Int::Reg(w.make(ScalarType::U32, "selp.u32", [step.operand(), backwards.operand(), is_forward.into()]))
        }
    }
}

/// Address of a unit in a shared array.
fn shared_at(w: &mut Writer, base: &Name, unit: &Int) -> Name {
    w.make(ScalarType::U32, "mad.lo.s32", [unit.operand(), 4.into(), base.into()])
}

/// Strides of the weights over direction, group, product and gate, in elements.
struct Weights {
    direction: u32,
    /// A group of 32 units.
    group: u32,
    product: u32,
    gate: u32,
}

impl Weights {
    /// Packed weights have one more axis.
    fn new(r: &Tensor, hidden: u32, gates: u32) -> Weights {
        if r.shape.len() == 5 {
            let group = hidden * gates * LANES;
            return Weights { direction: hidden.div_ceil(LANES) * group, group, product: gates * LANES, gate: LANES };
        }
        Weights { direction: gates * hidden * hidden, group: LANES, product: gates * hidden, gate: hidden }
    }
}

/// State that all steps share.
struct Cell {
    kind: Kind,
    hidden: u32,
    warps: u32,
    lane: Int,
    warp: Int,
    r: Name,
    weights: Weights,
    bias: Name,
    direction: Int,
    /// Shared address of an LSTM's cell state.
    cells: Name,
}

impl Cell {
    /// Runs `body` for the units of this thread.
    fn units(&self, w: &mut Writer, mut body: impl FnMut(&mut Writer, &Int)) {
        self.groups(w, |w, _, unit| body(w, unit));
    }

    /// Runs `body` for the units of this thread, with the index of the group of 32 units that its
    /// warp is computing.
    fn groups(&self, w: &mut Writer, mut body: impl FnMut(&mut Writer, &Int, &Int)) {
        let count = self.hidden.div_ceil(LANES);
        let certain = self.hidden.is_multiple_of(self.warps * LANES);
        w.count(&Int::Known(0), &count.into(), &self.warps.into(), |w, first| {
            let group = w.add(first, &self.warp);
            let group = Int::Reg(w.variable(&group));
            let unit = w.mad(&group, &LANES.into(), &self.lane);
            let unit = Int::Reg(w.variable(&unit));
            let guard = (!certain).then(|| w.compare("lt.u32", &unit, &self.hidden.into()));
            w.when(guard.as_ref(), |w| body(w, &group, &unit));
        });
    }

    /// One step of one unit: returns the new `h`; the cell state of an LSTM is updated in place.
    fn step(&self, w: &mut Writer, group: &Int, unit: &Int, gates_row: &Name, before: &Name) -> Operand {
        let (of_input, sums) = self.start(w, unit, gates_row);
        self.products(w, group, before, &sums);
        let sum = |gate: usize| Operand::from(&sums[gate]);
        match self.kind {
            Kind::Rnn => w.tanh(&sum(0)),
            Kind::Gru => {
                let [update, reset] = [0, 1].map(|gate| w.sigmoid(&sum(gate)));
                let candidate = w.fma(&reset, &sum(2), &of_input[2]);
                let candidate = w.tanh(&candidate);
                let at = shared_at(w, before, unit);
                let old = w.f32("ld.shared.f32", [mem(&at, 0)]);
                // (1 - update) * candidate + update * old
                let negated = w.f32("neg.f32", [candidate.clone()]);
                let difference = w.fadd(&old, &negated);
                w.fma(&update, &difference, &candidate)
            }
            Kind::Lstm => {
                let [input, output, forget] = [0, 1, 2].map(|gate| w.sigmoid(&sum(gate)));
                let candidate = w.tanh(&sum(3));
                let cell = shared_at(w, &self.cells, unit);
                let old = w.f32("ld.shared.f32", [mem(&cell, 0)]);
                let kept = w.fmul(&forget, &old);
                let new = w.fma(&input, &candidate, &kept);
                w.emit("st.shared.f32", [mem(&cell, 0), new.clone()]);
                let bounded = w.tanh(&new);
                w.fmul(&output, &bounded)
            }
        }
    }

    /// The input products, and the initial sums of the gates before the products with the state are
    /// added. The last sum of a GRU contains only products with the state, because the reset gate
    /// is applied to it.
    fn start(&self, w: &mut Writer, unit: &Int, gates_row: &Name) -> (Vec<Operand>, Vec<Name>) {
        let (hidden, gates) = (self.hidden, self.kind.gates() as i64);
        let gate_bytes = i64::from(hidden) * 4;
        let from = w.at(gates_row, unit, 4);
        let bias = w.mul(&self.direction, &Int::from(2 * gates as u32 * hidden));
        let bias = w.add(&bias, unit);
        let bias = w.at(&self.bias, &bias, 4);
        let gate = |gate: i64| {
            let input = w.load(DType::F32, &from, gate * gate_bytes).operand;
            let of_input = w.load(DType::F32, &bias, gate * gate_bytes).operand;
            let of_state = w.load(DType::F32, &bias, (gates + gate) * gate_bytes).operand;
            if self.kind == Kind::Gru && gate == 2 {
                let sum = w.make(ScalarType::F32, "mov.f32", [of_state]);
                return (w.fadd(&input, &of_input), sum);
            }
            let bias = w.fadd(&of_input, &of_state);
            (input.clone(), w.make(ScalarType::F32, "add.f32", [input, bias]))
        };
        (0..gates).map(gate).unzip()
    }

    /// Adds the products of the state with the rows of `r`.
    fn products(&self, w: &mut Writer, group: &Int, before: &Name, sums: &[Name]) {
        let hidden = self.hidden;
        let Weights { direction, group: of_group, product, gate: of_gate } = self.weights;
        let r = w.mul(&self.direction, &Int::from(direction));
        let r = w.mad(group, &Int::from(of_group), &r);
        let r = w.at(&self.r, &r, 4);
        let r = w.at(&r, &self.lane, 4);
        let r = w.cursor(&r);
        let state = w.variable(&Int::Reg(before.clone()));
        let products = |w: &mut Writer, count: u32| {
            for k in 0..count {
                let h = w.f32("ld.shared.f32", [mem(&state, i64::from(k) * 4)]);
                for (gate, sum) in sums.iter().enumerate() {
                    let at = 4 * i64::from(k * product + gate as u32 * of_gate);
                    let weight = w.load(DType::F32, &r, at).operand;
                    w.emit("fma.rn.f32", [sum.into(), h.clone(), weight, sum.into()]);
                }
            }
            w.emit("add.s32", [(&state).into(), (&state).into(), (4 * count).into()]);
            w.advance(&r, &Int::from(product * count), 4);
        };
        w.count(&Int::Known(0), &Int::from(hidden / UNROLL), &Int::Known(1), |w, _| {
            // Without this, ptxas unrolls the loop for 128 units completely: 168 registers instead
            // of 42, and spills for sm_75.
            w.keep_rolled();
            products(w, UNROLL);
        });
        if !hidden.is_multiple_of(UNROLL) {
            products(w, hidden % UNROLL);
        }
    }
}
