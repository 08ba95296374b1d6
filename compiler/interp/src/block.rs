//! One block: its threads, their scheduling, and barriers.
//!
//! Each thread has its own program counter. Lanes of a warp that are at the same instruction run
//! together. The lanes that are furthest behind run first, so that diverged lanes reconverge. At
//! intervals, the lane that has waited longest runs instead, so that a lane that spins on another
//! lane does not block it forever.

mod barrier;

use crate::fault::{Fault, FaultKind};
use crate::lanes::WARP;
use crate::launch::{Launch, LaunchError, Options};
use crate::memory::Memory;
use crate::op::{CARRY, Dst, LaneMask, Op, Special, Src};
use crate::program::Program;
use barrier::Barrier;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Number of barriers of a block.
const BARRIERS: usize = 16;

/// Turns of a warp before the next warp runs.
const WARP_TURNS: u32 = 64;

/// In each period of this many turns of a warp, the last quarter goes to the lane that has waited
/// longest.
const FAIR_PERIOD: u64 = 512;

/// Maximum shared memory of a block in bytes, dynamic and static. It is far more than any device
/// has; it bounds the cost of a mistyped size.
const SHARED_BYTES_MAX: u64 = 1 << 26;

/// A function call that has not returned.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Parameters, return values and `.param` variables.
    pub(crate) params: Vec<u8>,
    /// Function and instruction to return to, and the caller's first register and local memory
    /// size.
    pub(crate) caller: (u32, u32),
    pub(crate) caller_registers: usize,
    pub(crate) local: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// At a warp instruction, until all members arrive.
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
    /// Turn of its last instruction.
    last: u64,
}

/// The progress of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All threads have exited.
    Finished,
    /// The instruction budget is used up.
    Stopped,
}

/// A running block. It can be stopped after any number of instructions, and memory may be changed
/// in between.
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
    /// Number of turns that each warp has had.
    turns_of: Vec<u64>,
    warp: usize,
    warp_turns: u32,
    random: Random,
    /// Lanes that execute the current instruction together.
    together: u32,
}

impl std::fmt::Debug for BlockRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockRun").field("block", &self.block).field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// A seeded random generator; with seed 0 it always returns `None`.
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
    /// A block before its first instruction.
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

    /// Executes at most `budget` instructions, counted per thread.
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

    /// Instructions executed so far, counted per thread.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The output of the block since the last call.
    pub fn take_printed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.printed)
    }

    /// A fault at the current instruction of a thread.
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

    /// The warp and the lanes to run next; `None` if no lane is ready.
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

    /// The lanes of a warp to run next.
    fn group(&mut self, warp: usize) -> Option<u32> {
        let range = self.lanes_of(warp);
        let ready = range.clone().filter(|t| self.threads[*t].state == State::Ready);
        let place = |t: &Thread| (std::cmp::Reverse(t.frames.len()), t.function, t.at);
        // Turns are counted per warp: with a global count, a warp might only ever get turns in the
        // first part of a period.
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

    /// The value of a source operand in a thread.
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

    /// Writes a register, truncated to its width.
    pub(crate) fn set(&mut self, thread: usize, register: Option<Dst>, value: u64) {
        if let Some(Dst { slot, bits }) = register {
            let t = &mut self.threads[thread];
            t.registers[t.base + slot as usize] = crate::alu::low(bits, value);
        }
    }

    /// Executes one instruction of one thread.
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

    /// Ends a thread, and releases the threads that were only waiting for it.
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

    /// The carry is zero at the start of each function.
    pub(crate) fn clear_carry(&mut self, thread: usize) {
        self.set(thread, Some(Dst { slot: CARRY, bits: 1 }), 0);
    }
}
