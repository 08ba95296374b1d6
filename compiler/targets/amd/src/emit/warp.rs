//! Instructions that exchange data between the lanes of a warp. In a wave of 64 lanes each half
//! executes them by itself.
//!
//! A wave runs in lock step, so the members of a mask do not wait for each other. `vote`, `match`
//! and `redux` work on the running lanes of the lane's member mask. `shfl` does not read its member
//! mask: PTX leaves the value of a lane outside the mask open.

use super::*;
use atoll_lower::program::is_signed;

impl Emitter<'_> {
    /// The mask of the wave's lanes for which a predicate holds: an integer with one bit per lane.
    pub(super) fn wave_ballot(&mut self, holds: &Val) -> Val {
        let ty = if self.architecture.wave_lanes() == 32 { I32 } else { I64 };
        self.w.call("llvm.amdgcn.ballot", ty, &[holds])
    }

    /// The mask of the warp's lanes for which a predicate holds.
    pub(super) fn ballot(&mut self, holds: &Val) -> Val {
        let lanes = self.wave_ballot(holds);
        if lanes.ty == I32 {
            return lanes;
        }
        let low = self.w.resize(&lanes, Elem::I32, false);
        let high = self.w.bin_const("lshr", &lanes, 32);
        let high = self.w.resize(&high, Elem::I32, false);
        let lane = self.wave_lane();
        let is_high = self.w.compare("icmp ugt", &lane, &constant(I32, 31));
        self.w.select(&is_high, &high, &low)
    }

    /// The mask of the warp's running lanes.
    fn running(&mut self) -> Val {
        self.ballot(&constant(I1, 1))
    }

    /// The member mask of `vote`, `match` or `redux`. `None` if it is the same in all running
    /// lanes, which are then its members: each lane must be a member of its own mask.
    fn member_mask(&mut self, inst: &Inst) -> Result<Option<Val>, LowerError> {
        if !inst.has("sync") {
            return Ok(None);
        }
        Ok(match self.op(inst, 2)? {
            Opnd::Imm(_) => None,
            Opnd::Reg(reg) if self.analysis.shapes[*reg].is_uniform() => None,
            mask => Some(self.operand(mask, Elem::I32)),
        })
    }

    /// The lanes of a set that are in a member mask.
    fn among(&mut self, mask: Option<&Val>, lanes: Val) -> Val {
        match mask {
            Some(mask) => self.w.bin("and", &lanes, mask),
            None => lanes,
        }
    }

    /// The running lanes of a member mask.
    fn members(&mut self, mask: Option<&Val>) -> Val {
        let running = self.running();
        self.among(mask, running)
    }

    /// The value of another lane of the warp, 0 to 31. The value is undefined if that lane does not
    /// run.
    pub(super) fn of_lane(&mut self, value: &Val, lane: &Val) -> Val {
        if value.ty.elem.bits() == 64 {
            let bits = self.w.reinterpret(value, Elem::I64, false);
            let low = self.w.resize(&bits, Elem::I32, false);
            let high = self.w.bin_const("lshr", &bits, 32);
            let high = self.w.resize(&high, Elem::I32, false);
            let (low, high) = (self.of_lane(&low, lane), self.of_lane(&high, lane));
            let (low, high) = (self.w.resize(&low, Elem::I64, false), self.w.resize(&high, Elem::I64, false));
            let high = self.w.bin_const("shl", &high, 32);
            let both = self.w.bin("or", &low, &high);
            return self.w.reinterpret(&both, value.ty.elem, false);
        }
        let bits = self.w.reinterpret(value, Elem::I32, false);
        let mut from = lane.clone();
        if self.architecture.wave_lanes() == 64 {
            let own = self.wave_lane();
            let half = self.w.bin_const("and", &own, 32);
            from = self.w.bin("or", &half, &from);
        }
        let address = self.w.bin_const("shl", &from, 2);
        let moved = self.w.call_named("llvm.amdgcn.ds.bpermute", I32, &[&address, &bits]);
        self.w.reinterpret(&moved, value.ty.elem, false)
    }

    /// `shfl.sync.mode.b32 d|p, a, b, c, mask`
    pub(super) fn shuffle(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let source = self.operand(self.op(inst, 1)?, Elem::I32);
        let by = self.operand(self.op(inst, 2)?, Elem::I32);
        let by = self.w.bin_const("and", &by, 31);
        let clamp = self.operand(self.op(inst, 3)?, Elem::I32);
        let segment = self.w.bin_const("lshr", &clamp, 8);
        let segment = self.w.bin_const("and", &segment, 31);
        let bound = self.w.bin_const("and", &clamp, 31);
        let inverse = self.w.bin_const("xor", &segment, 31);
        let lane = self.lane();
        let low = self.w.bin("and", &lane, &segment);
        let within = self.w.bin("and", &bound, &inverse);
        let high = self.w.bin("or", &low, &within);
        let (wanted, comparison) = if inst.has("idx") {
            let within = self.w.bin("and", &by, &inverse);
            (self.w.bin("or", &low, &within), "icmp sle")
        } else if inst.has("up") {
            // The bound is the lowest lane of the segment.
            (self.w.bin("sub", &lane, &by), "icmp sge")
        } else if inst.has("down") {
            (self.w.bin("add", &lane, &by), "icmp sle")
        } else if inst.has("bfly") {
            (self.w.bin("xor", &lane, &by), "icmp sle")
        } else {
            return Err(self.malformed(inst, "has no mode"));
        };
        let valid = self.w.compare(comparison, &wanted, &high);
        let from = self.w.select(&valid, &wanted, &lane);
        let value = self.of_lane(&source, &from);
        self.set_pair(self.op(inst, 0)?, &value, &valid);
        Ok(())
    }

    /// `vote.sync.mode`
    pub(super) fn vote(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let holds = self.operand(self.op(inst, 1)?, Elem::I1);
        let mask = self.member_mask(inst)?;
        let set = self.ballot(&holds);
        let set = self.among(mask.as_ref(), set);
        let zero = constant(I32, 0);
        let value = if inst.has("ballot") {
            set
        } else if inst.has("any") {
            self.w.compare("icmp ne", &set, &zero)
        } else {
            let members = self.members(mask.as_ref());
            let all = self.w.compare("icmp eq", &set, &members);
            if inst.has("uni") {
                let none = self.w.compare("icmp eq", &set, &zero);
                self.w.bin("or", &all, &none)
            } else {
                all
            }
        };
        self.set_operand(self.op(inst, 0)?, &value, false);
        Ok(())
    }

    /// `match.any.sync d, a, mask`: the mask of the lanes with the same value. `match.all.sync d|p,
    /// a, mask`: the mask of all lanes if their values are equal, otherwise 0; and whether they are
    /// equal.
    pub(super) fn match_lanes(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let elem = Elem::int(self.ty_of(inst)?.bits());
        let value = self.operand(self.op(inst, 1)?, elem);
        let mask = self.member_mask(inst)?;
        let members = self.members(mask.as_ref());
        if inst.has("all") {
            let first = self.w.call("llvm.cttz", I32, &[&members, &constant(I1, 0)]);
            let one = self.of_lane(&value, &first);
            let same = self.w.compare("icmp eq", &value, &one);
            let same = self.ballot(&same);
            let same = self.among(mask.as_ref(), same);
            let agree = self.w.compare("icmp eq", &same, &members);
            let lanes = self.w.select(&agree, &members, &constant(I32, 0));
            self.set_pair(self.op(inst, 0)?, &lanes, &agree);
            return Ok(());
        }
        let mut group = constant(I32, 0);
        for lane in 0..32 {
            let one = self.of_lane(&value, &constant(I32, lane));
            let same = self.w.compare("icmp eq", &value, &one);
            let bit = self.w.select(&same, &constant(I32, 1 << lane), &constant(I32, 0));
            group = self.w.bin("or", &group, &bit);
        }
        let group = self.w.bin("and", &group, &members);
        self.set_operand(self.op(inst, 0)?, &group, false);
        Ok(())
    }

    pub(super) fn activemask(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let running = self.running();
        self.set_operand(self.op(inst, 0)?, &running, false);
        Ok(())
    }

    /// `redux.sync.op`
    pub(super) fn redux(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let ty = self.ty_of(inst)?;
        if ty == ScalarType::F32 {
            return Err(self.unsupported(inst, ""));
        }
        let signed = is_signed(ty);
        let word = |m: &str| {
            Some(match (m, signed) {
                ("add", _) => ("add", 0),
                ("and", _) => ("and", -1),
                ("or", _) => ("or", 0),
                ("xor", _) => ("xor", 0),
                ("min", true) => ("llvm.smin", i128::from(i32::MAX)),
                ("min", false) => ("llvm.umin", -1),
                ("max", true) => ("llvm.smax", i128::from(i32::MIN)),
                ("max", false) => ("llvm.umax", 0),
                _ => return None,
            })
        };
        let Some((op, neutral)) = inst.form.modifiers.iter().find_map(|m| word(m)) else {
            return Err(self.unsupported(inst, ""));
        };
        let value = self.operand(self.op(inst, 1)?, Elem::I32);
        let mask = self.member_mask(inst)?;
        let members = self.members(mask.as_ref());
        let mut total = constant(I32, neutral);
        for lane in 0..32 {
            let one = self.of_lane(&value, &constant(I32, lane));
            let bit = self.w.bin_const("and", &members, 1 << lane);
            let runs = self.w.compare("icmp ne", &bit, &constant(I32, 0));
            let one = self.w.select(&runs, &one, &constant(I32, neutral));
            total = if op.starts_with("llvm.") {
                self.w.call(op, I32, &[&total, &one])
            } else {
                self.w.bin(op, &total, &one)
            };
        }
        self.set_operand(self.op(inst, 0)?, &total, false);
        Ok(())
    }
}
