//! `atom` and `red`.
//!
//! Operations on integers are atomic instructions in every scope. Sums of floats other than f64,
//! and all operations on halves, are compare-and-swap loops. On NVIDIA's devices a sum of f32
//! flushes subnormal numbers in global memory and keeps them in shared memory. AMD's instructions
//! treat them differently in each generation.

use super::memory::scope;
use super::*;
use atoll_emit::writer::intrinsics;
use atoll_emit::{Arithmetic, AtomicOp, is_half};
use atoll_lower::program::{is_signed, storage};
use atoll_ptx::StateSpace;

/// An atomic operation on one number.
#[derive(Clone, Copy, Debug)]
struct Update {
    op: AtomicOp,
    ty: ScalarType,
    space: Option<StateSpace>,
    scope: &'static str,
    order: &'static str,
}

fn order(inst: &Inst) -> &'static str {
    if inst.has("acq_rel") {
        "acq_rel"
    } else if inst.has("acquire") {
        "acquire"
    } else if inst.has("release") {
        "release"
    } else {
        "monotonic"
    }
}

impl Emitter<'_> {
    /// `atom.space.op.type d, [a], b, c` and `red.space.op.type [a], b`, also with vectors.
    pub(super) fn atomic(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let ty = self.ty_of(inst)?;
        let op = inst.form.modifiers.iter().find_map(|m| AtomicOp::of(m));
        // AMD GPUs have no atomics of 128 bits.
        let op = op.filter(|op| op.has(ty) && ty != ScalarType::B128);
        let Some(op) = op else { return Err(self.unsupported(inst, "")) };
        let first = usize::from(inst.form.opcode == "atom");
        let update = Update { op, ty, space: inst.form.space(), scope: scope(inst), order: order(inst) };
        let parts = |operand: &Opnd| match operand {
            Opnd::Vec(parts) => parts.clone(),
            single => vec![single.clone()],
        };
        let count = parts(self.op(inst, first + 1)?).len();
        let pointer = self.pointer(inst, self.op(inst, first)?)?;
        for part in 0..count {
            let at = self.w.offset_const(&pointer, part as u64 * u64::from(ty.bytes()));
            let mut operands = Vec::new();
            for index in first + 1..inst.ops.len().min(first + 3) {
                // Another operand is a cache policy, which is ignored.
                if index == first + 1 || op == AtomicOp::CompareAndSwap {
                    operands.extend(parts(self.op(inst, index)?).get(part).cloned());
                }
            }
            if operands.len() != if op == AtomicOp::CompareAndSwap { 2 } else { 1 } {
                return Err(self.malformed(inst, "has too few operands"));
            }
            let elem = if op == AtomicOp::Add { storage(ty) } else { Elem::int(ty.bits()) };
            let values: Vec<Val> = operands.iter().map(|operand| self.operand(operand, elem)).collect();
            let old = self.update(update, &at, &values);
            if first == 1 {
                let target = parts(self.op(inst, 0)?).get(part).cloned().unwrap_or(Opnd::Sink);
                self.set_operand(&target, &old, is_signed(ty));
            }
        }
        Ok(())
    }

    /// Emits one update. Returns the old value.
    fn update(&mut self, update: Update, pointer: &Val, values: &[Val]) -> Val {
        if let [expected, new] = values {
            return self.compare_and_swap(update, pointer, expected, new).0;
        }
        let (value, Update { scope, order, .. }) = (&values[0], update);
        match update.op.instruction(update.ty) {
            Some(instruction) => {
                self.w.value(value.ty, format_args!("atomicrmw {instruction} {pointer}, {value} {scope}{order}"))
            }
            None => self.update_in_loop(update, pointer, value),
        }
    }

    /// Returns the old value, and whether it was the expected one.
    fn compare_and_swap(&mut self, update: Update, pointer: &Val, expected: &Val, new: &Val) -> (Val, Val) {
        let (ty, Update { scope, order, .. }) = (expected.ty, update);
        let failure = if matches!(order, "acq_rel" | "acquire") { "acquire" } else { "monotonic" };
        let both = self.w.value(ty, format_args!("cmpxchg {pointer}, {expected}, {new} {scope}{order} {failure}"));
        let old = self.w.value(ty, format_args!("extractvalue {{ {ty}, i1 }} {}, 0", both.text));
        let done = self.w.value(I1, format_args!("extractvalue {{ {ty}, i1 }} {}, 1", both.text));
        (old, done)
    }

    fn update_in_loop(&mut self, update: Update, pointer: &Val, value: &Val) -> Val {
        let bits = Ty::scalar(Elem::int(value.ty.elem.bits()));
        let (seen, scope) = (self.w.register(bits), update.scope);
        let align = bits.elem.bytes();
        let first = self.w.value(bits, format_args!("load atomic {bits}, {pointer} {scope}monotonic, align {align}"));
        self.w.store(&first, &seen);
        let (again, done) = (self.w.label("swap"), self.w.label("swapped"));
        self.w.place(&again);
        let old_bits = self.w.load(bits, &seen);
        let old = self.w.cast("bitcast", &old_bits, value.ty.elem);
        let new = self.combined(update, pointer, &old, value);
        let new_bits = self.w.cast("bitcast", &new, bits.elem);
        let (found, swapped) = self.compare_and_swap(update, pointer, &old_bits, &new_bits);
        self.w.store(&found, &seen);
        self.w.br_if(&swapped, &done, &again);
        self.w.place(&done);
        old
    }

    /// Computes the new value from the old value and the operand: a sum of f32, or an operation on
    /// halves.
    fn combined(&mut self, update: Update, pointer: &Val, old: &Val, value: &Val) -> Val {
        if is_half(update.ty) {
            return self.combined_halves(update, old, value);
        }
        let kept = self.w.bin("fadd", old, value);
        if update.space == Some(StateSpace::Shared) {
            return kept;
        }
        let mut arithmetic = Arithmetic(self);
        let (a, b) = (arithmetic.flush(old), arithmetic.flush(value));
        let sum = self.w.bin("fadd", &a, &b);
        let flushed = Arithmetic(self).flush(&sum);
        if update.space.is_some() {
            return flushed;
        }
        let in_shared = self.is_shared(pointer);
        self.w.select(&in_shared, &kept, &flushed)
    }

    /// Computes the new value of one or two halves, as bits.
    fn combined_halves(&mut self, update: Update, old: &Val, value: &Val) -> Val {
        let mut results = Vec::new();
        for index in 0..update.ty.bits() / 16 {
            let [a, b] = [old, value].map(|bits| {
                let moved = self.w.bin_const("lshr", bits, (16 * index).into());
                let half = self.w.resize(&moved, Elem::I16, false);
                Arithmetic(self).half_to_float(&half, update.ty)
            });
            let result = match update.op {
                AtomicOp::Add => self.w.bin("fadd", &a, &b),
                op => intrinsics::extreme_number(&mut self.w, op == AtomicOp::Max, &a, &b),
            };
            results.push(Arithmetic(self).float_to_half(&result, update.ty));
        }
        match results.as_slice() {
            [low, high] => Arithmetic(self).join_halves(low, high),
            _ => results.remove(0),
        }
    }
}
