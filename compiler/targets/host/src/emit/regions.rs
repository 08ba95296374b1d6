//! Regions: the code between barriers, run for all warps of a block in turn.
//!
//! Values that a warp needs beyond a barrier are stored in its record in scratch memory. A register
//! that has the same value in all warps needs no record: every warp of a region computes the new
//! value from the value that the previous region left (`before`), and the value of any warp that
//! reached the barrier is kept (`after`).

mod plan;

use self::plan::is_block_wide;
use super::*;
use atoll_lower::program::{BlockId, Reduce, ReduceOp, Term};
use std::collections::BTreeMap;

/// Alignment of a warp's record, for whole-vector accesses.
const RECORD_ALIGN: u32 = 64;

/// The regions of a kernel.
#[derive(Debug)]
pub(super) struct Regions {
    /// Regions in order; the first starts at the entry.
    list: Vec<Region>,
    /// Offset in the warp's record of each register that has one.
    record: HashMap<Reg, u32>,
    record_bytes: u32,
    /// Bytes of local memory of the whole block, before the records.
    local_bytes: u32,
    warps: u32,
    /// Bytes of the frame, after local memory, if warps are fibers.
    frame_bytes: u32,
    /// Some warps may run with fewer than 32 lanes.
    partial: bool,
    /// Emission state of the regions.
    state: Vec<State>,
    /// The index of the region to run next.
    next: Option<Val>,
}

#[derive(Debug)]
struct Region {
    /// First block.
    entry: BlockId,
    /// The barrier before it.
    barrier: Option<BlockId>,
    /// Registers live at its start.
    live: Vec<bool>,
    /// Registers written in it.
    writes: Vec<bool>,
    /// Barriers at which it ends.
    stops: Vec<BlockId>,
}

#[derive(Debug)]
struct State {
    start: Label,
    latch: Label,
    /// Block-wide registers that the region changes.
    kept: Vec<KeptRegister>,
    /// Accumulator of the reduction at each barrier in `stops`.
    sums: BTreeMap<BlockId, Val>,
    /// Result of the reduction before the region.
    reduced: Val,
}

/// A block-wide register that a region changes.
#[derive(Clone, Debug)]
struct KeptRegister {
    reg: Reg,
    /// Its value before the region, if it is needed.
    before: Option<Val>,
    /// Its value after the region, if it is needed.
    after: Option<Val>,
}

