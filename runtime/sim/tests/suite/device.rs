//! The simulated device against completion times computed by hand.

use atoll_core::{Epoch, LaunchEnd, LaunchId, LaunchProfile, Nanos, PadShape, PreemptLevel, QueueId, TaskId};
use atoll_sim::{Costs, DeviceParameters, Ended, Kernel, SimDevice, SimLaunch, SimPad};
use std::sync::Arc;

const FREE: Costs = Costs {
    launch_ns: 0,
    dispatch_ns: 0,
    evicted_launch_ns: 0,
    flag_ns: 0,
    interrupt_ns: 0,
    completion_ns: 0,
    contention_permille: 0,
    padding_permille: 0,
};

/// A device of four compute units on which only blocks take time.
const DEVICE: DeviceParameters = DeviceParameters {
    name: "toy",
    about: "for tests",
    compute_units: 4,
    preempt_level: PreemptLevel::Deactivate,
    queues: 3,
    has_priorities: true,
    costs: FREE,
};

fn kernel(blocks: u32, wave_ns: &[u64]) -> Arc<Kernel> {
    Arc::new(Kernel { name: "k".into(), profile: LaunchProfile::new(blocks, wave_ns) })
}

/// A device with launches, one per task.
struct Toy {
    device: SimDevice,
    launches: u64,
    ended: Vec<Ended>,
}

impl Toy {
    fn new(parameters: DeviceParameters) -> Toy {
        Toy { device: SimDevice::new(&parameters), launches: 0, ended: Vec::new() }
    }

    /// Launches a kernel as a step of a task, under an epoch.
    fn launch(&mut self, now: u64, queue: u32, (task, step): (u64, u32), epoch: u32, blocks: u32, wave_ns: &[u64]) {
        let kernel = kernel(blocks, wave_ns);
        let launch = LaunchId(self.launches);
        self.launches += 1;
        self.device.advance(Nanos(now), &mut self.ended);
        let launch = SimLaunch { launch, task: TaskId(task), step, epoch: Epoch(epoch), kernel, pads: Vec::new() };
        self.device.submit(Nanos(now), QueueId(queue), launch);
    }

    fn raise(&mut self, now: u64, task: u64, epoch: u32) {
        self.device.advance(Nanos(now), &mut self.ended);
        self.device.raise_epoch(Nanos(now), TaskId(task), Epoch(epoch));
    }

    /// For each launch, in the order of ids: when it ended, and whether it completed.
    fn ends(mut self) -> Vec<(u64, bool)> {
        self.device.advance(Nanos(1_000_000), &mut self.ended);
        assert_eq!(self.device.next(), None);
        assert_eq!(self.ended.len() as u64, self.launches, "every launch ends once");
        self.ended.sort_by_key(|ended| ended.launch);
        self.ended.iter().map(|ended| (ended.at.0, ended.end == LaunchEnd::Complete)).collect()
    }
}

#[test]
fn a_kernel_alone_takes_what_its_waves_take() {
    for blocks in [1, 3, 4, 5, 12, 13, 100, 101] {
        let waves = [100, 110, 150];
        let mut toy = Toy::new(DEVICE);
        toy.launch(0, 1, (0, 0), 0, blocks, &waves);
        let alone = LaunchProfile::new(blocks, waves).alone_ns(4);
        assert_eq!(toy.ends(), [(alone, true)], "{blocks} blocks");
    }
}

#[test]
fn launches_of_a_queue_follow_each_other_and_hide_what_a_launch_takes() {
    let costs = Costs { launch_ns: 30, completion_ns: 7, ..FREE };
    let mut toy = Toy::new(DeviceParameters { costs, ..DEVICE });
    toy.launch(0, 1, (0, 0), 0, 4, &[100]);
    toy.launch(10, 1, (1, 0), 0, 4, &[100]);
    toy.launch(225, 1, (2, 0), 0, 4, &[100]);
    assert_eq!(toy.ends(), [(130, true), (230, true), (355, true)]);
}

#[test]
fn queues_run_side_by_side_where_there_is_room() {
    let mut toy = Toy::new(DEVICE);
    toy.launch(0, 1, (0, 0), 0, 2, &[100]);
    toy.launch(0, 2, (1, 0), 0, 2, &[70]);
    toy.launch(0, 0, (2, 0), 0, 2, &[50]);
    assert_eq!(toy.ends(), [(100, true), (70, true), (120, true)]);
}

