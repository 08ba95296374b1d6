//! Blocks that are stopped midway for more urgent ones and then run again.

use super::Make;
use super::rig::{Kernel, Launch, Param, Preempt, Rig, Wanted};
use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch, LaunchId, PreemptLevel, QueueId};
use atoll_device::{Completion, LaunchStatus};
use std::time::{Duration, Instant};

/// A device with one compute unit, and a launch whose block occupies it until a gate is opened.
struct Held {
    rig: Rig,
    log: DeviceOffset,
    gate: DeviceOffset,
    preempt: Preempt,
    launch: Launch,
}

impl Held {
    fn new(make: Make, may_run_again: bool) -> Held {
        let mut rig = make(Wanted { compute_units: 1, ..Wanted::default() });
        assert_eq!(rig.device.info().preempt_level, PreemptLevel::Interrupt);
        let (log, gate, preempt) = (rig.alloc(4096), rig.alloc(4), rig.preempt(1));
        let launch = Launch { may_run_again, ..Launch::note_preemptible(1, log, 1, gate, 1, preempt) };
        Held { rig, log, gate, preempt, launch }
    }

    /// Submits the launch and waits until its block runs; it has begun `begun` times before.
    fn hold(&mut self, begun: u32) -> LaunchId {
        let id = self.rig.submit(1, &self.launch).expect("room");
        self.rig.wait_for(self.log, begun + 1);
        id
    }

    fn open_gate(&mut self) {
        self.rig.device.store_epoch(self.gate, Epoch(1));
    }

    /// A more urgent launch that does not wait for the gate.
    fn urgent(&mut self) -> Launch {
        let log = self.rig.alloc(64);
        Launch::note(1, log, 7, self.gate, 0)
    }
}

fn end(completion: Completion) -> (LaunchId, LaunchStatus, u64) {
    (completion.launch, completion.status, completion.reexecuted_blocks)
}

pub fn an_interrupted_block_runs_again(make: Make) {
    let mut held = Held::new(make, true);
    let launch = held.hold(0);
    for round in 1..20 {
        let urgent = held.urgent();
        assert_eq!(held.rig.run(0, &urgent).status, LaunchStatus::Complete, "although the gate is closed");
        held.rig.wait_for(held.log, round + 1);
    }
    held.open_gate();
    let completion = held.rig.wait();
    assert_eq!(end(completion), (launch, LaunchStatus::Complete, 19));
    assert!(completion.discarded_ns > 0 && completion.discarded_ns < completion.busy_ns, "{completion:?}");
    assert_eq!(held.rig.u32(held.log), 20, "the block was started 20 times");
    assert_eq!(held.rig.u32(held.preempt.evicted_word), 0);
}

pub fn blocks_that_may_not_run_again_are_not_interrupted(make: Make) {
    let mut held = Held::new(make, false);
    let launch = held.hold(0);
    let urgent = held.urgent();
    let urgent = held.rig.submit(0, &urgent).expect("room");
    let until = Instant::now() + Duration::from_millis(30);
    while Instant::now() < until {
        assert_eq!(held.rig.device.next_completion(), None, "the gate is closed");
    }
    held.open_gate();
    let mut ends = [held.rig.wait(), held.rig.wait()].map(end);
    ends.sort_unstable_by_key(|(launch, ..)| *launch);
    assert_eq!(ends, [(launch, LaunchStatus::Complete, 0), (urgent, LaunchStatus::Complete, 0)]);
    assert_eq!(held.rig.u32(held.log), 1);
}

pub fn an_interrupted_launch_of_an_evicted_task_ends_at_once(make: Make) {
    let mut held = Held::new(make, true);
    let launch = held.hold(0);
    let (log, gate) = (held.rig.alloc(64), held.rig.alloc(4));
    held.rig.device.store_epoch(held.preempt.epoch_word, Epoch(1));
    let urgent = held.rig.submit(0, &Launch::note(1, log, 7, gate, 1)).expect("room");
    assert_eq!(
        end(held.rig.wait()),
        (launch, LaunchStatus::Evicted, 1),
        "while the compute unit is at the urgent block"
    );
    held.rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(end(held.rig.wait()), (urgent, LaunchStatus::Complete, 0));
    // It resumes under the new epoch.
    held.launch.preempt = Some(Preempt { epoch: Epoch(1), ..held.preempt });
    held.rig.device.fill(held.preempt.evicted_word, 0, 4).unwrap();
    let resumed = held.hold(1);
    held.open_gate();
    assert_eq!(end(held.rig.wait()), (resumed, LaunchStatus::Complete, 0));
}

