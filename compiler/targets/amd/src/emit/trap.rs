//! Traps. The first trap of a launch writes a record; every trap ends its wave.

use super::*;
use crate::abi::TrapCode;

impl Emitter<'_> {
    /// Records the trap if the launch has a record, and ends the wave.
    pub(super) fn trap(&mut self, code: TrapCode) -> Result<(), LowerError> {
        let address = self.hidden(I64, abi::TRAP_RECORD);
        let record = self.w.cast("inttoptr", &address, pointer(GLOBAL));
        let (ask, write, end) = (self.w.label("ask"), self.w.label("record"), self.w.label("end"));
        let has_record = self.w.compare("icmp ne", &address, &constant(I64, 0));
        self.w.br_if(&has_record, &ask, &end);
        self.w.place(&ask);
        let writing = constant(I32, abi::TRAP_WRITING.into());
        let both = self.w.value(I32, format_args!("cmpxchg {record}, i32 0, {writing} monotonic monotonic, align 4"));
        let is_first = self.w.value(I1, format_args!("extractvalue {{ i32, i1 }} {}, 1", both.text));
        self.w.br_if(&is_first, &write, &end);
        self.w.place(&write);
        self.write_record(&record, code);
        self.w.br(&end);
        self.w.place(&end);
        self.w.effect(format_args!("call void @llvm.amdgcn.endpgm()"));
        self.w.terminate(format_args!("unreachable"));
        // The rest of the block is unreachable, but must be well-formed.
        let after = self.w.label("after_trap");
        self.w.place(&after);
        Ok(())
    }

    fn write_record(&mut self, record: &Val, code: TrapCode) {
        let mut fields = vec![
            (abi::TRAP_CODE, constant(I32, i128::from(code as u32))),
            (abi::TRAP_LINE, constant(I32, self.line.into())),
            (abi::TRAP_THREAD, self.linear_thread()),
        ];
        for (axis, name) in (0..).zip(["x", "y", "z"]) {
            let index = self.w.value(I32, format_args!("call i32 @llvm.amdgcn.workgroup.id.{name}()"));
            fields.push((abi::TRAP_BLOCK + 4 * axis, index));
        }
        for (offset, value) in fields {
            let at = self.w.offset_const(record, offset.into());
            self.w.effect(format_args!("store {value}, {at}, align 4"));
        }
        let complete = constant(I32, abi::TRAP_COMPLETE.into());
        self.w.effect(format_args!("store atomic {complete}, {record} release, align 4"));
    }

    /// Checks that an address lies in one of several ranges ([`atoll_lower::bounds`]).
    pub(super) fn bound(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let address = self.operand(self.op(inst, 0)?, Elem::I64);
        let mut outside = constant(I1, 1);
        for range in inst.ops[1..].chunks(2) {
            let [start, limit] = range else { return Err(self.malformed(inst, "has too few operands")) };
            let (start, limit) = (self.operand(start, Elem::I64), self.operand(limit, Elem::I64));
            let distance = self.w.bin("sub", &address, &start);
            let beyond = self.w.compare("icmp ugt", &distance, &limit);
            outside = self.w.bin("and", &outside, &beyond);
        }
        let (stop, go_on) = (self.w.label("outside"), self.w.label("inside"));
        self.w.br_if(&outside, &stop, &go_on);
        self.w.place(&stop);
        self.trap(TrapCode::OutOfBounds)?;
        self.w.place(&go_on);
        Ok(())
    }
}
