//! One block: its threads, how they take turns, and how they meet at barriers.
//!
//! Each thread has its own place in the code. The lanes of a warp that stand at the same place go
//! together, the hindmost place first, so that lanes which parted meet again; every now and then
//! whoever waited longest goes, so that a lane that spins on another gets what it waits for.

use crate::fault::{Fault, FaultKind, Waiting};
use crate::lanes::WARP;
use crate::launch::{Launch, LaunchError, Options};
use crate::memory::Memory;
use crate::op::{BarrierKind, CARRY, Dst, LaneMask, Op, Reduction, Special, Src};
use crate::program::Program;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Barriers of a block.
const BARRIERS: usize = 16;

/// Turns a warp has before the next one.
const WARP_TURNS: u32 = 64;

/// Of so many turns of a warp, the last quarter goes to whoever waited longest.
const FAIR_PERIOD: u64 = 512;

/// Most bytes of shared memory in a block, dynamic and static: far beyond every device, and a bound
/// on what a mistyped number costs.
const SHARED_BYTES_MAX: u64 = 1 << 26;

/// A call that has not returned.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Parameters, return values and `.param` variables.
    pub(crate) params: Vec<u8>,
    /// Where the caller goes on, and its first register and byte of local memory.
    pub(crate) caller: (u32, u32),
    pub(crate) caller_registers: usize,
    pub(crate) local: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// At an instruction of the warp, until all members are there.
    AtWarp,
    /// At a barrier of the block.
    AtBarrier(u32),
    Exited,
}

/// One thread.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) id: [u32; 3],
    pub(crate) registers: Vec<u64>,
    /// First register of the running function.
    pub(crate) base: usize,
    pub(crate) frames: Vec<Frame>,
    pub(crate) local: Vec<u8>,
    pub(crate) state: State,
    pub(crate) function: u32,
    pub(crate) at: u32,
    /// When it last did something.
    last: u64,
}

#[derive(Clone, Debug, Default)]
struct Barrier {
    /// Threads expected, where the instruction says so.
    count: Option<u32>,
    arrived: Vec<u32>,
    waiting: Vec<(u32, Option<Dst>, BarrierKind)>,
    trues: u32,
}

/// How far a block came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All its threads have ended.
    Finished,
    /// It did as many instructions as it was allowed to.
    Stopped,
}

/// One block on its way: can be stopped after any number of instructions, and memory changed in
/// between.
#[derive(Clone)]
pub struct BlockRun<'p> {
    pub(crate) program: &'p Program,
    pub(crate) launch: &'p Launch,
    pub(crate) block: [u32; 3],
    pub(crate) threads: Vec<Thread>,
    pub(crate) shared: Vec<u8>,
    pub(crate) constants: Vec<u8>,
    pub(crate) call_depth: usize,
    pub(crate) printed: Vec<u8>,
    barriers: Vec<Barrier>,
    steps: u64,
    turn: u64,
    /// Turns that each warp has had.
    turns_of: Vec<u64>,
    warp: usize,
    warp_turns: u32,
    random: Random,
    /// Lanes that do the current instruction together.
    together: u32,
}

impl std::fmt::Debug for BlockRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockRun").field("block", &self.block).field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// A seeded generator; seed 0 always says no.
#[derive(Clone, Debug)]
pub(crate) struct Random(Option<SplitMix64>);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random((seed != 0).then(|| SplitMix64::seed_from_u64(seed)))
    }

    pub(crate) fn below(&mut self, bound: u64) -> Option<u64> {
        Some(self.0.as_mut()?.next_u64() % bound.max(1))
    }
}

