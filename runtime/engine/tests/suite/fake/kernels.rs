//! The thread of the fake device: runs blocks of the toy model's kernels.

use super::{Kernel, Launch, Shared, State};
use crate::toy::{BAD, PER_BLOCK, TRAP};
use atoll_core::Epoch;
use atoll_core::rng::Rng;
use atoll_device::{Completion, LaunchStatus};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Shared {
    pub(super) fn run(&self, mut rng: Rng) {
        let mut state = self.state.lock().expect("no panic");
        while !self.stopped.load(Ordering::SeqCst) {
            if state.mapped.advance() {
                rustix::io::write(&self.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
            }
            for completion in state.take_aborted() {
                state.completions.push_back(completion);
                rustix::io::write(&self.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
            }
            let busy: Vec<usize> = (0..state.queues.len()).filter(|&queue| !state.queues[queue].is_empty()).collect();
            if busy.is_empty() || self.paused.load(Ordering::SeqCst) {
                state = self.work.wait_timeout(state, Duration::from_millis(1)).expect("no panic").0;
                continue;
            }
            let queue = busy[rng.below(busy.len() as u64) as usize];
            let evicted = state.run_block(queue);
            if let Some(mut completion) = state.take_ended(queue) {
                if self.reports_evictions.load(Ordering::SeqCst) {
                    completion.status = LaunchStatus::Evicted;
                }
                state.completions.push_back(completion);
                rustix::io::write(&self.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
            }
            drop(state);
            // A block takes time; one that exits early takes none.
            if !evicted {
                std::thread::sleep(Duration::from_micros(5));
            }
            state = self.state.lock().expect("no panic");
        }
    }
}

impl State {
    /// Marks the buffers of a launch as its tenant's, and checks that its output holds no data of
    /// other tenants.
    pub(super) fn take_over(&mut self, kernel: &Kernel, params: &[u8], owner: u16) {
        let bytes = u64::from(u32::from_le_bytes(params[16..20].try_into().expect("four bytes"))) * 4;
        let range = |at: u64| at as usize..(at + bytes) as usize;
        self.owners[range(u64_at(params, 0))].fill(owner);
        if kernel.name == "move" {
            let output = &mut self.owners[range(u64_at(params, 8))];
            let others = output.iter().find(|&&other| other != 0 && other != owner);
            assert_eq!(others, None, "an output overlaps readable data of another tenant");
            output.fill(owner);
        }
    }

    pub(super) fn u32_at(&mut self, at: u64) -> &mut [u8; 4] {
        (&mut self.memory[at as usize..at as usize + 4]).try_into().expect("four bytes")
    }

    /// Runs the next block of the launch at the head of a queue. Returns whether it exited early.
    pub(super) fn run_block(&mut self, queue: usize) -> bool {
        let mut launch = self.queues[queue].pop_front().expect("a launch");
        if launch.next_block == 0 {
            launch.started_ns = now_ns();
        }
        let block = launch.next_block;
        launch.next_block += 1;
        let started_ns = now_ns();
        let left = self.enter_block(&mut launch, block);
        let busy_ns = now_ns() - started_ns;
        launch.busy_ns += busy_ns;
        self.busy_ns += busy_ns;
        self.queues[queue].push_front(launch);
        left
    }

    pub(super) fn enter_block(&mut self, launch: &mut Launch, block: u32) -> bool {
        let Some(base) = launch.kernel.preempt_offset else {
            run_kernel(launch, block, &mut self.memory);
            return false;
        };
        let [epoch_word, evicted_word, progress] = [0, 8, 16].map(|at| u64_at(&launch.params, base as usize + at));
        assert_eq!((epoch_word, evicted_word), (launch.record.epoch_word.0, launch.record.evicted_word.0));
        let issued = Epoch(u32::from_le_bytes(
            launch.params[base as usize + 24..base as usize + 28].try_into().expect("four bytes"),
        ));
        assert_eq!(issued, launch.record.epoch);
        if launch.kernel.exits_unreported {
            let exits = issued.is_raised_by(Epoch(u32::from_le_bytes(*self.u32_at(epoch_word))));
            if !exits {
                run_kernel(launch, block, &mut self.memory);
            }
            return exits;
        }
        if self.memory[(progress + u64::from(block)) as usize] == 1 {
            return true;
        }
        if issued.is_raised_by(Epoch(u32::from_le_bytes(*self.u32_at(epoch_word)))) {
            *self.u32_at(evicted_word) = 1_u32.to_le_bytes();
            return true;
        }
        run_kernel(launch, block, &mut self.memory);
        self.memory[(progress + u64::from(block)) as usize] = 1;
        false
    }

    pub(super) fn take_ended(&mut self, queue: usize) -> Option<Completion> {
        let launch = self.queues[queue].front()?;
        let blocks: u32 = launch.record.grid.iter().product();
        if launch.next_block < blocks {
            return None;
        }
        let launch = self.queues[queue].pop_front()?;
        let evicted = u32::from_le_bytes(*self.u32_at(launch.record.evicted_word.0)) != 0;
        let status = match (launch.failed, evicted) {
            (true, _) => LaunchStatus::Failed,
            (_, true) => LaunchStatus::Evicted,
            _ => LaunchStatus::Complete,
        };
        Some(Completion {
            launch: launch.record.launch,
            status,
            started_ns: launch.started_ns,
            ended_ns: now_ns(),
            busy_ns: launch.busy_ns,
            reexecuted_blocks: 0,
            discarded_ns: 0,
        })
    }

    /// Ends the launches that are to be aborted and are at the head of their queues.
    pub(super) fn take_aborted(&mut self) -> Vec<Completion> {
        let State { aborted, queues, .. } = self;
        let is_aborted =
            |queue: &VecDeque<Launch>| queue.front().is_some_and(|oldest| aborted.contains(&oldest.record.launch));
        let heads = queues.iter_mut().filter_map(|queue| is_aborted(queue).then(|| queue.pop_front())?);
        let status = LaunchStatus::Aborted;
        heads
            .map(|l| Completion {
                started_ns: l.started_ns,
                ended_ns: now_ns(),
                busy_ns: l.busy_ns,
                ..Completion::unrun(l.record.launch, status)
            })
            .collect()
    }
}

pub(super) fn u64_at(params: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(params[at..at + 8].try_into().expect("eight bytes"))
}

/// One block of a launch: `step(x, w, n, k)`, `move(from, to, n)`, `judge(x, word, n)`,
/// `size(x, size, 1)`, or `tick(x, unused, 1)`.
fn run_kernel(launch: &mut Launch, block: u32, memory: &mut [u8]) {
    let word = |memory: &[u8], at: u64| {
        u32::from_le_bytes(memory[at as usize..at as usize + 4].try_into().expect("four bytes"))
    };
    let int = |params: &[u8], at: usize| u32::from_le_bytes(params[at..at + 4].try_into().expect("four bytes"));
    let (first, second, n) = (u64_at(&launch.params, 0), u64_at(&launch.params, 8), int(&launch.params, 16));
    assert_eq!(launch.record.address_slots.before(3), [0, 1].into_iter().collect(), "two addresses, then numbers");
    for i in (block * PER_BLOCK..(block + 1) * PER_BLOCK).take_while(|&i| i < n) {
        let offset = u64::from(i) * 4;
        let x = word(memory, first + offset);
        let (to, value) = match launch.kernel.name.as_str() {
            "step" => {
                let k = int(&launch.params, 20);
                (
                    first + offset,
                    x.wrapping_mul(3).wrapping_add(k).wrapping_add(word(memory, second + u64::from(i % 8) * 4)),
                )
            }
            "move" => (second + offset, x),
            "size" => (second, x),
            "tick" => (first + offset, x.wrapping_sub(1)),
            "judge" => {
                if x == BAD {
                    memory[second as usize..second as usize + 4].copy_from_slice(&1_u32.to_le_bytes());
                }
                continue;
            }
            "hop" => {
                let k = int(&launch.params, 20);
                (second + offset, x.wrapping_mul(3).wrapping_add(k).wrapping_add((i % 8) * (i % 8) + 1))
            }
            other => panic!("there is no kernel {other}"),
        };
        launch.failed |= x == TRAP && launch.kernel.name == "step";
        memory[to as usize..to as usize + 4].copy_from_slice(&value.to_le_bytes());
    }
}
