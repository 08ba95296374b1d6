//! Conversion of addresses between state spaces.

use super::*;
use atoll_lower::program::elem_of;
use atoll_ptx::StateSpace;

impl Emitter<'_> {
    /// `cvta`: between a state space and generic addresses, which are native addresses.
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

    /// The base to add to an address in a space to get a native address; `None` if it already is
    /// one.
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
        let in_shared = self.is_in_shared(&address);
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

    /// Whether generic addresses lie in shared memory.
    pub(super) fn is_in_shared(&mut self, address: &Val) -> Val {
        let shared =
            self.space_base(Some(StateSpace::Shared), address.ty.lanes).unwrap_or_else(|| constant(address.ty, 0));
        let offset = self.w.bin("sub", address, &shared);
        self.within(&offset, offsets::SHARED_BYTES)
    }

    /// Whether an offset is below the size in a field of the context.
    fn within(&mut self, offset: &Val, field: usize) -> Val {
        let context = self.context();
        let at = self.w.offset_const(&context, field as u64);
        let bytes = self.w.value(I32, format_args!("load i32, {at}, !invariant.load !0"));
        let bytes = self.w.resize(&bytes, Elem::I64, false);
        let bytes = self.w.splat(&bytes, offset.ty.lanes);
        self.w.compare("icmp ult", offset, &bytes)
    }
}
