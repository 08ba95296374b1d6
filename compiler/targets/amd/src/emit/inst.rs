//! Lowers one instruction: emits its guard and calls the code for its opcode.

use super::*;
use atoll_emit::Arithmetic;
use atoll_lower::bounds::BOUND;
use atoll_lower::forms;
use atoll_lower::program::elem_of;

impl Emitter<'_> {
    /// Lowers an instruction.
    pub(super) fn instruction(&mut self, inst: &Inst) -> Result<(), LowerError> {
        self.line = inst.line;
        let Some((pred, negated)) = inst.guard else { return self.unguarded(inst) };
        let holds = self.read(pred);
        let holds = if negated { self.w.bin_const("xor", &holds, 1) } else { holds };
        if !has_effect(inst) {
            self.kept_unless = inst.tied.then_some(holds);
            let result = self.unguarded(inst);
            self.kept_unless = None;
            return result;
        }
        let (run, skip) = (self.w.label("guarded"), self.w.label("skip"));
        self.w.br_if(&holds, &run, &skip);
        self.w.place(&run);
        self.unguarded(inst)?;
        self.w.place(&skip);
        Ok(())
    }

    fn unguarded(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let opcode = inst.form.opcode.as_str();
        if opcode == BOUND {
            return self.bound(inst);
        }
        if !forms::is_known(opcode) {
            return Err(self.unsupported(inst, ""));
        }
        if let Some(word) = forms::unknown_modifier(inst) {
            return Err(self.unsupported(inst, &format!("modifier .{word}")));
        }
        self.refuse_timer(inst)?;
        match opcode {
            "mov" => self.mov(inst),
            "cvta" => self.cvta(inst),
            "isspacep" => self.isspacep(inst),
            "ld" | "ldu" => self.load(inst),
            "st" => self.store(inst),
            "atom" | "red" => self.atomic(inst),
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
            "vote" => self.vote(inst),
            "match" => self.match_lanes(inst),
            "activemask" => self.activemask(inst),
            "redux" => self.redux(inst),
            "bar" | "barrier" => self.warp_barrier(inst),
            "membar" | "fence" => self.fence(inst),
            "trap" => self.trap(abi::TrapCode::Trap),
            "__assertfail" => self.trap(abi::TrapCode::Assert),
            "vprintf" => self.vprintf(inst),
            "createpolicy" => {
                // A hint for caches, for which any number is valid.
                self.set_operand(self.op(inst, 0)?, &constant(I64, 0), false);
                Ok(())
            }
            "prefetch" | "prefetchu" | "nanosleep" | "applypriority" | "discard" | "pmevent" | "griddepcontrol"
            | "brkpt" => Ok(()),
            _ => self.arithmetic(inst),
        }
    }

    /// Instructions that compute values from values.
    fn arithmetic(&mut self, inst: &Inst) -> Result<(), LowerError> {
        self.refuse_directed_quotient(inst)?;
        let ty = inst.form.ty();
        let is_float = ty.is_some_and(|t| {
            elem_of(t).is_float() || matches!(t, ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2)
        });
        let mut arithmetic = Arithmetic(self);
        match inst.form.opcode.as_str() {
            "cvt" => arithmetic.cvt(inst),
            "setp" | "set" => arithmetic.compare(inst),
            "selp" => arithmetic.selp(inst),
            "slct" => arithmetic.slct(inst),
            opcode if forms::is_video(opcode) => arithmetic.video(inst),
            _ if is_float => arithmetic.float(inst),
            _ => arithmetic.integer(inst),
        }
    }

    /// The operand of the instruction with this index.
    pub(super) fn op<'i>(&self, inst: &'i Inst, index: usize) -> Result<&'i Opnd, LowerError> {
        inst.ops.get(index).ok_or_else(|| self.malformed(inst, "has too few operands"))
    }

    /// The instruction's type.
    pub(super) fn ty_of(&self, inst: &Inst) -> Result<ScalarType, LowerError> {
        inst.form.ty().ok_or_else(|| self.malformed(inst, "has no type"))
    }

    fn mov(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let ty = self.ty_of(inst)?;
        match (self.op(inst, 0)?, self.op(inst, 1)?) {
            (Opnd::Vec(parts), Opnd::Vec(values)) => {
                if parts.len() != values.len() || !(inst.has("v2") || inst.has("v4")) {
                    return Err(self.malformed(inst, "moves vectors of different lengths, or lacks .v2 or .v4"));
                }
                for (part, value) in parts.iter().zip(values) {
                    let value = self.operand(value, elem_of(ty));
                    self.set_operand(part, &value, false);
                }
            }
            (Opnd::Vec(parts), _) | (_, Opnd::Vec(parts)) if !self.add_up(parts, ty.bits()) => {
                return Err(self.malformed(inst, "moves a vector that is not as wide as its type"));
            }
            (Opnd::Vec(parts), whole) => self.unpack(parts, whole, ty),
            (whole, Opnd::Vec(parts)) => self.pack(whole, parts, ty),
            (to, from) => {
                let elem = match to {
                    Opnd::Reg(reg) => self.program.regs[*reg].elem,
                    _ => elem_of(ty),
                };
                let value = self.operand(from, elem);
                self.set_operand(to, &value, false);
            }
        }
        Ok(())
    }

    /// Whether the parts of a vector have equal widths that sum up to `bits`.
    fn add_up(&self, parts: &[Opnd], bits: u32) -> bool {
        let width = bits / parts.len().max(1) as u32;
        parts.iter().all(|part| match part {
            Opnd::Reg(reg) => self.program.regs[*reg].elem.bits() == width,
            Opnd::Special(_) => width == Elem::I32.bits(),
            _ => true,
        })
    }

    /// `mov.b64 {lo, hi}, x`
    fn unpack(&mut self, parts: &[Opnd], whole: &Opnd, ty: ScalarType) {
        let whole = self.operand(whole, Elem::int(ty.bits()));
        let bits = ty.bits() / parts.len().max(1) as u32;
        for (index, part) in parts.iter().enumerate() {
            let moved = self.w.bin_const("lshr", &whole, i128::from(bits) * index as i128);
            let value = self.w.resize(&moved, Elem::int(bits), false);
            self.set_operand(part, &value, false);
        }
    }

    /// `mov.b64 x, {lo, hi}`
    fn pack(&mut self, whole: &Opnd, parts: &[Opnd], ty: ScalarType) {
        let elem = Elem::int(ty.bits());
        let bits = ty.bits() / parts.len().max(1) as u32;
        let mut sum = constant(Ty::scalar(elem), 0);
        for (index, part) in parts.iter().enumerate() {
            let value = self.operand(part, Elem::int(bits));
            let wide = self.w.resize(&value, elem, false);
            let moved = self.w.bin_const("shl", &wide, i128::from(bits) * index as i128);
            sum = self.w.bin("or", &sum, &moved);
        }
        self.set_operand(whole, &sum, false);
    }
}

/// Whether an instruction must not execute if its guard does not hold.
fn has_effect(inst: &Inst) -> bool {
    let opcode = inst.form.opcode.as_str();
    matches!(
        opcode,
        BOUND
            | "ld"
            | "ldu"
            | "st"
            | "cp"
            | "ldmatrix"
            | "stmatrix"
            | "mma"
            | "wmma"
            | "movmatrix"
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
    )
}