impl<'p> BlockRun<'p> {
    /// A block that has not begun.
    pub fn new(
        program: &'p Program,
        launch: &'p Launch,
        block: [u32; 3],
        options: &Options,
    ) -> Result<BlockRun<'p>, LaunchError> {
        launch.check(program)?;
        let shared = program.shared_static + u64::from(launch.shared_bytes);
        if shared > SHARED_BYTES_MAX {
            return Err(LaunchError::Shared { bytes: shared, most: SHARED_BYTES_MAX });
        }
        let [x, y, z] = launch.block;
        let ids = (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z])));
        let entry = &program.functions[0];
        let random = Random::new(
            options.seed ^ u64::from(block[0]) << 20 ^ u64::from(block[1]) << 40 ^ u64::from(block[2]) << 50,
        );
        let pattern = options.seed.to_le_bytes()[0] ^ 0xA5;
        let thread = |id| {
            let mut params = launch.params.clone();
            params.resize(program.functions[0].params_bytes as usize, 0);
            Thread {
                id,
                registers: vec![0; entry.registers],
                base: 0,
                frames: vec![Frame { params, caller: (0, 0), caller_registers: 0, local: 0 }],
                local: vec![pattern; entry.local_bytes as usize],
                state: State::Ready,
                function: 0,
                at: 0,
                last: 0,
            }
        };
        let threads: Vec<Thread> = ids.map(thread).collect();
        Ok(BlockRun {
            program,
            launch,
            block,
            turns_of: vec![0; threads.len().div_ceil(WARP)],
            threads,
            shared: vec![pattern; shared as usize],
            constants: program.constants.clone(),
            call_depth: options.call_depth,
            printed: Vec::new(),
            barriers: vec![Barrier::default(); BARRIERS],
            steps: 0,
            turn: 0,
            warp: 0,
            warp_turns: 0,
            random,
            together: 0,
        })
    }

    /// Runs at most `budget` instructions, each counted once for each thread.
    pub fn run(&mut self, memory: &mut Memory, budget: u64) -> Result<Progress, Fault> {
        memory.select(self.program.id, &self.program.globals);
        let end = self.steps.saturating_add(budget);
        loop {
            let Some((warp, lanes)) = self.next_group() else {
                return if self.live() == 0 { Ok(Progress::Finished) } else { Err(self.deadlock()) };
            };
            self.together = lanes;
            for lane in (0..WARP).filter(|lane| lanes >> lane & 1 == 1) {
                if self.steps >= end {
                    return Ok(Progress::Stopped);
                }
                let thread = warp * WARP + lane;
                self.steps += 1;
                self.threads[thread].last = self.turn;
                self.step(memory, thread).map_err(|kind| self.fault(thread, kind))?;
            }
        }
    }

    /// Instructions done so far, each counted once for each thread.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// What the block has printed since it was asked last.
    pub fn take_printed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.printed)
    }

    /// A fault at the place where a thread stands.
    pub(crate) fn fault(&self, thread: usize, kind: FaultKind) -> Fault {
        let line = self.line(thread);
        Fault {
            kind,
            kernel: self.program.entry().to_owned(),
            block: self.block,
            thread: self.threads[thread].id,
            line,
        }
    }

    fn line(&self, thread: usize) -> u32 {
        let t = &self.threads[thread];
        self.program.functions[t.function as usize].code.get(t.at as usize).map_or(0, |i| i.line)
    }

    fn live(&self) -> usize {
        self.threads.iter().filter(|t| t.state != State::Exited).count()
    }

    pub(crate) fn lanes_of(&self, warp: usize) -> std::ops::Range<usize> {
        warp * WARP..((warp + 1) * WARP).min(self.threads.len())
    }

    /// The warp and the lanes that go next; `None` where nobody can.
    fn next_group(&mut self) -> Option<(usize, u32)> {
        let warps = self.threads.len().div_ceil(WARP);
        self.turn += 1;
        self.warp_turns += 1;
        if self.warp_turns >= WARP_TURNS {
            self.warp_turns = 0;
            let by = self.random.below(warps as u64).unwrap_or(1) as usize;
            self.warp = (self.warp + by) % warps;
        }
        for _ in 0..warps {
            if let Some(lanes) = self.group(self.warp) {
                return Some((self.warp, lanes));
            }
            self.warp = (self.warp + 1) % warps;
            self.warp_turns = 0;
        }
        None
    }

    /// The lanes of a warp that go next.
    fn group(&mut self, warp: usize) -> Option<u32> {
        let range = self.lanes_of(warp);
        let ready = range.clone().filter(|t| self.threads[*t].state == State::Ready);
        let place = |t: &Thread| (std::cmp::Reverse(t.frames.len()), t.function, t.at);
        // Counted for each warp: of all turns together, some warps would only ever get the first ones of a
        // period.
        self.turns_of[warp] += 1;
        let fair = self.turns_of[warp] % FAIR_PERIOD >= FAIR_PERIOD / 4 * 3;
        let leader = match self.random.below(8) {
            Some(0) => {
                let list: Vec<usize> = ready.collect();
                let pick = self.random.below(list.len() as u64)? as usize;
                list.get(pick).copied()
            }
            _ if fair => ready.min_by_key(|t| self.threads[*t].last),
            _ => ready.min_by_key(|t| place(&self.threads[*t])),
        }?;
        let wanted = place(&self.threads[leader]);
        let first = range.start;
        let same = |t: &usize| self.threads[*t].state == State::Ready && place(&self.threads[*t]) == wanted;
        Some(range.filter(same).fold(0, |mask, t| mask | 1 << (t - first)))
    }

    /// The value of a source in a thread.
    pub(crate) fn value(&self, thread: usize, source: Src) -> u64 {
        let t = &self.threads[thread];
        match source {
            Src::Reg(slot) => t.registers[t.base + slot as usize],
            Src::Not(slot) => t.registers[t.base + slot as usize] ^ 1,
            Src::Imm(value) => value,
            Src::Local(offset) => t.frames.last().map_or(0, |f| f.local as u64).wrapping_add(offset),
            Src::Special(special) => self.special(thread, special),
        }
    }

    fn special(&self, thread: usize, special: Special) -> u64 {
        let lane = (thread % WARP) as u32;
        let below = (1u32 << lane) - 1;
        match special {
            Special::Tid(axis) => self.threads[thread].id[axis].into(),
            Special::Ntid(axis) => self.launch.block[axis].into(),
            Special::Ctaid(axis) => self.block[axis].into(),
            Special::Nctaid(axis) => self.launch.grid[axis].into(),
            Special::Lane => lane.into(),
            Special::Warp => (thread / WARP) as u64,
            Special::WarpCount => self.threads.len().div_ceil(WARP) as u64,
            Special::LaneMask(which) => u64::from(match which {
                LaneMask::Equal => 1 << lane,
                LaneMask::Less => below,
                LaneMask::LessOrEqual => below | 1 << lane,
                LaneMask::Greater => !(below | 1 << lane),
                LaneMask::GreaterOrEqual => !below,
            }),
            Special::Clock => self.steps,
            Special::ClockHigh => self.steps >> 32,
            Special::DynamicShared => self.launch.shared_bytes.into(),
            Special::TotalShared => self.shared.len() as u64,
        }
    }

    /// Writes a register, cut to its width.
    pub(crate) fn set(&mut self, thread: usize, register: Option<Dst>, value: u64) {
        if let Some(Dst { slot, bits }) = register {
            let t = &mut self.threads[thread];
            t.registers[t.base + slot as usize] = crate::alu::low(bits, value);
        }
    }

    /// One instruction of one thread.
    fn step(&mut self, memory: &mut Memory, thread: usize) -> Result<(), FaultKind> {
        let program = self.program;
        let t = &self.threads[thread];
        let inst = &program.functions[t.function as usize].code[t.at as usize];
        if let Some((slot, wanted)) = inst.guard
            && (t.registers[t.base + slot as usize] != 0) != wanted
        {
            self.threads[thread].at += 1;
            return Ok(());
        }
        match &inst.op {
            Op::Nop => {}
            Op::Alu { alu, src, dst } => {
                let mut values = [0u64; 6];
                for (value, source) in values.iter_mut().zip(src) {
                    *value = self.value(thread, *source);
                }
                let [first, second] = (alu.function)(&values[..src.len()]);
                self.set(thread, dst[0], first);
                self.set(thread, dst[1], second);
            }
            Op::Move { src, dst } => self.move_bits(thread, src, dst),
            Op::Load { .. } | Op::Store { .. } | Op::Atomic(_) | Op::Copy { .. } => {
                self.memory_operation(memory, thread, &inst.op)?
            }
            Op::Branch(target) => {
                self.threads[thread].at = *target;
                return Ok(());
            }
            Op::BranchIndexed { index, targets } => {
                let index = self.value(thread, *index);
                let target =
                    targets.get(index as usize).ok_or(FaultKind::BranchIndex { index, count: targets.len() })?;
                self.threads[thread].at = *target;
                return Ok(());
            }
            Op::Call { callee, returns, arguments } => return self.call(memory, thread, *callee, returns, arguments),
            Op::Return => return self.return_from(memory, thread),
            Op::Exit => return self.exit(memory, thread),
            Op::Trap => return Err(FaultKind::Trap),
            Op::Barrier { kind, number, count, predicate, dst } => {
                let number = self.value(thread, *number) as u32;
                let count = count.map(|c| self.value(thread, c) as u32);
                let predicate = predicate.is_some_and(|p| self.value(thread, p) != 0);
                return self.arrive(thread, (*kind, number, count), predicate, *dst);
            }
            Op::ActiveMask(dst) => {
                let guarded = |lane: usize| {
                    let t = &self.threads[thread / WARP * WARP + lane];
                    inst.guard.is_none_or(|(slot, wanted)| (t.registers[t.base + slot as usize] != 0) == wanted)
                };
                let together = (0..WARP)
                    .filter(|lane| self.together >> lane & 1 == 1 && guarded(*lane))
                    .fold(0u64, |m, lane| m | 1 << lane);
                self.set(thread, *dst, together);
            }
            Op::Warp(_) => {
                self.threads[thread].state = State::AtWarp;
                return self.meet(memory, thread);
            }
        }
        self.threads[thread].at += 1;
        Ok(())
    }

    fn move_bits(&mut self, thread: usize, src: &[(Src, u32)], dst: &[(Option<Dst>, u32)]) {
        let mut all = 0u128;
        let mut at = 0;
        for &(source, bits) in src {
            all |= u128::from(crate::alu::low(bits, self.value(thread, source))) << at;
            at += bits;
        }
        for &(register, bits) in dst {
            self.set(thread, register, crate::alu::low(bits, all as u64));
            all = if bits >= 128 { 0 } else { all >> bits };
        }
    }

    /// Ends a thread; those who wait for all that are left may go on.
    pub(crate) fn exit(&mut self, memory: &mut Memory, thread: usize) -> Result<(), FaultKind> {
        self.threads[thread].state = State::Exited;
        (0..BARRIERS as u32).for_each(|number| self.release(number));
        for other in self.lanes_of(thread / WARP) {
            if self.threads[other].state == State::AtWarp {
                self.meet(memory, other)?;
            }
        }
        Ok(())
    }

    fn arrive(
        &mut self,
        thread: usize,
        (kind, number, count): (BarrierKind, u32, Option<u32>),
        predicate: bool,
        dst: Option<Dst>,
    ) -> Result<(), FaultKind> {
        let Some(barrier) = self.barriers.get_mut(number as usize) else {
            return Err(FaultKind::Operand(format!("barrier {number} of {BARRIERS}")));
        };
        if count.is_some_and(|c| c == 0 || !c.is_multiple_of(WARP as u32)) {
            return Err(FaultKind::Operand(format!(
                "a barrier for {} threads, which is no multiple of a warp",
                count.unwrap_or(0)
            )));
        }
        if !barrier.arrived.is_empty() && barrier.count != count {
            return Err(FaultKind::Operand(format!("barrier {number} is waited for with another number of threads")));
        }
        barrier.count = count;
        barrier.arrived.push(thread as u32);
        barrier.trues += u32::from(predicate);
        if kind == BarrierKind::Arrive {
            self.threads[thread].at += 1;
        } else {
            barrier.waiting.push((thread as u32, dst, kind));
            self.threads[thread].state = State::AtBarrier(number);
        }
        self.release(number);
        Ok(())
    }

    /// Lets a barrier's threads go where all that it waits for are there.
    fn release(&mut self, number: u32) {
        let barrier = &self.barriers[number as usize];
        if barrier.arrived.is_empty() || !self.is_complete(barrier) {
            return;
        }
        let Barrier { arrived, waiting, trues, .. } = std::mem::take(&mut self.barriers[number as usize]);
        for (thread, dst, kind) in waiting {
            let thread = thread as usize;
            let result = match kind {
                BarrierKind::Reduce(Reduction::And) => u64::from(trues as usize == arrived.len()),
                BarrierKind::Reduce(Reduction::Or) => u64::from(trues > 0),
                _ => trues.into(),
            };
            self.set(thread, dst, result);
            let t = &mut self.threads[thread];
            t.state = State::Ready;
            t.at += 1;
        }
    }

    /// Without a count, all threads that have not exited must be there; with one, a warp that is
    /// there as a whole counts full, however many lanes it has left.
    fn is_complete(&self, barrier: &Barrier) -> bool {
        let Some(count) = barrier.count else { return barrier.waiting.len() >= self.live() };
        if barrier.arrived.len() >= count as usize {
            return true;
        }
        let contribution = |warp: usize| {
            let there = barrier.arrived.iter().filter(|t| **t as usize / WARP == warp).count();
            let live = self.lanes_of(warp).filter(|t| self.threads[*t].state != State::Exited).count();
            if there > 0 && there >= live { WARP } else { there }
        };
        let total: usize = (0..self.threads.len().div_ceil(WARP)).map(contribution).sum();
        total >= count as usize
    }

    fn deadlock(&self) -> Fault {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut first = 0;
        for (index, thread) in self.threads.iter().enumerate().filter(|(_, t)| t.state != State::Exited) {
            let barrier = match thread.state {
                State::AtBarrier(number) => Some(number),
                _ => None,
            };
            let line = self.line(index);
            match waiting.iter_mut().find(|w| (w.line, w.barrier) == (line, barrier)) {
                Some(group) => group.threads += 1,
                None => {
                    if waiting.is_empty() {
                        first = index;
                    }
                    waiting.push(Waiting { line, barrier, threads: 1, first: thread.id });
                }
            }
        }
        self.fault(first, FaultKind::Deadlock(waiting))
    }

    /// The carry of a thread starts at zero in each function.
    pub(crate) fn clear_carry(&mut self, thread: usize) {
        self.set(thread, Some(Dst { slot: CARRY, bits: 1 }), 0);
    }
}
