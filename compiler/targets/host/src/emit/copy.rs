//! `cp.async`: copies from global to shared memory. Each copy is performed immediately, so groups
//! of copies are complete before a thread waits for them.

use super::access::Address;
use super::*;
use atoll_kgraph::host_abi::AccessKind;
use atoll_ptx::{Immediate, StateSpace};

impl Emitter<'_> {
    /// `cp.async.ca.shared.global [d], [a], size, source size`, and the group instructions.
    pub(super) fn asynchronous_copy(&mut self, inst: &Inst) -> Result<(), HostError> {
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
        let given = self.source_bytes(inst, bytes)?;
        let to = self.address_in(inst, self.op(inst, 0)?, Some(StateSpace::Shared), AccessKind::Write, bytes)?;
        let to = self.lane_pointers(&to);
        let around = self.mask.clone();
        let Some(given) = given else {
            let from = self.source_pointers(inst, bytes)?;
            self.copy_lanes(&to, &from, bytes);
            return Ok(());
        };
        // Lanes that copy no bytes must not access their source.
        let some = self.w.compare("icmp ne", &given, &constant(given.ty, 0));
        let reading = match &around {
            Some(around) => self.w.bin("and", around, &some),
            None => some,
        };
        let whole = self.w.compare("icmp eq", &given, &constant(given.ty, bytes.into()));
        let mask = self.mask_value();
        let short = self.not(&whole);
        let short = self.w.bin("and", &mask, &short);
        let (plain, ragged, done) = (self.w.label("whole"), self.w.label("ragged"), self.w.label("copied"));
        let any = self.any(&short);
        self.w.br_if(&any, &ragged, &plain);
        self.w.place(&plain);
        let from = self.source_pointers(inst, bytes)?;
        self.copy_lanes(&to, &from, bytes);
        self.w.br(&done);
        self.w.place(&ragged);
        self.mask = Some(reading);
        let from = self.source_pointers(inst, 1)?;
        self.mask = around;
        self.copy_partial(&to, &from, &given, bytes);
        self.w.place(&done);
        Ok(())
    }

    /// Number of bytes per lane that are read from the source, if an operand gives it; the
    /// remaining bytes are zero.
    fn source_bytes(&mut self, inst: &Inst, bytes: u32) -> Result<Option<Val>, HostError> {
        let Some(operand) = inst.ops.get(3) else { return Ok(None) };
        let is_predicate = match operand {
            Opnd::Reg(reg) => self.program.regs[*reg].elem == Elem::I1,
            Opnd::Not(_) => true,
            // The last of four operands may be a cache policy, which is ignored.
            _ => false,
        };
        if matches!(operand, Opnd::Reg(reg) if self.program.regs[*reg].elem == Elem::I64) {
            return Ok(None);
        }
        if is_predicate {
            let ignored = self.get(operand, Elem::I1, LANES);
            let ty = ignored.ty.with(Elem::I32);
            return Ok(Some(self.w.select(&ignored, &constant(ty, 0), &constant(ty, bytes.into()))));
        }
        let given = self.get(operand, Elem::I32, LANES);
        Ok(Some(self.w.call("llvm.umin", given.ty, &[&given, &constant(given.ty, bytes.into())])))
    }

    fn source_pointers(&mut self, inst: &Inst, bytes: u32) -> Result<Val, HostError> {
        let from = self.address_in(inst, self.op(inst, 1)?, Some(StateSpace::Global), AccessKind::Read, bytes)?;
        Ok(self.lane_pointers(&from))
    }

    /// Copies of full size; unrolled for a full warp, the usual case.
    fn copy_lanes(&mut self, to: &Val, from: &Val, bytes: u32) {
        let piece = Ty { elem: Elem::I32, lanes: bytes / 4 };
        let copy = |e: &mut Self, lane: &Val| {
            let (to, from) = (e.w.extract(to, lane), e.w.extract(from, lane));
            let value = e.w.value(piece, format_args!("load {piece}, {from}, align {bytes}"));
            e.w.effect(format_args!("store {value}, {to}, align {bytes}"));
        };
        if self.mask.is_none() {
            return (0..LANES).for_each(|lane| copy(self, &constant(I32, lane.into())));
        }
        self.for_each_lane(|e, lane| copy(e, lane));
    }

    /// Copies some of which have fewer bytes: copies lane by lane and byte by byte.
    fn copy_partial(&mut self, to: &Val, from: &Val, given: &Val, bytes: u32) {
        let index = self.w.alloca(I32);
        self.for_each_lane(|e, lane| {
            let (to, from, given) = (e.w.extract(to, lane), e.w.extract(from, lane), e.w.extract(given, lane));
            e.w.store(&constant(I32, 0), &index);
            let (head, read, write, done) =
                (e.w.label("byte"), e.w.label("given"), e.w.label("store"), e.w.label("piece_done"));
            let slot = e.w.alloca(Ty::scalar(Elem::I8));
            e.w.place(&head);
            let at = e.w.load(I32, &index);
            e.w.store(&constant(Ty::scalar(Elem::I8), 0), &slot);
            let is_given = e.w.compare("icmp ult", &at, &given);
            e.w.br_if(&is_given, &read, &write);
            e.w.place(&read);
            let source = e.w.offset(&from, &at);
            let value = e.w.load(Ty::scalar(Elem::I8), &source);
            e.w.store(&value, &slot);
            e.w.place(&write);
            let value = e.w.load(Ty::scalar(Elem::I8), &slot);
            let target = e.w.offset(&to, &at);
            e.w.store(&value, &target);
            let next = e.w.bin_const("add", &at, 1);
            e.w.store(&next, &index);
            let more = e.w.compare("icmp ult", &next, &constant(I32, bytes.into()));
            e.w.br_if(&more, &head, &done);
            e.w.place(&done);
        });
    }

    /// One pointer per lane.
    pub(super) fn lane_pointers(&mut self, address: &Address) -> Val {
        match address {
            Address::Uniform(pointer) => self.w.splat(pointer, LANES),
            Address::Strided(pointer, stride) => self.spread_pointer(pointer, *stride),
            Address::Each(pointers) => pointers.clone(),
        }
    }
}
