//! `atom` and `red`.
//!
//! Lanes are processed one by one, lowest first. Atomics on global memory are atomic instructions,
//! because the blocks of a launch run on several compute units. Atomics on shared memory are plain
//! accesses, because a block stays on one compute unit. Operations without an x86 instruction, such
//! as sums of floats, are compare-and-swap loops. An integer reduction to a single address is first
//! reduced within the warp.
//!
//! As on NVIDIA's devices, a sum of f32 in global memory flushes subnormal numbers, and one in
//! shared memory does not.

use super::*;
use atoll_emit::writer::intrinsics;
use atoll_emit::{AtomicOp, is_half};
use atoll_kgraph::host_abi::AccessKind;
use atoll_lower::program::{is_signed, storage};
use atoll_ptx::{ScalarType, StateSpace};

/// Number of the stack array for the results of lanes.
const RESULTS: u8 = 7;

/// An atomic on one number.
#[derive(Clone, Copy, Debug)]
struct Update {
    op: AtomicOp,
    ty: ScalarType,
    /// No other thread can observe an intermediate state.
    is_plain: bool,
    /// The state space is known only from the address.
    is_generic: bool,
    order: &'static str,
}

impl Update {
    /// The reduction of a vector by this operation.
    fn reduction(self) -> Option<&'static str> {
        if self.ty.class() == atoll_ptx::types::TypeClass::Float {
            return None;
        }
        let signed = is_signed(self.ty);
        Some(match self.op {
            AtomicOp::Add => "add",
            AtomicOp::And => "and",
            AtomicOp::Or => "or",
            AtomicOp::Xor => "xor",
            AtomicOp::Min => {
                if signed {
                    "smin"
                } else {
                    "umin"
                }
            }
            AtomicOp::Max => {
                if signed {
                    "smax"
                } else {
                    "umax"
                }
            }
            _ => return None,
        })
    }

    /// The neutral element.
    fn neutral(self) -> i128 {
        let bits = self.ty.bits();
        match (self.op, is_signed(self.ty)) {
            (AtomicOp::And, _) | (AtomicOp::Min, false) => -1,
            (AtomicOp::Min, true) => (1 << (bits - 1)) - 1,
            (AtomicOp::Max, true) => -(1 << (bits - 1)),
            _ => 0,
        }
    }
}

