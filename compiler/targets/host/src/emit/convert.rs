//! `cvt`, and addresses from one space to another.

use super::*;
use crate::program::{elem_of, is_signed};
use atoll_ptx::{ScalarType, StateSpace};

impl Emitter<'_> {
    /// `cvt.to.from d, a`
    pub(super) fn cvt(&mut self, inst: &Inst) -> Result<(), HostError> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let [to, from] = types[..] else { return Err(self.malformed(inst, "needs two types")) };
        let lanes = self.lanes_of(inst);
        if matches!(to, ScalarType::F16x2 | ScalarType::Bf16x2) {
            return self.pack_halves(inst, to, lanes);
        }
        let value = match (is_float(to), is_float(from)) {
            (false, false) => self.int_to_int(inst, to, from, lanes)?,
            (true, false) => self.int_to_float(inst, to, from, lanes)?,
            (false, true) => self.float_to_int(inst, to, from, lanes)?,
            (true, true) => self.float_to_float(inst, to, from, lanes)?,
        };
        self.set_operand(&inst.ops[0], &value, is_signed(to));
        Ok(())
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: a goes to the upper half.
    fn pack_halves(&mut self, inst: &Inst, to: ScalarType, lanes: u32) -> Result<(), HostError> {
        let high = self.get(self.op(inst, 1)?, Elem::F32, lanes);
        let low = self.get(self.op(inst, 2)?, Elem::F32, lanes);
        let (low, high) = (self.finished(inst, low), self.finished(inst, high));
        let (low, high) = (self.float_to_half(&low, to), self.float_to_half(&high, to));
        let value = self.join_halves(&low, &high);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    fn int_to_int(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let operand = self.op(inst, 1)?;
        if !inst.has("sat") {
            return Ok(self.extended(operand, from, Elem::int(to.bits()), lanes));
        }
        // One bit more than either type holds both ranges.
        let wide = if to.bits().max(from.bits()) >= 64 { Elem::I128 } else { Elem::I64 };
        let value = self.get(operand, Elem::int(from.bits()), lanes);
        let value = self.w.resize(&value, wide, is_signed(from));
        let (low, high) = match is_signed(to) {
            true => (-(1i128 << (to.bits() - 1)), (1i128 << (to.bits() - 1)) - 1),
            false => (0, (1i128 << to.bits()) - 1),
        };
        let value = self.w.call("llvm.smax", value.ty, &[&value, &constant(value.ty, low)]);
        let value = self.w.call("llvm.smin", value.ty, &[&value, &constant(value.ty, high)]);
        Ok(self.w.resize(&value, Elem::int(to.bits()), false))
    }

    fn int_to_float(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, HostError> {
        self.only_nearest(inst)?;
        let value = self.get(self.op(inst, 1)?, Elem::int(from.bits()), lanes);
        let op = if is_signed(from) { "sitofp" } else { "uitofp" };
        let target = if to == ScalarType::F64 { Elem::F64 } else { Elem::F32 };
        let value = self.w.cast(op, &value, target);
        Ok(self.as_type(&value, to))
    }

    /// Out of range it saturates, NaN becomes 0.
    fn float_to_int(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let value = self.read_float(inst, from, lanes)?;
        let value = self.integral(inst, &value);
        let op = if is_signed(to) { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
        let result = value.ty.with(Elem::int(to.bits()));
        let name = format!("{op}.{}.{}", result.mangled(), value.ty.mangled());
        Ok(self.w.call_named(&name, result, &[&value]))
    }

    fn float_to_float(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, HostError> {
        if to.bits() < from.bits() {
            self.only_nearest(inst)?;
        }
        let mut value = self.read_float(inst, from, lanes)?;
        if ["rni", "rzi", "rmi", "rpi"].iter().any(|m| inst.has(m)) {
            value = self.integral(inst, &value);
        }
        let value = self.finished(inst, value);
        Ok(self.as_type(&value, to))
    }

    /// The source as a float or double.
    fn read_float(&mut self, inst: &Inst, from: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let operand = self.op(inst, 1)?;
        Ok(match from {
            ScalarType::F16 | ScalarType::Bf16 => {
                let bits = self.get(operand, Elem::I16, lanes);
                self.half_to_float(&bits, from)
            }
            _ => self.get(operand, elem_of(from), lanes),
        })
    }

    /// A float or double as the bits of a type.
    fn as_type(&mut self, value: &Val, to: ScalarType) -> Val {
        match (to, value.ty.elem) {
            (ScalarType::F64, Elem::F32) => self.w.cast("fpext", value, Elem::F64),
            (ScalarType::F32, Elem::F64) => self.w.cast("fptrunc", value, Elem::F32),
            (ScalarType::F16 | ScalarType::Bf16, Elem::F64) => {
                // Rounded to odd first, so that the second rounding sees whether anything was lost.
                let single = self.round_to_odd(value);
                self.float_to_half(&single, to)
            }
            (ScalarType::F16 | ScalarType::Bf16, _) => self.float_to_half(value, to),
            _ => value.clone(),
        }
    }

    /// A double cut to a float whose last bit is set where it is not exact.
    fn round_to_odd(&mut self, value: &Val) -> Val {
        let single = self.w.cast("fptrunc", value, Elem::F32);
        let back = self.w.cast("fpext", &single, Elem::F64);
        let bits = self.w.cast("bitcast", &single, Elem::I32);
        // Where rounding went away from zero, step back before setting the bit.
        let (magnitude, original) = (self.w.call("llvm.fabs", back.ty, &[&back]), self.w.call("llvm.fabs", value.ty, &[value]));
        let went_up = self.w.compare("fcmp ogt", &magnitude, &original);
        let step = self.w.resize(&went_up, Elem::I32, false);
        let cut = self.w.bin("sub", &bits, &step);
        let inexact = self.w.compare("fcmp one", &back, value);
        let sticky = self.w.resize(&inexact, Elem::I32, false);
        let odd = self.w.bin("or", &cut, &sticky);
        self.w.cast("bitcast", &odd, Elem::F32)
    }

    /// Rounds to an integral value as the modifiers say, towards zero without one.
    fn integral(&mut self, inst: &Inst, value: &Val) -> Val {
        let op = if inst.has("rni") {
            "llvm.roundeven"
        } else if inst.has("rmi") {
            "llvm.floor"
        } else if inst.has("rpi") {
            "llvm.ceil"
        } else {
            "llvm.trunc"
        };
        self.w.call(op, value.ty, &[value])
    }

    fn only_nearest(&self, inst: &Inst) -> Result<(), HostError> {
        match inst.form.modifiers.iter().find(|m| matches!(m.as_str(), "rz" | "rm" | "rp" | "rna" | "rs")) {
            Some(mode) => Err(self.unsupported(inst, &format!("rounding mode .{mode}"))),
            None => Ok(()),
        }
    }

    /// `cvta`: between a space and generic addresses, which are plain ones.
    pub(super) fn cvta(&mut self, inst: &Inst) -> Result<(), HostError> {
        let lanes = self.lanes_of(inst);
        let elem = elem_of(self.ty_of(inst)?);
        let value = self.get(self.op(inst, 1)?, elem, lanes);
        let Some(base) = self.space_base(inst.form.space(), lanes) else {
            self.set_operand(&inst.ops[0], &value, false);
            return Ok(());
        };
        let base = self.w.resize(&base, elem, false);
        let moved = self.w.bin(if inst.has("to") { "sub" } else { "add" }, &value, &base);
        self.set_operand(&inst.ops[0], &moved, false);
        Ok(())
    }

    /// What to add to an address in a space to make it a plain one; `None` where it is one already.
    pub(super) fn space_base(&mut self, space: Option<StateSpace>, lanes: u32) -> Option<Val> {
        let pointer = match space {
            Some(StateSpace::Shared) => self.fixed.shared.clone(),
            Some(StateSpace::Param) => self.fixed.params.clone(),
            Some(StateSpace::Local) => {
                let (base, step) = self.local_memory();
                return Some(if lanes == 1 { base } else { self.spread(&base, step.into()) });
            }
            _ => return None,
        };
        let address = self.w.value(I64, format_args!("ptrtoint {pointer} to i64"));
        Some(self.w.splat(&address, lanes))
    }

    /// `isspacep.space p, a`
    pub(super) fn isspacep(&mut self, inst: &Inst) -> Result<(), HostError> {
        let lanes = self.lanes_of(inst);
        let address = self.get(self.op(inst, 1)?, Elem::I64, lanes);
        let shared = self.space_base(Some(StateSpace::Shared), lanes).unwrap_or_else(|| constant(address.ty, 0));
        let offset = self.w.bin("sub", &address, &shared);
        let in_shared = self.within(&offset, offsets::SHARED_BYTES);
        let scratch = self.fixed.scratch.clone();
        let scratch = self.w.value(I64, format_args!("ptrtoint {scratch} to i64"));
        let scratch = self.w.splat(&scratch, lanes);
        let offset = self.w.bin("sub", &address, &scratch);
        let in_local = self.within(&offset, offsets::SCRATCH_BYTES);
        let holds = match inst.form.space() {
            Some(StateSpace::Shared) => in_shared,
            Some(StateSpace::Local) => in_local,
            Some(StateSpace::Global) => {
                let other = self.w.bin("or", &in_shared, &in_local);
                self.w.bin_const("xor", &other, 1)
            }
            _ => return Err(self.unsupported(inst, "")),
        };
        self.set_operand(&inst.ops[0], &holds, false);
        Ok(())
    }

    /// Whether an offset lies below the size in a field of the context.
    fn within(&mut self, offset: &Val, field: usize) -> Val {
        let context = self.context();
        let at = self.w.offset_const(&context, field as u64);
        let bytes = self.w.value(I32, format_args!("load i32, {at}, !invariant.load !0"));
        let bytes = self.w.resize(&bytes, Elem::I64, false);
        let bytes = self.w.splat(&bytes, offset.ty.lanes);
        self.w.compare("icmp ult", offset, &bytes)
    }
}

fn is_float(ty: ScalarType) -> bool {
    elem_of(ty).is_float() || ty == ScalarType::Bf16
}
