//! Lowers one instruction: handles its guard and dispatches to the family of the opcode.

use super::*;
use atoll_lower::bounds::BOUND;
use atoll_lower::program::elem_of;
use atoll_ptx::ScalarType;

/// How an instruction may be executed for lanes that fail its guard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Computes a value: may run for inactive lanes.
    Pure,
    /// Accesses memory or reports: must not run for inactive lanes.
    Effect,
}

impl Emitter<'_> {
    /// Lowers an instruction under the current mask.
    pub(super) fn instruction(&mut self, inst: &Inst) -> Result<(), HostError> {
        self.line = inst.line;
        self.w.lines.locate(inst.line, self.loads.consumed_by(inst));
        let Some((pred, negated)) = inst.guard else { return self.unguarded(inst) };
        if self.analysis.shapes[pred].is_uniform() {
            self.under_uniform_guard(inst, pred, negated)
        } else {
            self.under_lane_guard(inst, pred, negated)
        }
    }

    fn under_uniform_guard(&mut self, inst: &Inst, pred: usize, negated: bool) -> Result<(), HostError> {
        let mut guard = self.read(pred, 1);
        if negated {
            guard = self.w.bin_const("xor", &guard, 1);
        }
        if effect(inst) == Effect::Pure {
            self.scalar_guard = inst.tied.then_some(guard);
            let result = self.unguarded(inst);
            self.scalar_guard = None;
            return result;
        }
        let (run, skip) = (self.w.label("guarded"), self.w.label("skip"));
        self.w.br_if(&guard, &run, &skip);
        self.w.place(&run);
        self.unguarded(inst)?;
        self.w.place(&skip);
        Ok(())
    }

    fn under_lane_guard(&mut self, inst: &Inst, pred: usize, negated: bool) -> Result<(), HostError> {
        let around = self.mask.clone();
        let mut mask = self.read(pred, LANES);
        if negated {
            mask = self.not(&mask);
        }
        if let Some(around) = &around {
            mask = self.w.bin("and", around, &mask);
        }
        let skip = self.needs_a_lane(inst).then(|| self.w.label("skip"));
        if let Some(skip) = &skip {
            let run = self.w.label("guarded");
            let any = self.any(&mask);
            self.w.br_if(&any, &run, skip);
            self.w.place(&run);
        }
        (self.mask, self.keep_old) = (Some(mask), inst.tied);
        let result = self.unguarded(inst);
        (self.mask, self.keep_old) = (around, false);
        if let Some(skip) = skip {
            self.w.place(&skip);
        }
        result
    }

    /// Whether the lowering requires an active lane: scalar accesses, lane loops, traps.
    fn needs_a_lane(&self, inst: &Inst) -> bool {
        match inst.form.opcode.as_str() {
            "ld" | "ldu" | "st" => inst.ops.iter().any(|o| matches!(o, Opnd::Addr(..)) && self.is_uniform(o)),
            _ => effect(inst) == Effect::Effect,
        }
    }

    /// Lowers an instruction for the lanes of the current mask.
    fn unguarded(&mut self, inst: &Inst) -> Result<(), HostError> {
        if inst.form.opcode == BOUND {
            return self.bound(inst);
        }
        if !atoll_lower::forms::is_known(&inst.form.opcode) {
            return Err(self.unsupported(inst, ""));
        }
        if let Some(word) = atoll_lower::forms::unknown_modifier(inst) {
            return Err(self.unsupported(inst, &format!("modifier .{word}")));
        }
        let ty = inst.form.ty();
        let is_float = ty.is_some_and(|t| {
            elem_of(t).is_float() || matches!(t, ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2)
        });
        match inst.form.opcode.as_str() {
            "mov" => self.mov(inst),
            "cvt" => Ok(Arithmetic(self).cvt(inst)?),
            "cvta" => self.cvta(inst),
            "isspacep" => self.isspacep(inst),
            "ld" | "ldu" => self.load(inst),
            "st" => self.store(inst),
            "atom" | "red" => self.atomic(inst),
            "createpolicy" => {
                // A hint for caches that the host does not have; any number is valid.
                self.set_operand(self.op(inst, 0)?, &constant(I64, 0), false);
                Ok(())
            }
            "cp" => self.asynchronous_copy(inst),
            "mma" => self.matrix_product(inst),
            "wmma" => match inst.form.modifiers.first().map(|m| m.as_str()) {
                Some("load") => self.load_fragment(inst),
                Some("store") => self.store_fragment(inst),
                _ => self.matrix_product(inst),
            },
            "ldmatrix" => self.load_matrices(inst),
            "stmatrix" => self.store_matrices(inst),
            "movmatrix" => self.transpose_matrix(inst),
            "shfl" => self.shuffle(inst),
            "vote" => self.by_member_mask(inst, Self::vote),
            "match" => self.by_member_mask(inst, Self::match_lanes),
            "activemask" => self.activemask(inst),
            "redux" => self.by_member_mask(inst, Self::redux),
            "bar" | "barrier" => self.warp_barrier(inst),
            "membar" | "fence" => self.fence(inst),
            "trap" => self.trap_instruction(),
            "vprintf" => self.vprintf(inst),
            "__assertfail" => self.assert_fail(inst),
            "prefetch" => self.prefetch(inst),
            // Hints, and waits that a warp in lock step does not need.
            "prefetchu" | "nanosleep" | "applypriority" | "discard" | "pmevent" | "griddepcontrol" | "brkpt" => Ok(()),
            "setp" | "set" => Ok(Arithmetic(self).compare(inst)?),
            "selp" => Ok(Arithmetic(self).selp(inst)?),
            "slct" => Ok(Arithmetic(self).slct(inst)?),
            opcode if atoll_lower::forms::is_video(opcode) => Ok(Arithmetic(self).video(inst)?),
            _ if is_float => Ok(Arithmetic(self).float(inst)?),
            _ => Ok(Arithmetic(self).integer(inst)?),
        }
    }

    /// The instruction's type.
    pub(super) fn ty_of(&self, inst: &Inst) -> Result<ScalarType, HostError> {
        inst.form.ty().ok_or_else(|| self.malformed(inst, "has no type"))
    }

    /// An operand of the instruction.
    pub(super) fn op<'i>(&self, inst: &'i Inst, index: usize) -> Result<&'i Opnd, HostError> {
        inst.ops.get(index).ok_or_else(|| self.malformed(inst, "has too few operands"))
    }

    fn mov(&mut self, inst: &Inst) -> Result<(), HostError> {
        let ty = self.ty_of(inst)?;
        let (to, from) = (self.op(inst, 0)?, self.op(inst, 1)?);
        match (to, from) {
            (Opnd::Vec(parts), Opnd::Vec(values)) => {
                if parts.len() != values.len() || !(inst.has("v2") || inst.has("v4")) {
                    return Err(self.malformed(inst, "moves vectors of different lengths, or lacks .v2 or .v4"));
                }
                for (part, value) in parts.iter().zip(values) {
                    let lanes = self.lanes_of(inst);
                    let value = self.get(value, elem_of(ty), lanes);
                    self.set_operand(part, &value, false);
                }
            }
            (Opnd::Vec(parts), _) | (_, Opnd::Vec(parts)) if !self.add_up(parts, ty.bits()) => {
                return Err(self.malformed(inst, "moves a vector that is not as wide as its type"));
            }
            (Opnd::Vec(parts), whole) => self.unpack(inst, parts, whole, ty),
            (whole, Opnd::Vec(parts)) => self.pack(inst, whole, parts, ty),
            (to, from) => {
                let lanes = self.lanes_of(inst);
                let elem = match to {
                    Opnd::Reg(reg) => self.program.regs[*reg].elem,
                    _ => elem_of(ty),
                };
                let value = self.get(from, elem, lanes);
                self.set_operand(to, &value, false);
            }
        }
        Ok(())
    }

    /// Whether the parts of a vector have equal width and add up to `bits`.
    fn add_up(&self, parts: &[Opnd], bits: u32) -> bool {
        let width = bits / parts.len().max(1) as u32;
        parts.iter().all(|part| match part {
            Opnd::Reg(reg) => self.program.regs[*reg].elem.bits() == width,
            Opnd::Special(_) => width == Elem::I32.bits(),
            _ => true,
        })
    }

    /// `mov.b64 {lo, hi}, x`
    fn unpack(&mut self, inst: &Inst, parts: &[Opnd], whole: &Opnd, ty: ScalarType) {
        let lanes = self.lanes_of(inst);
        let whole = self.get(whole, Elem::int(ty.bits()), lanes);
        let bits = ty.bits() / parts.len().max(1) as u32;
        for (index, part) in parts.iter().enumerate() {
            let moved = self.w.bin_const("lshr", &whole, i128::from(bits) * index as i128);
            let value = self.w.resize(&moved, Elem::int(bits), false);
            self.set_operand(part, &value, false);
        }
    }

    /// `mov.b64 x, {lo, hi}`
    fn pack(&mut self, inst: &Inst, whole: &Opnd, parts: &[Opnd], ty: ScalarType) {
        let lanes = self.lanes_of(inst);
        let elem = Elem::int(ty.bits());
        let bits = ty.bits() / parts.len().max(1) as u32;
        let mut sum = constant(Ty { elem, lanes }, 0);
        for (index, part) in parts.iter().enumerate() {
            let value = self.get(part, Elem::int(bits), lanes);
            let wide = self.w.resize(&value, elem, false);
            let moved = self.w.bin_const("shl", &wide, i128::from(bits) * index as i128);
            sum = self.w.bin("or", &sum, &moved);
        }
        self.set_operand(whole, &sum, false);
    }
}

fn effect(inst: &Inst) -> Effect {
    let opcode = inst.form.opcode.as_str();
    let has_effect = matches!(
        opcode,
        BOUND
            | "ld"
            | "ldu"
            | "st"
            | "cp"
            | "ldmatrix"
            | "stmatrix"
            | "wmma"
            | "atom"
            | "red"
            | "membar"
            | "fence"
            | "trap"
            | "vprintf"
            | "__assertfail"
            | "shfl"
            | "vote"
            | "match"
            | "redux"
            | "activemask"
            | "bar"
            | "barrier"
    ) || matches!(opcode, "div" | "rem") && inst.form.ty().is_some_and(|t| !elem_of(t).is_float());
    if has_effect { Effect::Effect } else { Effect::Pure }
}
