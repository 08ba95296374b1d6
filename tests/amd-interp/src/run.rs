//! Runs the workgroups of a launch, one instruction of one wave at a time. [`run`] runs all
//! workgroups, a few at a time. With a [`Dispatch`] the caller decides which workgroup runs when.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::exec::execute;
use crate::fault::{Fault, FaultKind, RunError};
use crate::launch::{DISPATCH, KERNARG, Launch, Start};
use crate::memory::Memory;
use crate::op::{Class, Machine};
use crate::program::{Kernel, Program};
use crate::wave::{State, Wave};

/// The options of a launch.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of instructions of all waves. The run then ends with a fault.
    pub limit: u64,
    /// The seed for the order of waves, and for the contents of uninitialized registers and LDS.
    pub seed: u64,
    /// Number of workgroups that are resident at a time. They take turns.
    pub resident: usize,
    /// Bytes of scratch per lane beyond the kernel's own, for a dynamic stack.
    pub stack_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { limit: 1 << 32, seed: 1, resident: 2, stack_bytes: 0 }
    }
}

/// The statistics of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Executed instructions of all waves, by class.
    pub instructions: BTreeMap<Class, u64>,
    /// Waves that ran to their end.
    pub waves: u64,
    /// Workgroups that ran to their end.
    pub workgroups: u64,
}

impl Stats {
    /// The number of all instructions.
    pub fn total(&self) -> u64 {
        self.instructions.values().sum()
    }
}

/// Maximum length of a wave's turn, in instructions.
const LONGEST_TURN: u32 = 64;

/// A workgroup that has started.
pub struct Workgroup {
    lds: Vec<u8>,
    waves: Vec<Wave>,
}

