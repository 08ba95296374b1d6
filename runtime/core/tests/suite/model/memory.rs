//! The memory of a task: which step wrote each cell of each buffer last. Finds a step that reads a
//! cell another step should have written and did not.

use atoll_core::Step;
use atoll_core::rng::Rng;

/// Cells of a buffer; the blocks of a launch divide them.
const CELLS: usize = 6;

/// Buffers of a task; later steps reuse them as a memory plan would.
const BUFFERS: u64 = 5;

/// What a step does to memory.
#[derive(Clone, Debug)]
struct Access {
    /// The buffers it reads, and the step that has to have written them; `None` for initial
    /// contents.
    reads: Vec<(usize, Option<usize>)>,
    writes: usize,
    blocks: usize,
}

impl Access {
    fn cells(&self, block: usize) -> impl Iterator<Item = usize> {
        (block..CELLS).step_by(self.blocks)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Memory {
    accesses: Vec<Access>,
    /// The step that wrote each cell of each buffer.
    cells: Vec<[Option<usize>; CELLS]>,
}

impl Memory {
    /// Steps that read one or two buffers and write one. If a step writes a buffer that it reads,
    /// each block reads only the cells it writes.
    pub(super) fn of(steps: &[Step], rng: &mut Rng) -> Memory {
        let mut last = [None; BUFFERS as usize];
        let accesses = steps.iter().enumerate().map(|(number, step)| {
            let reads = (0..1 + rng.below(2))
                .map(|_| rng.below(BUFFERS) as usize)
                .map(|buffer| (buffer, last[buffer]))
                .collect();
            let writes = rng.below(BUFFERS) as usize;
            last[writes] = Some(number);
            Access { reads, writes, blocks: if *step == Step::Host { 1 } else { 1 + rng.below(CELLS as u64) as usize } }
        });
        Memory { accesses: accesses.collect(), cells: vec![[None; CELLS]; BUFFERS as usize] }
    }

    /// For each step, its restore point: the earliest step from which the task may run again once
    /// this one has begun. It lies behind every reader of memory that was overwritten since.
    pub(super) fn restore_points(&self) -> Vec<u32> {
        let mut behind = vec![0; self.accesses.len()];
        for (reader, access) in self.accesses.iter().enumerate() {
            for (buffer, _) in &access.reads {
                let overwriter = self.accesses[reader..].iter().position(|later| later.writes == *buffer);
                overwriter.into_iter().for_each(|overwriter| {
                    behind[reader + overwriter] = behind[reader + overwriter].max(reader as u32 + 1)
                });
            }
        }
        (1..behind.len()).for_each(|step| behind[step] = behind[step].max(behind[step - 1]));
        behind
    }

    /// For each step, the earlier steps that wrote what it reads or writes, or read what it writes.
    pub(super) fn needs(&self) -> Vec<Vec<u32>> {
        let touches = |access: &Access, buffer: usize| {
            access.writes == buffer || access.reads.iter().any(|(read, _)| *read == buffer)
        };
        let needs = |later: usize| {
            let access = &self.accesses[later];
            (0..later)
                .filter(|&before| {
                    touches(access, self.accesses[before].writes) || touches(&self.accesses[before], access.writes)
                })
                .map(|before| before as u32)
        };
        (0..self.accesses.len()).map(|later| needs(later).collect()).collect()
    }

    pub(super) fn blocks(&self, step: u32) -> usize {
        self.accesses[step as usize].blocks
    }

    /// Whether a step overwrites what it reads, so that no block of it may run twice.
    pub(super) fn is_in_place(&self, step: u32) -> bool {
        let access = &self.accesses[step as usize];
        access.reads.iter().any(|(buffer, _)| *buffer == access.writes)
    }

    /// Runs a block. The error says which step wrote the data that it read, and which step should
    /// have written it.
    pub(super) fn run(&mut self, step: u32, block: usize) -> Result<(), String> {
        let access = self.accesses[step as usize].clone();
        let mut answer = Ok(());
        for &(buffer, expected) in &access.reads {
            let is_in_place = buffer == access.writes;
            let wrong = (0..CELLS)
                .filter(|cell| !is_in_place || access.cells(block).any(|own| own == *cell))
                .find(|&cell| self.cells[buffer][cell] != expected);
            if let Some(cell) = wrong {
                let found = self.cells[buffer][cell];
                answer =
                    Err(format!("block {block} of step {step} reads what {found:?} wrote instead of {expected:?}"));
            }
        }
        access.cells(block).for_each(|cell| self.cells[access.writes][cell] = Some(step as usize));
        answer
    }

    /// Whether all cells are as an undisturbed run leaves them.
    pub(super) fn is_final(&self) -> bool {
        self.cells.iter().enumerate().all(|(buffer, cells)| {
            let last = self.accesses.iter().rposition(|access| access.writes == buffer);
            cells.iter().all(|cell| *cell == last)
        })
    }
}
