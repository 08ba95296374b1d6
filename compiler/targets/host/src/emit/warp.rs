//! Instructions that exchange data between the lanes of a warp.
//!
//! A warp runs in lock step, so the members of a mask do not wait for each other. `vote`, `match`
//! and `redux` work on the lanes of the current mask that have the same member mask. `shfl` does
//! not read its member mask: PTX leaves the value of a lane outside the mask open.

use super::*;
use atoll_emit::writer::intrinsics;
use atoll_lower::program::{ReduceOp, elem_of, is_signed};
use atoll_ptx::{Immediate, ScalarType};

/// Number of the stack array that a shuffle reads through.
const SHUFFLE_ARRAY: u8 = 6;

/// How `shfl` selects the source lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShuffleMode {
    Index,
    Up,
    Down,
    Butterfly,
}

impl Emitter<'_> {
    /// `shfl.sync.mode.b32 d|p, a, b, c, mask`
    pub(super) fn shuffle(&mut self, inst: &Inst) -> Result<(), HostError> {
        let mode = inst.form.modifiers.iter().find_map(|m| match m.as_str() {
            "idx" => Some(ShuffleMode::Index),
            "up" => Some(ShuffleMode::Up),
            "down" => Some(ShuffleMode::Down),
            "bfly" => Some(ShuffleMode::Butterfly),
            _ => None,
        });
        let mode = mode.ok_or_else(|| self.malformed(inst, "has no mode"))?;
        let (by, clamp) = (self.op(inst, 2)?.clone(), self.op(inst, 3)?.clone());
        let (to, pred) = match self.op(inst, 0)? {
            Opnd::Pair(to, pred) => ((**to).clone(), (**pred).clone()),
            single => (single.clone(), Opnd::Sink),
        };
        let (value, valid) = match (&by, &clamp) {
            (Opnd::Imm(Immediate::Int(by)), Opnd::Imm(Immediate::Int(clamp))) => {
                self.shuffle_fixed(inst, mode, *by as u32, *clamp as u32)?
            }
            _ => self.shuffle_computed(inst, mode, &by, &clamp)?,
        };
        for (operand, value) in [(to, value), (pred, valid)] {
            let scalar = matches!(operand, Opnd::Reg(r) if self.analysis.shapes[r].is_scalar());
            let value = if scalar && value.ty.lanes != 1 { self.w.extract(&value, &constant(I32, 0)) } else { value };
            self.set_operand(&operand, &value, false);
        }
        Ok(())
    }

    /// Distance and clamp are known: a shuffle by a constant pattern.
    fn shuffle_fixed(&mut self, inst: &Inst, mode: ShuffleMode, by: u32, clamp: u32) -> Result<(Val, Val), HostError> {
        let source = self.get(self.op(inst, 1)?, Elem::I32, LANES);
        let lanes: Vec<(u32, bool)> = (0..LANES).map(|lane| source_lane(mode, lane, by, clamp)).collect();
        let pattern: Vec<u32> = lanes.iter().map(|l| l.0).collect();
        let value = self.w.shuffle(&source, &pattern);
        let bits: u32 = lanes.iter().enumerate().map(|(lane, l)| u32::from(l.1) << lane).sum();
        let valid = self.w.value(MASK, format_args!("bitcast i32 {} to {MASK}", bits as i32));
        Ok((value, valid))
    }

    /// The general case: source lanes are computed and read through memory.
    fn shuffle_computed(
        &mut self,
        inst: &Inst,
        mode: ShuffleMode,
        by: &Opnd,
        clamp: &Opnd,
    ) -> Result<(Val, Val), HostError> {
        let source = self.get(self.op(inst, 1)?, Elem::I32, LANES);
        let by = self.get(by, Elem::I32, LANES);
        let by = self.w.bin_const("and", &by, 31);
        let clamp = self.get(clamp, Elem::I32, LANES);
        let segment = self.w.bin_const("lshr", &clamp, 8);
        let segment = self.w.bin_const("and", &segment, 31);
        let bound = self.w.bin_const("and", &clamp, 31);
        let inverse = self.w.bin_const("xor", &segment, 31);
        let lane = self.iota(Elem::I32);
        let low = self.w.bin("and", &lane, &segment);
        let within = self.w.bin("and", &bound, &inverse);
        let high = self.w.bin("or", &low, &within);
        let (wanted, valid) = match mode {
            ShuffleMode::Index => {
                let within = self.w.bin("and", &by, &inverse);
                let wanted = self.w.bin("or", &low, &within);
                let valid = self.w.compare("icmp sle", &wanted, &high);
                (wanted, valid)
            }
            ShuffleMode::Up => {
                let wanted = self.w.bin("sub", &lane, &by);
                let valid = self.w.compare("icmp sge", &wanted, &high);
                (wanted, valid)
            }
            ShuffleMode::Down => {
                let wanted = self.w.bin("add", &lane, &by);
                let valid = self.w.compare("icmp sle", &wanted, &high);
                (wanted, valid)
            }
            ShuffleMode::Butterfly => {
                let wanted = self.w.bin("xor", &lane, &by);
                let valid = self.w.compare("icmp sle", &wanted, &high);
                (wanted, valid)
            }
        };
        let from = self.w.select(&valid, &wanted, &lane);
        let array = self.lane_array(Elem::I32, SHUFFLE_ARRAY);
        self.w.store(&source, &array);
        let pointers =
            self.w.value(Ty { elem: Elem::Ptr, lanes: LANES }, format_args!("getelementptr i32, {array}, {from}"));
        let value = intrinsics::gather(&mut self.w, Elem::I32, &pointers, 4, &constant(MASK, 1));
        Ok((value, valid))
    }

    /// Emits `vote`, `match` or `redux` for each group of lanes that have the same member mask.
    ///
    /// Lanes with different masks may run the instruction together, such as the tiles of a warp in
    /// cooperative groups; the groups then take turns in a loop. If the mask is the same in all
    /// lanes, they are one group: each lane must be a member of its own mask.
    pub(super) fn by_member_mask(
        &mut self,
        inst: &Inst,
        emit: impl Fn(&mut Self, &Inst) -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        if !inst.has("sync") || self.is_uniform(self.op(inst, 2)?) {
            return emit(self, inst);
        }
        // Read before the loop, since the destination may be the same register.
        let masks = self.get(self.op(inst, 2)?, Elem::I32, LANES);
        let (around, kept) = (self.mask.clone(), self.keep_old);
        let running = self.mask_value();
        let running = self.mask_bits(&running);
        let left = self.w.register(I32);
        self.w.store(&running, &left);
        let (head, group, done) = (self.w.label("groups"), self.w.label("group"), self.w.label("groups_done"));
        self.w.place(&head);
        let waiting = self.w.load(I32, &left);
        let some_wait = self.w.compare("icmp ne", &waiting, &constant(I32, 0));
        self.w.br_if(&some_wait, &group, &done);
        self.w.place(&group);
        let members = self.members_of_first(&masks, &waiting, &running);
        let others = self.w.bin_const("xor", &members, -1);
        let others = self.w.bin("and", &waiting, &others);
        self.w.store(&others, &left);
        let members = self.w.value(MASK, format_args!("bitcast {members} to {MASK}"));
        (self.mask, self.keep_old) = (Some(members), true);
        let result = emit(self, inst);
        (self.mask, self.keep_old) = (around, kept);
        self.w.br(&head);
        self.w.place(&done);
        result
    }

    /// The running members of the lowest waiting lane's mask, and the lane itself even if its mask
    /// lacks it.
    fn members_of_first(&mut self, masks: &Val, waiting: &Val, running: &Val) -> Val {
        let first = self.w.call("llvm.cttz", I32, &[waiting, &constant(I1, 1)]);
        let mask = self.w.extract(masks, &first);
        let members = self.w.bin("and", &mask, running);
        let own = self.w.bin("shl", &constant(I32, 1), &first);
        self.w.bin("or", &members, &own)
    }

    /// `vote.sync.mode`
    pub(super) fn vote(&mut self, inst: &Inst) -> Result<(), HostError> {
        let holds = self.get(self.op(inst, 1)?, Elem::I1, LANES);
        let mask = self.mask_value();
        let set = self.w.bin("and", &mask, &holds);
        let value = if inst.has("ballot") {
            self.mask_bits(&set)
        } else if inst.has("any") {
            self.any(&set)
        } else {
            let missing = self.w.bin("xor", &mask, &set);
            let some_missing = self.any(&missing);
            let all = self.w.bin_const("xor", &some_missing, 1);
            if inst.has("uni") {
                let some = self.any(&set);
                let none = self.w.bin_const("xor", &some, 1);
                self.w.bin("or", &all, &none)
            } else {
                all
            }
        };
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// `match.any.sync d, a, mask`: the mask of the lanes with the same value. `match.all.sync d|p,
    /// a, mask`: the mask of all lanes if their values are equal, otherwise 0; and whether they are
    /// equal.
    pub(super) fn match_lanes(&mut self, inst: &Inst) -> Result<(), HostError> {
        let elem = Elem::int(self.ty_of(inst)?.bits());
        let value = self.get(self.op(inst, 1)?, elem, LANES);
        let mask = self.mask_value();
        let (to, pred) = match self.op(inst, 0)? {
            Opnd::Pair(to, pred) => ((**to).clone(), (**pred).clone()),
            single => (single.clone(), Opnd::Sink),
        };
        if inst.has("all") {
            let bits = self.mask_bits(&mask);
            let first = self.w.call("llvm.cttz", I32, &[&bits, &constant(I1, 0)]);
            let same = self.equal_lanes(&value, &first, &mask);
            let agree = self.w.compare("icmp eq", &same, &bits);
            let lanes = self.w.select(&agree, &bits, &constant(I32, 0));
            self.set_operand(&to, &lanes, false);
            self.set_operand(&pred, &agree, false);
            return Ok(());
        }
        let mut groups = Val { ty: Ty { elem: Elem::I32, lanes: LANES }, text: "poison".into() };
        for lane in 0..LANES {
            let lane = constant(I32, lane.into());
            let group = self.equal_lanes(&value, &lane, &mask);
            groups = self.w.value(groups.ty, format_args!("insertelement {groups}, {group}, {lane}"));
        }
        self.set_operand(&to, &groups, false);
        Ok(())
    }

    /// The lanes of a mask whose value equals that of one lane, as bits.
    fn equal_lanes(&mut self, value: &Val, lane: &Val, mask: &Val) -> Val {
        let one = self.w.extract(value, lane);
        let one = self.w.splat(&one, LANES);
        let same = self.w.compare("icmp eq", value, &one);
        let same = self.w.bin("and", mask, &same);
        self.mask_bits(&same)
    }

    pub(super) fn activemask(&mut self, inst: &Inst) -> Result<(), HostError> {
        let mask = self.mask_value();
        let bits = self.mask_bits(&mask);
        self.set_operand(self.op(inst, 0)?, &bits, false);
        Ok(())
    }

    /// `redux.sync.op`
    pub(super) fn redux(&mut self, inst: &Inst) -> Result<(), HostError> {
        let ty = self.ty_of(inst)?;
        if ty == ScalarType::F32 {
            return Err(self.unsupported(inst, ""));
        }
        let signed = is_signed(ty);
        let extreme = |max: bool| match (signed, max) {
            (true, true) => i128::from(i32::MIN),
            (true, false) => i128::from(i32::MAX),
            (false, true) => 0,
            (false, false) => -1,
        };
        let word = |m: &str| {
            Some(match m {
                "add" => ("add", 0),
                "and" => ("and", -1),
                "or" => ("or", 0),
                "xor" => ("xor", 0),
                "min" => (if signed { "smin" } else { "umin" }, extreme(false)),
                "max" => (if signed { "smax" } else { "umax" }, extreme(true)),
                _ => return None,
            })
        };
        let Some((op, neutral)) = inst.form.modifiers.iter().find_map(|m| word(m)) else {
            return Err(self.unsupported(inst, ""));
        };
        let value = self.get(self.op(inst, 1)?, elem_of(ty), LANES);
        let mask = self.mask_value();
        let value = self.w.select(&mask, &value, &constant(value.ty, neutral));
        let name = format!("llvm.vector.reduce.{op}.{}", value.ty.mangled());
        let result = self.w.call_named(&name, I32, &[&value]);
        self.set_operand(&inst.ops[0], &result, false);
        Ok(())
    }

    /// A barrier in a block of one warp: nothing to wait for, but `bar.red` still computes.
    pub(super) fn warp_barrier(&mut self, inst: &Inst) -> Result<(), HostError> {
        if !inst.has("red") {
            return Ok(());
        }
        let op = if inst.has("popc") {
            ReduceOp::Popc
        } else if inst.has("and") {
            ReduceOp::And
        } else {
            ReduceOp::Or
        };
        let (source, negated) = match inst.ops.last() {
            Some(Opnd::Reg(reg)) => (*reg, false),
            Some(Opnd::Not(reg)) => (*reg, true),
            _ => return Err(self.malformed(inst, "must read a predicate")),
        };
        let value = self.reduce_lanes(op, source, negated);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }
}

/// The source lane of `lane`, and whether it is within its segment.
fn source_lane(mode: ShuffleMode, lane: u32, by: u32, clamp: u32) -> (u32, bool) {
    let (by, segment, bound) = (by & 31, clamp >> 8 & 31, clamp & 31);
    let low = lane & segment;
    let high = low | (bound & !segment & 31);
    let (wanted, valid) = match mode {
        ShuffleMode::Index => {
            let wanted = low | (by & !segment & 31);
            (wanted, wanted <= high)
        }
        // For `up` the bound is the lowest lane of the segment.
        ShuffleMode::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= high as i32),
        ShuffleMode::Down => (lane + by, lane + by <= high),
        ShuffleMode::Butterfly => (lane ^ by, lane ^ by <= high),
    };
    (if valid { wanted } else { lane }, valid)
}