pub fn an_evicted_block_is_interrupted_for_more_urgent_ones(make: Make) {
    let mut held = Held::new(make, true);
    for round in 0..20_u32 {
        let launch = held.hold(round);
        held.rig.device.interrupt(QueueId(1), LaunchId(launch.0 + 1), 1);
        held.rig.device.store_epoch(held.preempt.epoch_word, Epoch(round + 1));
        held.rig.device.interrupt(QueueId(1), launch, 1);
        assert_eq!(
            end(held.rig.wait()),
            (launch, LaunchStatus::Evicted, 1),
            "although the gate is closed and nothing more urgent was submitted"
        );
        held.launch.preempt = Some(Preempt { epoch: Epoch(round + 1), ..held.preempt });
        held.rig.device.fill(held.preempt.evicted_word, 0, 4).unwrap();
    }
    let launch = held.hold(20);
    held.open_gate();
    assert_eq!(
        end(held.rig.wait()),
        (launch, LaunchStatus::Complete, 0),
        "a signal for earlier launches does not affect this one"
    );
}

pub fn a_launch_may_be_interrupted_and_aborted_at_once(make: Make) {
    let (mut held, mut rng) = (Held::new(make, true), Rng::new(11));
    for _ in 0..100 {
        held.rig.device.fill(held.log, 0, 4).unwrap();
        let launch = held.hold(0);
        let urgent = held.urgent();
        let abort = |held: &mut Held| held.rig.device.abort(QueueId(1), launch);
        let aborts_first = rng.one_in(2);
        if aborts_first {
            abort(&mut held);
        }
        (0..rng.below(3_000)).for_each(|_| std::hint::spin_loop());
        let urgent = held.rig.submit(0, &urgent).expect("room");
        (0..rng.below(3_000)).for_each(|_| std::hint::spin_loop());
        if !aborts_first {
            abort(&mut held);
        }
        let mut ends = [held.rig.wait(), held.rig.wait()].map(|end| (end.launch, end.status));
        ends.sort_unstable_by_key(|(launch, _)| *launch);
        assert_eq!(ends, [(launch, LaunchStatus::Aborted), (urgent, LaunchStatus::Complete)]);
    }
}

/// Urgent launches and epochs raised at random moments, until every block of every launch has run.
/// The times of the launches sum up to the device's.
pub fn random_interruptions_leave_results_correct_and_accounted(make: Make) {
    const BLOCKS: u32 = 24;
    let mut reexecuted = 0;
    for seed in 0..4 {
        let (mut rng, mut rig) = (Rng::new(seed), make(Wanted { compute_units: 3, queue_capacity: 4 }));
        let (out, counts) = (rig.alloc(u64::from(BLOCKS) * 4), rig.alloc(64));
        let mut preempt = rig.preempt(BLOCKS.into());
        let (mut busy_ns, mut launches) = (0, 0);
        let mut note = |completion: Completion| {
            busy_ns += completion.busy_ns;
            reexecuted += completion.reexecuted_blocks;
            completion
        };
        while launches < 60 {
            let blocks = 1 + rng.below(BLOCKS.into()) as u32;
            let params = vec![Param::At(out), Param::U64(rng.below(400_000))];
            let launch =
                Launch { may_run_again: !rng.one_in(4), ..Launch::new(Kernel::SettlePreemptible, blocks, params) };
            let launch = launch.preemptible(preempt);
            let resumes = rig.submit(1, &launch).expect("room");
            // Mostly wait until it is in the middle of its first block, which would be rare on a
            // busy machine.
            let until = Instant::now() + Duration::from_millis(if rng.one_in(4) { 0 } else { 100 });
            while rig.u32(out) == 0 && Instant::now() < until {
                std::thread::sleep(Duration::from_micros(10));
            }
            let mut urgent = 0;
            for _ in 0..rng.below(4) {
                (0..rng.below(5_000)).for_each(|_| std::hint::spin_loop());
                urgent +=
                    u64::from(rig.submit(0, &Launch::spin(1 + rng.below(4) as u32, counts, rng.below(20_000))).is_ok());
                if rng.one_in(4) {
                    preempt.epoch = preempt.epoch.next();
                    rig.device.store_epoch(preempt.epoch_word, preempt.epoch);
                    if rng.one_in(2) {
                        rig.device.interrupt(QueueId(1), resumes, rng.below(4));
                    }
                }
            }
            let ends: Vec<Completion> = (0..=urgent).map(|_| note(rig.wait())).collect();
            let status = ends.iter().find(|end| end.launch == resumes).expect("it ends").status;
            rig.device.fill(preempt.evicted_word, 0, 4).unwrap();
            match status {
                LaunchStatus::Complete => {
                    let expected: Vec<u32> = (0..blocks).map(|block| 3 * block + 1).collect();
                    assert_eq!(rig.u32s(out, blocks as usize), expected, "seed {seed}, launch {launches}");
                    rig.device.fill(out, 0, u64::from(BLOCKS) * 4).unwrap();
                    rig.device.fill(preempt.progress, 0, BLOCKS.into()).unwrap();
                    launches += 1;
                }
                LaunchStatus::Evicted => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert_eq!(rig.device.busy_ns(), Some(busy_ns), "seed {seed}");
    }
    assert!(reexecuted > 0, "nothing was ever interrupted");
}