impl Emitter<'_> {
    /// `atom.space.op.type d, [a], b, c` and `red.space.op.type [a], b`, also with vectors.
    pub(super) fn atomic(&mut self, inst: &Inst) -> Result<(), HostError> {
        let ty = self.ty_of(inst)?;
        let op = inst.form.modifiers.iter().find_map(|m| AtomicOp::of(m));
        let Some(op) = op.filter(|op| op.has(ty)) else { return Err(self.unsupported(inst, "")) };
        let (space, first) = (inst.form.space(), usize::from(inst.form.opcode == "atom"));
        let update = Update {
            op,
            ty,
            is_plain: space == Some(StateSpace::Shared),
            is_generic: space.is_none(),
            order: order(inst),
        };
        let parts = |operand: &Opnd| match operand {
            Opnd::Vec(parts) => parts.clone(),
            single => vec![single.clone()],
        };
        let count = parts(self.op(inst, first + 1)?).len();
        let address = self.address(inst, self.op(inst, first)?, AccessKind::Atomic, ty.bytes() * count as u32)?;
        let uniform = match &address {
            access::Address::Uniform(pointer) => Some(pointer.clone()),
            _ => None,
        };
        let pointers = uniform.clone().unwrap_or_else(|| self.lane_pointers(&address));
        for part in 0..count {
            let at = self.offset_each(&pointers, part as u32 * ty.bytes());
            let mut operands = Vec::new();
            for index in first + 1..inst.ops.len().min(first + 3) {
                // Further operands are a cache policy.
                if index == first + 1 || op == AtomicOp::CompareAndSwap {
                    operands.extend(parts(self.op(inst, index)?).get(part).cloned());
                }
            }
            let target =
                if first == 0 { Opnd::Sink } else { parts(self.op(inst, 0)?).get(part).cloned().unwrap_or(Opnd::Sink) };
            self.update(inst, update, &at, &operands, &target)?;
        }
        Ok(())
    }

    /// One number per lane.
    fn update(
        &mut self,
        inst: &Inst,
        update: Update,
        pointers: &Val,
        operands: &[Opnd],
        target: &Opnd,
    ) -> Result<(), HostError> {
        let wanted = if update.op == AtomicOp::CompareAndSwap { 2 } else { 1 };
        if operands.len() != wanted {
            return Err(self.malformed(inst, "has too few operands"));
        }
        let elem = if update.op == AtomicOp::Add { storage(update.ty) } else { Elem::int(update.ty.bits()) };
        let wants_old = !matches!(target, Opnd::Sink);
        if let (false, 1, Some(reduction)) = (wants_old, pointers.ty.lanes, update.reduction()) {
            let value = self.reduced(update, &operands[0], elem, reduction);
            self.apply(update, &[pointers.clone(), value]);
            return Ok(());
        }
        let mut arguments = vec![pointers.clone()];
        for operand in operands {
            let lanes = if self.is_uniform(operand) { 1 } else { LANES };
            arguments.push(self.get(operand, elem, lanes));
        }
        let result = wants_old.then(|| self.lane_array(elem, RESULTS));
        let lanes = self.lane_arrays_of(&arguments);
        self.for_each_lane(|e, lane| {
            let arguments: Vec<Val> = lanes.iter().map(|l| e.lane_value(l, lane)).collect();
            let old = e.apply(update, &arguments);
            if let Some(result) = &result {
                let at = e.lane_slot(result, elem, lane);
                e.w.store(&old, &at);
            }
        });
        if let Some(result) = result {
            let old = self.w.load(Ty { elem, lanes: LANES }, &result);
            self.set_operand(target, &old, is_signed(update.ty));
        }
        Ok(())
    }

    /// Reduces the numbers of all active lanes to one.
    fn reduced(&mut self, update: Update, operand: &Opnd, elem: Elem, reduction: &str) -> Val {
        let value = self.get(operand, elem, LANES);
        let value = match self.mask.clone() {
            None => value,
            Some(mask) => self.w.select(&mask, &value, &constant(value.ty, update.neutral())),
        };
        let name = format!("llvm.vector.reduce.{reduction}.{}", value.ty.mangled());
        self.w.call_named(&name, Ty::scalar(elem), &[&value])
    }

    /// One update of one address; returns the old value.
    fn apply(&mut self, update: Update, arguments: &[Val]) -> Val {
        let (pointer, value) = (&arguments[0], &arguments[1]);
        let ty = value.ty;
        if update.is_plain {
            let old = self.w.load(ty, pointer);
            let new = match arguments.get(2) {
                Some(new) => {
                    let same = self.w.compare("icmp eq", &old, value);
                    self.w.select(&same, new, &old)
                }
                None => self.combined(update, pointer, &old, value),
            };
            self.w.store(&new, pointer);
            return old;
        }
        if let Some(new) = arguments.get(2) {
            return self.compare_and_swap(update, pointer, value, new).0;
        }
        match update.op.instruction(update.ty) {
            Some(instruction) => {
                self.w.value(ty, format_args!("atomicrmw {instruction} {pointer}, {value} {}", update.order))
            }
            None => self.update_in_loop(update, pointer, value),
        }
    }

    /// Returns the old value, and whether it was the expected one.
    fn compare_and_swap(&mut self, update: Update, pointer: &Val, expected: &Val, new: &Val) -> (Val, Val) {
        let ty = expected.ty;
        let failure = if update.order == "acq_rel" { "acquire" } else { "monotonic" };
        let both = self.w.value(ty, format_args!("cmpxchg {pointer}, {expected}, {new} {} {failure}", update.order));
        let old = self.w.value(ty, format_args!("extractvalue {{ {ty}, i1 }} {}, 0", both.text));
        let done = self.w.value(I1, format_args!("extractvalue {{ {ty}, i1 }} {}, 1", both.text));
        (old, done)
    }

    fn update_in_loop(&mut self, update: Update, pointer: &Val, value: &Val) -> Val {
        let bits = Ty::scalar(Elem::int(value.ty.elem.bits()));
        let seen = self.w.alloca(bits);
        let first =
            self.w.value(bits, format_args!("load atomic {bits}, {pointer} monotonic, align {}", bits.elem.bytes()));
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

    /// The new value from the old one and the operand.
    fn combined(&mut self, update: Update, pointer: &Val, old: &Val, value: &Val) -> Val {
        if is_half(update.ty) {
            return self.combined_halves(update, old, value);
        }
        let (w, ty, signed) = (&mut self.w, value.ty, is_signed(update.ty));
        match update.op {
            AtomicOp::Add if update.ty == ScalarType::F32 && update.is_generic => {
                let (kept, flushed) = (w.bin("fadd", old, value), self.flushed_sum(old, value));
                let address = self.w.value(I64, format_args!("ptrtoint {pointer} to i64"));
                let in_shared = self.is_in_shared(&address);
                self.w.select(&in_shared, &kept, &flushed)
            }
            AtomicOp::Add if update.ty == ScalarType::F32 && !update.is_plain => self.flushed_sum(old, value),
            AtomicOp::Add => w.bin(if ty.elem.is_float() { "fadd" } else { "add" }, old, value),
            AtomicOp::And => w.bin("and", old, value),
            AtomicOp::Or => w.bin("or", old, value),
            AtomicOp::Xor => w.bin("xor", old, value),
            AtomicOp::Exchange | AtomicOp::CompareAndSwap => value.clone(),
            AtomicOp::Min => w.call(if signed { "llvm.smin" } else { "llvm.umin" }, ty, &[old, value]),
            AtomicOp::Max => w.call(if signed { "llvm.smax" } else { "llvm.umax" }, ty, &[old, value]),
            AtomicOp::Increment => {
                let next = w.bin_const("add", old, 1);
                let wraps = w.compare("icmp uge", old, value);
                w.select(&wraps, &constant(ty, 0), &next)
            }
            AtomicOp::Decrement => {
                let next = w.bin_const("sub", old, 1);
                let is_zero = w.compare("icmp eq", old, &constant(ty, 0));
                let above = w.compare("icmp ugt", old, value);
                let wraps = w.bin("or", &is_zero, &above);
                w.select(&wraps, value, &next)
            }
        }
    }

    fn flushed_sum(&mut self, a: &Val, b: &Val) -> Val {
        let (a, b) = (Arithmetic(self).flush(a), Arithmetic(self).flush(b));
        let sum = self.w.bin("fadd", &a, &b);
        Arithmetic(self).flush(&sum)
    }

    /// Computes the new value of one or two halves, as bits.
    fn combined_halves(&mut self, update: Update, old: &Val, value: &Val) -> Val {
        let count = update.ty.bits() / 16;
        let mut results = Vec::new();
        for index in 0..count {
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

/// LLVM's order for an atomic.
fn order(inst: &Inst) -> &'static str {
    if ["acquire", "release", "acq_rel"].iter().any(|m| inst.has(m)) { "acq_rel" } else { "monotonic" }
}
