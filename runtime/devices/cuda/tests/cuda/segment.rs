//! Launches that go to the driver together, as a graph.

use super::executor::executor;
use super::suite::rig::{Launch, Preempt, Rig, Wanted};
use super::{KERNELS, config};
use atoll_core::{DeviceOffset, Epoch};
use atoll_device::{Completion, LaunchStatus};
use atoll_device_cuda::{CudaConfig, CudaDevice};
use atoll_executor::ExecutorDevice;

/// Most launches that go together.
const TOGETHER: usize = 3;

fn cuda() -> CudaConfig {
    CudaConfig { segment: TOGETHER as u32, ..config(Wanted { queue_capacity: 8, ..Wanted::default() }) }
}

/// The device in this process, and in an executor.
fn rigs() -> [Rig; 2] {
    let here = CudaDevice::start(&cuda()).expect("a GPU");
    let there = ExecutorDevice::start(executor(cuda())).expect("an executor");
    [Rig::new(Box::new(here), KERNELS.as_bytes()), Rig::new(Box::new(there), KERNELS.as_bytes())]
}

/// Launches of one task that append to a log, each after the one before.
struct Task {
    log: DeviceOffset,
    gate: DeviceOffset,
    blocks: u32,
    states: Vec<Preempt>,
}

impl Task {
    fn new(rig: &mut Rig, launches: usize, blocks: u32) -> Task {
        let (log, gate) = (rig.alloc(4 + launches as u64 * u64::from(blocks) * 4), rig.alloc(4));
        let first = rig.preempt(blocks.into());
        let states =
            (0..launches).map(|_| Preempt { epoch_word: first.epoch_word, ..rig.preempt(blocks.into()) }).collect();
        Task { log, gate, blocks, states }
    }

    /// Resets the state of all launches.
    fn begin(&self, rig: &mut Rig) {
        rig.device.fill(self.log, 0, 4).expect("memory");
        for state in &self.states {
            rig.device.fill(state.progress, 0, self.blocks.into()).expect("memory");
            rig.device.fill(state.evicted_word, 0, 4).expect("memory");
        }
    }

    fn open(&self, rig: &mut Rig, gate: u32) {
        rig.device.write(self.gate, &gate.to_ne_bytes()).expect("memory");
    }

    /// Submits them all; each but the last announces the next.
    fn submit(&self, rig: &mut Rig) {
        for (index, state) in self.states.iter().enumerate() {
            let launch = Launch::note_preemptible(self.blocks, self.log, index as u32 + 1, self.gate, 1, *state);
            rig.submit(0, &Launch { followed: index + 1 < self.states.len(), ..launch }).expect("room");
        }
    }

    fn wait(&self, rig: &mut Rig) -> Vec<Completion> {
        self.states.iter().map(|_| rig.wait()).collect()
    }

    /// The launches whose blocks ran, in order.
    fn ran(&self, rig: &mut Rig) -> Vec<u32> {
        let count = rig.u32(self.log) as usize;
        rig.u32s(self.log, 1 + count).split_off(1)
    }
}

#[test]
fn repeated_launches_go_together() {
    for mut rig in rigs() {
        for launches in [2, TOGETHER, TOGETHER + 1, 2 * TOGETHER + 2] {
            let task = Task::new(&mut rig, launches, 5);
            task.open(&mut rig, 1);
            for round in 0..4 {
                task.begin(&mut rig);
                task.submit(&mut rig);
                let ends = task.wait(&mut rig);
                assert!(ends.iter().all(|end| end.status == LaunchStatus::Complete), "{ends:?}");
                assert!(ends.is_sorted_by(|one, next| one.launch < next.launch), "in their order");
                assert_eq!(task.ran(&mut rig), (1..=launches as u32).flat_map(|tag| [tag; 5]).collect::<Vec<_>>());
                // Launches that went together all have the times of the whole segment.
                let together =
                    ends.chunks(TOGETHER).all(|ends| ends.iter().all(|end| end.started_ns == ends[0].started_ns));
                assert_eq!(together, round > 0, "round {round} of {launches}");
            }
        }
    }
}

#[test]
fn a_segment_is_evicted_like_its_launches() {
    const BLOCKS: u32 = 20_000;
    for mut rig in rigs() {
        let mut task = Task::new(&mut rig, TOGETHER, BLOCKS);
        for gate in [1, 1, 0] {
            task.open(&mut rig, gate);
            task.begin(&mut rig);
            task.submit(&mut rig);
            if gate == 1 {
                assert!(task.wait(&mut rig).iter().all(|end| end.status == LaunchStatus::Complete));
            }
        }
        // The third time some blocks of the first launch wait for the gate.
        while rig.u32(task.log) == 0 {
            std::thread::yield_now();
        }
        let word = task.states[0].epoch_word;
        rig.device.store_epoch(word, Epoch(1));
        task.open(&mut rig, 1);
        let ends = task.wait(&mut rig);
        assert!(ends.iter().all(|end| end.status == LaunchStatus::Evicted), "{ends:?}");
        assert!(ends.iter().all(|end| end.started_ns == ends[0].started_ns), "as one");
        let begun = task.ran(&mut rig);
        assert!(
            !begun.is_empty() && begun.len() < BLOCKS as usize && begun.iter().all(|tag| *tag == 1),
            "{} blocks ran",
            begun.len()
        );
        for state in &mut task.states {
            assert_eq!(rig.u32(state.evicted_word), 1, "at the offset where the engine reads it");
            rig.device.fill(state.evicted_word, 0, 4).expect("memory");
            state.epoch = Epoch(1);
        }
        // It resumes where it stopped; with another epoch these are different launches.
        task.submit(&mut rig);
        assert!(task.wait(&mut rig).iter().all(|end| end.status == LaunchStatus::Complete));
        let ran = task.ran(&mut rig);
        assert_eq!(ran.len(), TOGETHER * BLOCKS as usize, "each block ran once");
        assert!(ran.is_sorted(), "one launch behind the other");
    }
}

#[test]
fn code_that_was_captured_can_be_unloaded() {
    for mut rig in rigs() {
        for _ in 0..3 {
            let task = Task::new(&mut rig, TOGETHER, 2);
            task.open(&mut rig, 1);
            for _ in 0..3 {
                task.begin(&mut rig);
                task.submit(&mut rig);
                assert!(task.wait(&mut rig).iter().all(|end| end.status == LaunchStatus::Complete));
            }
            rig.device.unload_module(rig.module);
            rig.module = rig.load().expect("the kernels");
        }
    }
}