#[test]
fn the_urgent_queue_gets_the_next_room() {
    let ends = |has_priorities| {
        let mut toy = Toy::new(DeviceParameters { has_priorities, ..DEVICE });
        toy.launch(0, 1, (0, 0), 0, 12, &[100]);
        toy.launch(50, 0, (1, 0), 0, 4, &[10]);
        toy.ends()
    };
    assert_eq!(ends(true), [(310, true), (110, true)]);
    assert_eq!(ends(false), [(300, true), (310, true)], "without priorities blocks go in the order of launches");
}

#[test]
fn others_slow_blocks_down() {
    let costs = Costs { contention_permille: 500, ..FREE };
    let mut toy = Toy::new(DeviceParameters { costs, ..DEVICE });
    toy.launch(0, 1, (0, 0), 0, 2, &[100]);
    toy.launch(10, 2, (1, 0), 0, 2, &[100]);
    assert_eq!(toy.ends(), [(100, true), (135, true)], "half of the device is taken by others: a quarter longer");
}

#[test]
fn a_raised_epoch_lets_running_blocks_finish_and_the_rest_leave() {
    let costs = Costs { flag_ns: 20, evicted_launch_ns: 5, ..FREE };
    let mut toy = Toy::new(DeviceParameters { costs, ..DEVICE });
    toy.launch(0, 1, (0, 0), 0, 12, &[100]);
    toy.launch(0, 1, (0, 1), 0, 4, &[100]);
    toy.raise(150, 0, 1);
    // The second wave ends at 200; the launch behind it finds the epoch raised.
    toy.launch(300, 1, (0, 0), 1, 12, &[100]);
    assert_eq!(toy.ends(), [(200, false), (205, false), (400, true)], "four blocks of twelve were left");
}

#[test]
fn an_interrupt_stops_running_blocks_which_run_again() {
    let costs = Costs { flag_ns: 20, interrupt_ns: 10, ..FREE };
    let mut toy = Toy::new(DeviceParameters { costs, preempt_level: PreemptLevel::Interrupt, ..DEVICE });
    toy.launch(0, 1, (0, 0), 0, 8, &[100]);
    toy.raise(110, 0, 1);
    toy.launch(200, 1, (0, 0), 1, 8, &[100]);
    toy.launch(200, 0, (1, 0), 0, 1, &[100]);
    assert_eq!((toy.ended[0].stopped_blocks, toy.ended[0].wasted_ns, toy.ended[0].at), (4, 160, Nanos(140)));
    assert_eq!(toy.ends(), [(140, false), (300, true), (400, true)], "four blocks ran before, four are left");
}

#[test]
fn a_launch_under_a_newer_epoch_is_not_evicted_by_an_older_one() {
    let mut toy = Toy::new(DEVICE);
    toy.raise(0, 0, 1);
    toy.launch(10, 1, (0, 0), 0, 4, &[100]);
    toy.launch(10, 1, (0, 0), 1, 4, &[100]);
    assert_eq!(toy.ends(), [(10, false), (110, true)]);
}

#[test]
fn pads_run_on_compute_units_of_their_own() {
    let costs = Costs { padding_permille: 100, ..FREE };
    let mut device = SimDevice::new(&DeviceParameters { costs, ..DEVICE });
    let pad = |blocks, compute_units, task| SimPad {
        task: TaskId(task),
        step: 3,
        shape: PadShape { blocks, compute_units, at_once: 2 },
        kernel: kernel(9, &[20, 30]),
    };
    // The launch's own two blocks run on two compute units. The first pad runs eight blocks on a
    // third unit in four rounds of two, the second pad one block on the fourth.
    let pads = vec![pad(8, 1, 1), pad(1, 1, 2)];
    let launch = SimLaunch {
        launch: LaunchId(0),
        task: TaskId(0),
        step: 0,
        epoch: Epoch(0),
        kernel: kernel(2, &[100, 110]),
        pads,
    };
    device.submit(Nanos(0), QueueId(0), launch);
    // Only the remaining blocks of the padding task run in its own launch.
    let launch = SimLaunch {
        launch: LaunchId(1),
        task: TaskId(1),
        step: 3,
        epoch: Epoch(0),
        kernel: kernel(9, &[20, 30]),
        pads: vec![],
    };
    device.submit(Nanos(0), QueueId(0), launch);
    let mut ended = Vec::new();
    device.advance(Nanos(1000), &mut ended);
    assert_eq!(
        ended.iter().map(|ended| ended.at.0).collect::<Vec<_>>(),
        [132, 132 + 20],
        "four rounds of 30 and a tenth; then one block"
    );
}
