//! `cp.async`: copies from global to shared memory. Each copy is carried out at once, so a group is
//! complete before a thread waits for it.

use super::*;
use atoll_ptx::{Immediate, StateSpace};

impl Emitter<'_> {
    /// `cp.async.ca.shared.global [d], [a], size, source size`, and the group instructions.
    pub(super) fn asynchronous_copy(&mut self, inst: &Inst) -> Result<(), LowerError> {
        if ["commit_group", "wait_group", "wait_all"].iter().any(|m| inst.has(m)) {
            return Ok(());
        }
        if !inst.has("async") || !(inst.has("ca") || inst.has("cg")) {
            return Err(self.unsupported(inst, ""));
        }
        let Opnd::Imm(Immediate::Int(bytes @ (4 | 8 | 16))) = *self.op(inst, 2)? else {
            return Err(self.malformed(inst, "copies 4, 8 or 16 bytes"));
        };
        let bytes = bytes as u32;
        let to = self.pointer_in(inst, self.op(inst, 0)?, Some(StateSpace::Shared))?;
        let from = self.pointer_in(inst, self.op(inst, 1)?, Some(StateSpace::Global))?;
        match self.source_bytes(inst, bytes) {
            None => self.copy_whole(&to, &from, bytes),
            Some(given) => self.copy_given(&to, &from, &given, bytes),
        }
        Ok(())
    }

    /// The number of bytes that are read from the source, if an operand has it. The remaining bytes
    /// become zero.
    fn source_bytes(&mut self, inst: &Inst, bytes: u32) -> Option<Val> {
        let operand = inst.ops.get(3)?;
        let whole = constant(I32, bytes.into());
        match operand {
            // A cache policy, which is ignored.
            Opnd::Reg(reg) if self.program.regs[*reg].elem == Elem::I64 => None,
            Opnd::Reg(reg) if self.program.regs[*reg].elem == Elem::I1 => {
                let ignored = self.operand(operand, Elem::I1);
                Some(self.w.select(&ignored, &constant(I32, 0), &whole))
            }
            Opnd::Not(_) => {
                let ignored = self.operand(operand, Elem::I1);
                Some(self.w.select(&ignored, &constant(I32, 0), &whole))
            }
            _ => {
                let given = self.operand(operand, Elem::I32);
                Some(self.w.call("llvm.umin", I32, &[&given, &whole]))
            }
        }
    }

    fn copy_whole(&mut self, to: &Val, from: &Val, bytes: u32) {
        let ty = Ty { elem: Elem::I32, lanes: bytes / 4 };
        let value = self.w.value(ty, format_args!("load {ty}, {from}, align {bytes}"));
        self.w.effect(format_args!("store {value}, {to}, align {bytes}"));
    }

    /// A copy whose last bytes may be absent. Absent bytes are not read.
    fn copy_given(&mut self, to: &Val, from: &Val, given: &Val, bytes: u32) {
        let (all, some, done) = (self.w.label("whole"), self.w.label("ragged"), self.w.label("copied"));
        let is_whole = self.w.compare("icmp eq", given, &constant(I32, bytes.into()));
        self.w.br_if(&is_whole, &all, &some);
        self.w.place(&all);
        self.copy_whole(to, from, bytes);
        self.w.br(&done);
        self.w.place(&some);
        let zeros = constant(Ty { elem: Elem::I32, lanes: bytes / 4 }, 0);
        self.w.effect(format_args!("store {zeros}, {to}, align {bytes}"));
        for index in 0..bytes - 1 {
            let (read, next) = (self.w.label("given"), self.w.label("next"));
            let is_given = self.w.compare("icmp ugt", given, &constant(I32, index.into()));
            // The first `given` bytes are copied.
            self.w.br_if(&is_given, &read, if index == 0 { &done } else { &next });
            self.w.place(&read);
            let (source, target) = (self.w.offset_const(from, index.into()), self.w.offset_const(to, index.into()));
            let byte = self.w.load(Ty::scalar(Elem::I8), &source);
            self.w.store(&byte, &target);
            if index == 0 {
                continue;
            }
            self.w.place(&next);
        }
        self.w.place(&done);
    }
}
