//! Runs all workgroups of a launch, a few at a time, one instruction of one wave after the other.

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

/// How a launch is executed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The run ends with a fault after this many instructions of all waves.
    pub limit: u64,
    /// Decides the order of waves, and the content of registers and LDS that nothing has set.
    pub seed: u64,
    /// Workgroups that are resident at a time; they take turns.
    pub resident: usize,
    /// Bytes of scratch per lane beyond the kernel's own, for a dynamic stack.
    pub stack_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { limit: 1 << 32, seed: 1, resident: 2, stack_bytes: 0 }
    }
}

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions of waves, by class.
    pub instructions: BTreeMap<Class, u64>,
    /// Waves that ran to their end.
    pub waves: u64,
    /// Workgroups that ran to their end.
    pub workgroups: u64,
}

impl Stats {
    /// All instructions.
    pub fn total(&self) -> u64 {
        self.instructions.values().sum()
    }
}

/// Longest turn of a wave, in instructions.
const LONGEST_TURN: u32 = 64;

struct Group {
    lds: Vec<u8>,
    waves: Vec<Wave>,
}

/// Runs a kernel of `programs[0]`. Code in the others can be reached by jumps.
///
/// Buffers in `memory` are read and written as the kernel does it, also if it ends with a fault.
pub fn run(
    programs: &[&Program],
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<Stats, RunError> {
    let first = programs.first().ok_or_else(|| RunError::Launch("no program is given".to_owned()))?;
    let kernel = first.kernel(kernel)?;
    launch.check(kernel)?;
    let private = kernel.descriptor.private_bytes.checked_add(options.stack_bytes).filter(|&b| b <= 1 << 18);
    let private_bytes = private.ok_or_else(|| RunError::Launch("over 256 KiB of scratch per lane".to_owned()))?;
    programs.iter().for_each(|p| p.map(memory));
    let mut random = SplitMix64::seed_from_u64(options.seed);
    // Compilers widen loads of arguments up to the alignment of the segment, 64 bytes.
    let mut kernarg = launch.kernarg.clone();
    kernarg.resize(kernarg.len().next_multiple_of(64).max(64), 0xa5);
    memory.add_at("kernel arguments", KERNARG, kernarg, false);
    memory.add_at("dispatch packet", DISPATCH, launch.packet(kernel), false);
    let mut runner = Runner { programs, kernel, launch, options, private_bytes, stats: Stats::default(), executed: 0 };
    let result = runner.all(memory, &mut random);
    memory.remove(KERNARG);
    memory.remove(DISPATCH);
    result.map(|()| runner.stats).map_err(|fault| RunError::Fault(Box::new(fault)))
}

struct Runner<'a> {
    programs: &'a [&'a Program],
    kernel: &'a Kernel,
    launch: &'a Launch,
    options: &'a Options,
    private_bytes: u32,
    stats: Stats,
    executed: u64,
}

impl Runner<'_> {
    fn all(&mut self, memory: &mut Memory, random: &mut SplitMix64) -> Result<(), Fault> {
        let [x, y, z] = self.launch.grid.map(u64::from);
        let total = x.saturating_mul(y).saturating_mul(z);
        let slots = self.options.resident.max(1);
        let (mut next, mut resident): (u64, Vec<(usize, Group)>) = (0, Vec::new());
        loop {
            while resident.len() < slots && next < total {
                let id = [(next % x) as u32, (next / x % y) as u32, (next / x / y) as u32];
                let slot = (0..slots).find(|s| resident.iter().all(|(used, _)| used != s)).unwrap_or(0);
                resident.push((slot, self.group(id, slot, random)));
                next += 1;
            }
            if resident.is_empty() {
                return Ok(());
            }
            let chosen = random.next_u64() as usize % resident.len();
            self.turn(&mut resident[chosen].1, memory, random)?;
            if resident[chosen].1.waves.iter().all(|w| w.state == State::Ended) {
                let (_, group) = resident.swap_remove(chosen);
                self.stats.workgroups += 1;
                self.stats.waves += group.waves.len() as u64;
            }
        }
    }

    fn group(&self, workgroup: [u32; 3], slot: usize, random: &mut SplitMix64) -> Group {
        let waves = self.launch.threads().div_ceil(self.kernel.descriptor.wave_size);
        let target = &self.programs[0].target;
        let first_slot = slot as u64 * u64::from(waves);
        let start = Start {
            kernel: self.kernel,
            target,
            launch: self.launch,
            workgroup,
            private_bytes: self.private_bytes,
            first_slot,
        };
        let waves = (0..waves).map(|index| start.wave(index, random)).collect();
        let mut lds = vec![0; self.launch.lds_bytes(self.kernel) as usize];
        random.fill_bytes(&mut lds);
        Group { lds, waves }
    }

    /// Lets one wave of a workgroup run for a while.
    fn turn(&mut self, group: &mut Group, memory: &mut Memory, random: &mut SplitMix64) -> Result<(), Fault> {
        let ready: Vec<usize> = (0..group.waves.len()).filter(|&w| group.waves[w].state == State::Ready).collect();
        let wave = &mut group.waves[ready[random.next_u64() as usize % ready.len()]];
        for _ in 0..1 + random.next_u32() % LONGEST_TURN {
            self.step(wave, &mut group.lds, memory)?;
            if wave.state != State::Ready {
                break;
            }
        }
        if group.waves.iter().all(|w| w.state != State::Ready) {
            group.waves.iter_mut().filter(|w| w.state == State::Barrier).for_each(|w| w.state = State::Ready);
        }
        Ok(())
    }

    fn step(&mut self, wave: &mut Wave, lds: &mut Vec<u8>, memory: &mut Memory) -> Result<(), Fault> {
        let pc = wave.pc;
        let (workgroup, index) = (wave.workgroup, wave.index);
        let fault =
            |kind, text: &str, lane| Fault { kind, address: pc, text: text.to_owned(), workgroup, wave: index, lane };
        let program = self.programs.iter().find(|p| p.has_code(pc));
        let program = program.ok_or_else(|| fault(FaultKind::OutsideCode(pc), "", None))?;
        let inst = program.instruction(pc, wave.size).map_err(|r| fault(r.kind, &r.text, None))?;
        if self.executed >= self.options.limit {
            return Err(fault(FaultKind::LimitReached(self.options.limit), &inst.text, None));
        }
        self.executed += 1;
        *self.stats.instructions.entry(inst.class).or_default() += 1;
        wave.pc = pc.wrapping_add(inst.size);
        wave.lane = None;
        let mut machine = Machine { wave, lds, memory, target: &program.target, clock: self.executed };
        execute(&mut machine, inst).map_err(|kind| fault(kind, &inst.text, machine.wave.lane))
    }
}