/// Runs a kernel of `programs[0]`. Its code may jump to the other programs.
///
/// The kernel's writes to buffers in `memory` stay even if it ends with a fault.
pub fn run(
    programs: &[&Program],
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<Stats, RunError> {
    let mut dispatch = Dispatch::new(programs.to_vec(), kernel, launch.clone(), options)?;
    programs.iter().for_each(|p| p.map(memory));
    dispatch.attach(memory);
    let result = all(&mut dispatch, options.resident.max(1), memory);
    dispatch.detach(memory);
    result.map(|()| dispatch.stats).map_err(RunError::Fault)
}

fn all(dispatch: &mut Dispatch<&Program>, slots: usize, memory: &mut Memory) -> Result<(), Box<Fault>> {
    let mut resident: Vec<(usize, Workgroup)> = Vec::new();
    loop {
        while resident.len() < slots && dispatch.waiting() > 0 {
            let slot = (0..slots).find(|s| resident.iter().all(|(used, _)| used != s)).unwrap_or(0);
            resident.extend(dispatch.start(slot).map(|group| (slot, group)));
        }
        if resident.is_empty() {
            return Ok(());
        }
        let chosen = dispatch.random.next_u64() as usize % resident.len();
        if dispatch.turn(&mut resident[chosen].1, memory)? {
            resident.swap_remove(chosen);
        }
    }
}

fn program_of<P: Borrow<Program>>(of: &P) -> &Program {
    of.borrow()
}

/// A launch whose caller decides when its workgroups start and which of them runs next. Several
/// launches can take turns on one [`Memory`].
pub struct Dispatch<P> {
    programs: Vec<P>,
    kernel: Kernel,
    launch: Launch,
    private_bytes: u32,
    limit: u64,
    random: SplitMix64,
    stats: Stats,
    executed: u64,
    /// Number of workgroups that have started, and of all.
    started: u64,
    total: u64,
    /// The kernel arguments and the dispatch packet, while they are not in memory.
    kernarg: Vec<u8>,
    packet: Vec<u8>,
}

impl<P: Borrow<Program>> Dispatch<P> {
    /// A launch of a kernel of `programs[0]`; no workgroup runs yet. The code may jump to the other
    /// programs. All programs must be in memory ([`Program::map`]) before a workgroup runs.
    pub fn new(programs: Vec<P>, kernel: &str, launch: Launch, options: &Options) -> Result<Self, RunError> {
        let first = programs.first().ok_or_else(|| RunError::Launch("no program is given".to_owned()))?;
        let kernel = program_of(first).kernel(kernel)?.clone();
        launch.check(&kernel)?;
        let private = kernel.descriptor.private_bytes.checked_add(options.stack_bytes).filter(|&b| b <= 1 << 18);
        let private_bytes = private.ok_or_else(|| RunError::Launch("over 256 KiB of scratch per lane".to_owned()))?;
        let [x, y, z] = launch.grid.map(u64::from);
        // Compilers widen loads of arguments up to the segment's alignment of 64 bytes.
        let mut kernarg = launch.kernarg.clone();
        kernarg.resize(kernarg.len().next_multiple_of(64).max(64), 0xa5);
        let packet = launch.packet(&kernel);
        Ok(Self {
            programs,
            kernel,
            launch,
            private_bytes,
            limit: options.limit,
            random: SplitMix64::seed_from_u64(options.seed),
            stats: Stats::default(),
            executed: 0,
            started: 0,
            total: x.saturating_mul(y).saturating_mul(z),
            kernarg,
            packet,
        })
    }

    /// Number of workgroups that have not started.
    pub fn waiting(&self) -> u64 {
        self.total - self.started
    }

    /// Adds the launch's arguments to memory. Only one launch may be attached at a time, and only
    /// an attached launch can run.
    pub fn attach(&mut self, memory: &mut Memory) {
        memory.add_at("kernel arguments", KERNARG, std::mem::take(&mut self.kernarg), false);
        memory.add_at("dispatch packet", DISPATCH, std::mem::take(&mut self.packet), false);
    }

    /// Removes the arguments from memory.
    pub fn detach(&mut self, memory: &mut Memory) {
        self.kernarg = memory.remove(KERNARG).unwrap_or_default();
        self.packet = memory.remove(DISPATCH).unwrap_or_default();
    }

    /// Starts the next workgroup, in the order of the grid. `slot` is its number among the resident
    /// workgroups, and selects its scratch memory. `None` if all have started.
    pub fn start(&mut self, slot: usize) -> Option<Workgroup> {
        if self.waiting() == 0 {
            return None;
        }
        let ([x, y, _], next) = (self.launch.grid.map(u64::from), self.started);
        self.started += 1;
        let workgroup = [(next % x) as u32, (next / x % y) as u32, (next / x / y) as u32];
        let count = self.launch.threads().div_ceil(self.kernel.descriptor.wave_size);
        let start = Start {
            kernel: &self.kernel,
            target: &program_of(&self.programs[0]).target,
            launch: &self.launch,
            workgroup,
            private_bytes: self.private_bytes,
            first_slot: slot as u64 * u64::from(count),
        };
        let waves = (0..count).map(|index| start.wave(index, &mut self.random)).collect();
        let mut lds = vec![0; self.launch.lds_bytes(&self.kernel) as usize];
        self.random.fill_bytes(&mut lds);
        Some(Workgroup { lds, waves })
    }

    /// Runs one wave of a workgroup for a while. Returns true once the workgroup has ended.
    pub fn turn(&mut self, group: &mut Workgroup, memory: &mut Memory) -> Result<bool, Box<Fault>> {
        let ready: Vec<usize> = (0..group.waves.len()).filter(|&w| group.waves[w].state == State::Ready).collect();
        if ready.is_empty() {
            return Ok(true);
        }
        let wave = &mut group.waves[ready[self.random.next_u64() as usize % ready.len()]];
        for _ in 0..1 + self.random.next_u32() % LONGEST_TURN {
            self.step(wave, &mut group.lds, memory)?;
            if wave.state != State::Ready {
                break;
            }
        }
        if group.waves.iter().all(|w| w.state != State::Ready) {
            group.waves.iter_mut().filter(|w| w.state == State::Barrier).for_each(|w| w.state = State::Ready);
        }
        let has_ended = group.waves.iter().all(|w| w.state == State::Ended);
        if has_ended {
            self.stats.workgroups += 1;
            self.stats.waves += group.waves.len() as u64;
        }
        Ok(has_ended)
    }

    fn step(&mut self, wave: &mut Wave, lds: &mut Vec<u8>, memory: &mut Memory) -> Result<(), Box<Fault>> {
        let pc = wave.pc;
        let (workgroup, index) = (wave.workgroup, wave.index);
        let fault = |kind, text: &str, lane| {
            Box::new(Fault { kind, address: pc, text: text.to_owned(), workgroup, wave: index, lane })
        };
        let program = self.programs.iter().map(program_of).find(|p| p.has_code(pc));
        let program = program.ok_or_else(|| fault(FaultKind::OutsideCode(pc), "", None))?;
        let inst = program.instruction(pc, wave.size).map_err(|r| fault(r.kind, &r.text, None))?;
        if self.executed >= self.limit {
            return Err(fault(FaultKind::LimitReached(self.limit), &inst.text, None));
        }
        self.executed += 1;
        *self.stats.instructions.entry(inst.class).or_default() += 1;
        wave.pc = pc.wrapping_add(inst.size);
        wave.lane = None;
        let mut machine = Machine { wave, lds, memory, target: &program.target, clock: self.executed };
        execute(&mut machine, inst).map_err(|kind| fault(kind, &inst.text, machine.wave.lane))
    }
}
