//! Addresses: from PTX's state spaces to pointers in LLVM's address spaces.

use super::*;
use atoll_lower::program::Symbol;
use atoll_ptx::StateSpace;

impl Emitter<'_> {
    /// The pointer of an access.
    pub(super) fn pointer(&mut self, inst: &Inst, operand: &Opnd) -> Result<Val, LowerError> {
        self.pointer_in(inst, operand, inst.form.space())
    }

    /// Like [`Emitter::pointer`], with an explicit state space; `None` is a generic address.
    pub(super) fn pointer_in(
        &mut self,
        inst: &Inst,
        operand: &Opnd,
        space: Option<StateSpace>,
    ) -> Result<Val, LowerError> {
        let Opnd::Addr(base, offset) = operand else {
            return Err(self.malformed(inst, "needs an address in brackets"));
        };
        let space = match **base {
            Opnd::Symbol(Symbol::Param(_)) => Some(StateSpace::Param),
            _ => space,
        };
        let start = match space {
            Some(StateSpace::Shared) => {
                let at = self.operand(base, Elem::I32);
                self.w.cast("inttoptr", &at, pointer(SHARED))
            }
            Some(StateSpace::Local) => self.local_pointer(base),
            Some(StateSpace::Param) => {
                let at = self.operand(base, Elem::I64);
                let kernarg = self.kernarg(0);
                self.w.offset(&kernarg, &at)
            }
            Some(StateSpace::Const) => self.absolute(base, CONSTANT),
            Some(StateSpace::Global) => self.absolute(base, GLOBAL),
            None => self.absolute(base, 0),
            Some(other) => return Err(self.unsupported(inst, &format!("memory of space {other:?}"))),
        };
        Ok(if *offset == 0 { start } else { self.w.offset(&start, &constant(I64, (*offset).into())) })
    }

    /// A pointer from an address that is the same in PTX and on the processor.
    pub(super) fn absolute(&mut self, base: &Opnd, space: u8) -> Val {
        let at = self.operand(base, Elem::I64);
        self.w.cast("inttoptr", &at, pointer(space))
    }

    /// A pointer from an offset in the thread's local memory. Without local memory, every access
    /// would be out of bounds.
    fn local_pointer(&mut self, base: &Opnd) -> Val {
        let at = self.operand(base, Elem::I32);
        match self.local.clone() {
            Some(local) => self.w.offset(&local, &at),
            None => self.w.cast("inttoptr", &at, pointer(PRIVATE)),
        }
    }

    /// `cvta`: converts between addresses of a state space and generic addresses.
    pub(super) fn cvta(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let source = self.op(inst, 1)?.clone();
        let is_to = inst.has("to");
        let value = match inst.form.space() {
            Some(StateSpace::Shared) if is_to => self.address_within(&source, SHARED),
            Some(StateSpace::Shared) => {
                let at = self.operand(&source, Elem::I32);
                let within = self.w.cast("inttoptr", &at, pointer(SHARED));
                self.generic_address(&within)
            }
            Some(StateSpace::Local) if is_to => {
                let address = self.address_within(&source, PRIVATE);
                match self.local.clone() {
                    Some(local) => {
                        let start = self.w.cast("ptrtoint", &local, Elem::I32);
                        self.w.bin("sub", &address, &start)
                    }
                    None => address,
                }
            }
            Some(StateSpace::Local) => {
                let within = self.local_pointer(&source);
                self.generic_address(&within)
            }
            Some(StateSpace::Param) => {
                let address = self.operand(&source, Elem::I64);
                let kernarg = self.kernarg(0);
                let start = self.w.cast("ptrtoint", &kernarg, Elem::I64);
                self.w.bin(if is_to { "sub" } else { "add" }, &address, &start)
            }
            Some(StateSpace::Global | StateSpace::Const) => self.operand(&source, Elem::I64),
            _ => return Err(self.unsupported(inst, "")),
        };
        self.set_operand(self.op(inst, 0)?, &value, false);
        Ok(())
    }

    fn generic_address(&mut self, within: &Val) -> Val {
        let flat = self.w.cast("addrspacecast", within, Elem::Ptr);
        self.w.cast("ptrtoint", &flat, Elem::I64)
    }

    pub(super) fn address_within(&mut self, source: &Opnd, space: u8) -> Val {
        let flat = self.absolute(source, 0);
        let within = self.w.cast("addrspacecast", &flat, pointer(space));
        self.w.cast("ptrtoint", &within, Elem::I32)
    }

    /// `isspacep.space p, a`
    pub(super) fn isspacep(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let address = self.op(inst, 1)?.clone();
        let flat = self.absolute(&address, 0);
        let holds = match inst.form.space() {
            Some(StateSpace::Shared) => self.is_shared(&flat),
            Some(StateSpace::Local) => self.w.call_named("llvm.amdgcn.is.private", I1, &[&flat]),
            Some(StateSpace::Global) => {
                let shared = self.is_shared(&flat);
                let private = self.w.call_named("llvm.amdgcn.is.private", I1, &[&flat]);
                let other = self.w.bin("or", &shared, &private);
                self.w.bin_const("xor", &other, 1)
            }
            _ => return Err(self.unsupported(inst, "")),
        };
        self.set_operand(self.op(inst, 0)?, &holds, false);
        Ok(())
    }

    /// Whether a generic pointer points to shared memory.
    pub(super) fn is_shared(&mut self, flat: &Val) -> Val {
        self.w.call_named("llvm.amdgcn.is.shared", I1, &[flat])
    }
}