impl Emitter<'_> {
    /// Emits all regions of a block; branches to `done` at the end.
    pub(super) fn regions(&mut self, done: &Label) -> Result<(), HostError> {
        let count = self.regions.list.len();
        let next = self.w.alloca(I32);
        self.regions.next = Some(next);
        for index in 0..count {
            let state = self.region_state(index);
            self.regions.state.push(state);
        }
        let first = self.regions.state[0].start.clone();
        self.w.br(&first);
        for index in 0..count {
            self.region(index, done)?;
            self.run_queue()?;
        }
        Ok(())
    }

    /// Emits the code of one warp from start to end, if barriers do not divide it; returns the
    /// label of its end.
    pub(super) fn only_region(&mut self) -> Result<Label, HostError> {
        let state = self.region_state(0);
        let latch = state.latch.clone();
        self.regions.state.push(state);
        self.start_warp(0, &latch);
        self.run_queue()?;
        Ok(latch)
    }

    fn region_state(&mut self, index: usize) -> State {
        let region = &self.regions.list[index];
        let live_out = |reg: Reg| {
            region.stops.iter().any(|s| self.regions.list.iter().any(|r| r.barrier == Some(*s) && r.live[reg]))
        };
        let kept: Vec<(Reg, bool, bool)> = (0..region.writes.len())
            .filter(|&r| region.writes[r] && is_block_wide(self.analysis, r))
            .map(|r| (r, region.live[r], live_out(r)))
            .filter(|(_, is_read, is_read_after)| *is_read || *is_read_after)
            .collect();
        let stops = region.stops.clone();
        let slot = |e: &mut Self, reg: Reg| e.w.alloca(Ty::scalar(e.program.regs[reg].elem));
        let keep = |(reg, is_read, is_read_after): (Reg, bool, bool)| KeptRegister {
            reg,
            before: is_read.then(|| slot(self, reg)),
            after: is_read_after.then(|| slot(self, reg)),
        };
        let kept = kept.into_iter().map(keep).collect();
        State {
            start: self.w.label(&format!("region{index}")),
            latch: self.w.label(&format!("region{index}.latch")),
            kept,
            sums: stops.into_iter().map(|s| (s, self.w.alloca(I32))).collect(),
            reduced: self.w.alloca(I32),
        }
    }

    /// One region: the loop over warps, then the transition to the next region.
    fn region(&mut self, index: usize, done: &Label) -> Result<(), HostError> {
        let (start, latch) = (self.regions.state[index].start.clone(), self.regions.state[index].latch.clone());
        let (warp_slot, next_slot) = (self.warp.clone(), self.next_slot());
        self.w.lines.locate(0, None);
        self.w.place(&start);
        self.w.store(&constant(I32, 0), &warp_slot);
        self.w.store(&constant(I32, -1), &next_slot);
        self.start_sums(index);
        self.copy_kept(index, Kept::Save);
        let head = self.w.label("warp");
        self.w.place(&head);
        self.start_warp(index, &latch);
        self.w.place(&latch);
        let out = self.w.label("warps_done");
        if self.regions.warps > 1 {
            let warp = self.w.load(I32, &warp_slot);
            let warp = self.w.bin_const("add", &warp, 1);
            self.w.store(&warp, &warp_slot);
            let more = self.w.compare("icmp ult", &warp, &constant(I32, self.regions.warps.into()));
            self.w.br_if(&more, &head, &out);
            self.w.place(&out);
        }
        self.copy_kept(index, Kept::Keep);
        self.dispatch(index, done);
        Ok(())
    }

    fn next_slot(&mut self) -> Val {
        match self.regions.next.clone() {
            Some(slot) => slot,
            None => self.w.alloca(I32),
        }
    }

    /// Loads the warp's live mask and record, and enters the region.
    fn start_warp(&mut self, index: usize, latch: &Label) {
        let bits = if index == 0 { self.initial_lanes() } else { self.load_live() };
        let is_full = self.w.compare("icmp eq", &bits, &constant(I32, -1));
        let mask = self.w.value(MASK, format_args!("bitcast {bits} to {MASK}"));
        let live = self.live.clone();
        self.w.store(&mask, &live);
        if index > 0 {
            let run = self.w.label("alive");
            let any = self.w.compare("icmp ne", &bits, &constant(I32, 0));
            self.w.br_if(&any, &run, latch);
            self.w.place(&run);
        }
        self.initialise_written(index);
        self.copy_kept(index, Kept::Restore);
        self.load_record(index);
        self.write_reduction(index);
        let entry = self.regions.list[index].entry;
        let (full, partial) = self.region_contexts(index);
        let all = self.copy_label(full, entry);
        if self.regions.partial && !(index == 0 && self.analysis.block.is_full()) {
            let some = self.copy_label(partial, entry);
            self.w.br_if(&is_full, &all, &some);
        } else {
            self.w.br(&all);
        }
    }

    /// Bits of the lanes that a warp starts with.
    fn initial_lanes(&mut self) -> Val {
        let threads = self.analysis.block.threads();
        let last = threads % LANES;
        if last == 0 {
            return constant(I32, -1);
        }
        let tail = constant(I32, ((1i128 << last) - 1) as i32 as i128);
        if self.regions.warps == 1 {
            return tail;
        }
        let slot = self.warp.clone();
        let warp = self.w.load(I32, &slot);
        let is_last = self.w.compare("icmp eq", &warp, &constant(I32, (self.regions.warps - 1).into()));
        self.w.select(&is_last, &tail, &constant(I32, -1))
    }

    /// Address of the running warp's record.
    fn record(&mut self) -> Val {
        let slot = self.warp.clone();
        let warp = self.w.load(I32, &slot);
        let warp = self.w.resize(&warp, Elem::I64, false);
        let offset = self.w.bin_const("mul", &warp, self.regions.record_bytes.into());
        let offset = self.w.bin_const("add", &offset, self.regions.local_bytes.into());
        let scratch = self.fixed.scratch.clone();
        self.w.offset(&scratch, &offset)
    }

    fn load_live(&mut self) -> Val {
        let record = self.record();
        self.w.load(I32, &record)
    }

    /// Gives initial values to registers that a region writes before it reads them. Without them,
    /// LLVM would have to keep the value of the previous warp and block for a register that is
    /// written under a mask.
    fn initialise_written(&mut self, index: usize) {
        let region = &self.regions.list[index];
        let is_meant = |&reg: &Reg| region.writes[reg] && !region.live[reg] && !is_block_wide(self.analysis, reg);
        for reg in (0..self.slots.len()).filter(is_meant).collect::<Vec<_>>() {
            let lanes = if self.analysis.shapes[reg].is_scalar() { 1 } else { LANES };
            let slot = self.slots[reg].clone();
            self.w.store(&constant(Ty { elem: self.program.regs[reg].elem, lanes }, 0), &slot);
        }
    }

    /// Loads the registers of a warp's record that are live at the start of a region.
    fn load_record(&mut self, index: usize) {
        let region = &self.regions.list[index];
        let wanted: Vec<(Reg, u32)> = self
            .regions
            .record
            .iter()
            .filter(|(r, _)| index > 0 && region.live[**r])
            .map(|(r, at)| (*r, *at))
            .collect();
        for (reg, at) in sorted(wanted) {
            let record = self.record();
            let at = self.w.offset_const(&record, at.into());
            let slot = self.slots[reg].clone();
            let elem = self.program.regs[reg].elem;
            let value = match (self.analysis.shapes[reg].is_scalar(), elem) {
                (true, Elem::I1) => {
                    let byte = self.w.load(Ty::scalar(Elem::I8), &at);
                    self.w.cast("trunc", &byte, Elem::I1)
                }
                (true, _) => self.w.load(Ty::scalar(elem), &at),
                (false, Elem::I1) => {
                    let bits = self.w.load(I32, &at);
                    self.w.value(MASK, format_args!("bitcast {bits} to {MASK}"))
                }
                (false, _) => {
                    let ty = Ty { elem, lanes: LANES };
                    self.w.value(ty, format_args!("load {ty}, {at}, align {RECORD_ALIGN}"))
                }
            };
            self.w.store(&value, &slot);
        }
    }

    fn store_record(&mut self, reg: Reg, at: u32) {
        let record = self.record();
        let at = self.w.offset_const(&record, at.into());
        let value = self.load_slot(reg);
        match (value.ty.lanes, value.ty.elem) {
            (1, Elem::I1) => {
                let byte = self.w.cast("zext", &value, Elem::I8);
                self.w.store(&byte, &at);
            }
            (_, Elem::I1) => {
                let bits = self.mask_bits(&value);
                self.w.store(&bits, &at);
            }
            (1, _) => self.w.store(&value, &at),
            _ => self.w.effect(format_args!("store {value}, {at}, align {RECORD_ALIGN}")),
        }
    }

    /// A warp arrives at a barrier.
    pub(super) fn stop(&mut self, index: usize, barrier: BlockId, next: BlockId, reduce: Option<&Reduce>) {
        let region = &self.regions.list[index];
        let Some(to) = self.regions.list.iter().position(|r| r.barrier == Some(barrier) && r.entry == next) else {
            return;
        };
        let wanted: Vec<(Reg, u32)> = self
            .regions
            .record
            .iter()
            .filter(|(r, _)| self.regions.list[to].live[**r] && region.writes[**r])
            .map(|(r, at)| (*r, *at))
            .collect();
        if let Some(reduce) = reduce {
            self.add_to_sum(index, barrier, reduce);
        }
        for (reg, at) in sorted(wanted) {
            self.store_record(reg, at);
        }
        let live = self.live.clone();
        let live = self.w.load(MASK, &live);
        let bits = self.mask_bits(&live);
        let record = self.record();
        self.w.store(&bits, &record);
        self.copy_kept(index, Kept::Take { to });
        let next_slot = self.next_slot();
        self.w.store(&constant(I32, to as i128), &next_slot);
        let latch = self.regions.state[index].latch.clone();
        self.w.br(&latch);
    }

    /// A warp has left the kernel.
    pub(super) fn warp_done(&mut self, index: usize) {
        if self.regions.list.len() > 1 {
            let record = self.record();
            self.w.store(&constant(I32, 0), &record);
        }
        let latch = self.regions.state[index].latch.clone();
        self.w.br(&latch);
    }

    /// The transition from the end of a region to the next one.
    fn dispatch(&mut self, index: usize, done: &Label) {
        let targets: Vec<(usize, BlockId)> = (self.regions.list.iter().enumerate())
            .filter_map(|(i, r)| r.barrier.filter(|b| self.regions.list[index].stops.contains(b)).map(|b| (i, b)))
            .collect();
        let next_slot = self.next_slot();
        let next = self.w.load(I32, &next_slot);
        let mut cases = Vec::new();
        for (target, barrier) in &targets {
            let sum = self.regions.state[index].sums[barrier].clone();
            let reduced = self.regions.state[*target].reduced.clone();
            let value = self.w.load(I32, &sum);
            self.w.store(&value, &reduced);
            cases.push(format!("i32 {target}, label %{}", self.regions.state[*target].start.0));
        }
        self.w.terminate(format_args!("switch {next}, label %{} [{}]", done.0, cases.join(" ")));
    }

    fn start_sums(&mut self, index: usize) {
        let sums: Vec<(BlockId, Val)> = self.regions.state[index].sums.iter().map(|(b, v)| (*b, v.clone())).collect();
        for (barrier, sum) in sums {
            let is_and = match &self.program.blocks[barrier].term {
                Term::Barrier { reduce: Some(reduce), .. } => reduce.op == ReduceOp::And,
                _ => false,
            };
            self.w.store(&constant(I32, is_and.into()), &sum);
        }
    }

    /// Adds the running warp's lanes to the reduction of a barrier.
    fn add_to_sum(&mut self, index: usize, barrier: BlockId, reduce: &Reduce) {
        let lanes = self.reduce_lanes(reduce.op, reduce.source, reduce.negated);
        let slot = self.regions.state[index].sums[&barrier].clone();
        let old = self.w.load(I32, &slot);
        let op = match reduce.op {
            ReduceOp::Popc => "add",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
        };
        let new = self.w.bin(op, &old, &lanes);
        self.w.store(&new, &slot);
    }

    /// `bar.red` over the lanes of the current mask, as a 32-bit integer.
    pub(super) fn reduce_lanes(&mut self, op: ReduceOp, source: Reg, negated: bool) -> Val {
        let mut holds = self.read(source, LANES);
        if negated {
            holds = self.not(&holds);
        }
        let mask = self.mask_value();
        match op {
            ReduceOp::Popc => {
                let set = self.w.bin("and", &mask, &holds);
                let bits = self.mask_bits(&set);
                self.w.call("llvm.ctpop", I32, &[&bits])
            }
            ReduceOp::Or => {
                let set = self.w.bin("and", &mask, &holds);
                let any = self.any(&set);
                self.w.resize(&any, Elem::I32, false)
            }
            ReduceOp::And => {
                let fails = self.not(&holds);
                let unset = self.w.bin("and", &mask, &fails);
                let any = self.any(&unset);
                let all = self.w.bin_const("xor", &any, 1);
                self.w.resize(&all, Elem::I32, false)
            }
        }
    }

    /// Writes the result of the barrier before a region.
    fn write_reduction(&mut self, index: usize) {
        let Some(barrier) = self.regions.list[index].barrier else { return };
        let Term::Barrier { reduce: Some(reduce), .. } = &self.program.blocks[barrier].term else { return };
        let reduced = self.regions.state[index].reduced.clone();
        let value = self.w.load(I32, &reduced);
        self.mask = None;
        self.set(reduce.dst, &value, false);
    }

    /// Moves block-wide registers between their slots and the copies before and after the region.
    /// Only registers that are read are moved, so kernels that share a function do not pay for each
    /// other's registers.
    fn copy_kept(&mut self, index: usize, step: Kept) {
        let kept = self.regions.state[index].kept.clone();
        for KeptRegister { reg, before, after } in kept {
            let slot = self.slots[reg].clone();
            let ty = Ty::scalar(self.program.regs[reg].elem);
            match step {
                Kept::Save => {
                    let value = match &before {
                        Some(_) => self.w.load(ty, &slot),
                        None => Val { ty, text: "undef".into() },
                    };
                    before.iter().chain(&after).for_each(|to| self.w.store(&value, to));
                }
                Kept::Restore => self.copy_slot(ty, before.as_ref(), Some(&slot)),
                Kept::Take { to } if self.regions.list[to].live[reg] => self.copy_slot(ty, Some(&slot), after.as_ref()),
                Kept::Take { .. } => {}
                Kept::Keep => self.copy_slot(ty, after.as_ref(), Some(&slot)),
            }
        }
    }

    fn copy_slot(&mut self, ty: Ty, from: Option<&Val>, to: Option<&Val>) {
        if let (Some(from), Some(to)) = (from, to) {
            let value = self.w.load(ty, from);
            self.w.store(&value, to);
        }
    }

    /// Address of the local memory of the running warp's first thread, and the distance between
    /// threads.
    pub(super) fn local_memory(&mut self) -> (Val, u32) {
        let slot = self.warp.clone();
        let warp = self.w.load(I32, &slot);
        let warp = self.w.resize(&warp, Elem::I64, false);
        let offset = self.w.bin_const("mul", &warp, i128::from(self.program.local_bytes) * i128::from(LANES));
        let scratch = self.fixed.scratch.clone();
        let address = self.w.value(I64, format_args!("ptrtoint {scratch} to i64"));
        (self.w.bin("add", &address, &offset), self.program.local_bytes)
    }
}

/// When a block-wide register of a region is copied.
#[derive(Clone, Copy)]
enum Kept {
    /// At the start of the region.
    Save,
    /// At the start of a warp.
    Restore,
    /// When a warp arrives at the barrier before another region.
    Take { to: usize },
    /// After all warps.
    Keep,
}

/// In the order of the record, so that the output does not depend on hashing.
fn sorted(mut registers: Vec<(Reg, u32)>) -> Vec<(Reg, u32)> {
    registers.sort_unstable_by_key(|r| r.1);
    registers
}
