//! Devices as parameters, each figure with its source. What is not measured by anybody is said to
//! be a guess.

use atoll_core::PreemptLevel;

/// What things take on a device besides its kernels' own blocks, in nanoseconds unless named
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From handing a launch over to its first block, where nothing is in front of it. Behind
    /// others it is hidden by them.
    pub launch_ns: u64,
    /// What a launch waits besides, if a launch of another device queue began last: the device
    /// turns from queue to queue.
    pub dispatch_ns: u64,
    /// A launch that finds its epoch raised: fetched, dispatched, gone.
    pub evicted_launch_ns: u64,
    /// From raising an epoch to kernels reading it.
    pub flag_ns: u64,
    /// From kernels reading it to running blocks being gone, where a device can stop them.
    pub interrupt_ns: u64,
    /// From the end of a launch to the scheduler hearing of it.
    pub completion_ns: u64,
    /// How much longer blocks take while others fill the whole device, in thousandths: bandwidth
    /// and caches.
    pub contention_permille: u64,
    /// How much longer blocks take in a padding (dkp) launch, in thousandths.
    pub padding_permille: u64,
}

/// One cost by name, for studies of what it matters.
#[derive(Clone, Copy)]
pub struct CostEntry {
    /// Its name.
    pub name: &'static str,
    /// Where it stands.
    pub of: fn(&mut Costs) -> &mut u64,
}

/// All costs.
pub const COSTS: &[CostEntry] = &[
    CostEntry { name: "launch", of: |costs| &mut costs.launch_ns },
    CostEntry { name: "dispatch", of: |costs| &mut costs.dispatch_ns },
    CostEntry { name: "evicted-launch", of: |costs| &mut costs.evicted_launch_ns },
    CostEntry { name: "flag", of: |costs| &mut costs.flag_ns },
    CostEntry { name: "interrupt", of: |costs| &mut costs.interrupt_ns },
    CostEntry { name: "completion", of: |costs| &mut costs.completion_ns },
    CostEntry { name: "contention", of: |costs| &mut costs.contention_permille },
    CostEntry { name: "padding", of: |costs| &mut costs.padding_permille },
];

/// A device to be simulated.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParameters {
    /// The name it is selected by, behind `sim:`.
    pub name: &'static str,
    /// What it stands for, and where its figures come from.
    pub about: &'static str,
    /// Its compute units.
    pub compute_units: u32,
    /// What it can do to work it was given.
    pub preempt_level: PreemptLevel,
    /// Device queues.
    pub queues: u32,
    /// Whether blocks of queue 0 go before those of the others; otherwise launches get compute
    /// units in the order in which they began.
    pub has_priorities: bool,
    /// What things take.
    pub costs: Costs,
}

/// MI50 with REEF's driver patch. REEF §4.1: a device queue of 4 is emptied in 31 µs, which is 8
/// for each evicted launch (one alone takes about 20); §5: 20 to 40 µs between streams; §7.3: less
/// than 40 µs for a whole preemption, 3 of them for host queues, which leaves a few for flag and
/// interruption; §7.4: 0.8 % for padding. Launch and completion are guesses from the
/// shortest kernels of its profiles (12 µs with a launch), contention one from GPREEMPT's table of
/// unprioritised sharing on an MI100.
const MI50_COSTS: Costs = Costs {
    launch_ns: 8_000,
    dispatch_ns: 20_000,
    evicted_launch_ns: 8_000,
    flag_ns: 3_000,
    interrupt_ns: 4_000,
    completion_ns: 4_000,
    contention_permille: 150,
    padding_permille: 8,
};

/// NVIDIA: an asynchronous launch is 2 to 4 µs, back-to-back dispatch of empty kernels 2 to 4, a
/// word in mapped host memory seen after 2 to 10; running blocks cannot be stopped. None of it was
/// measured by us.
const NVIDIA_COSTS: Costs = Costs {
    launch_ns: 4_000,
    dispatch_ns: 1_000,
    evicted_launch_ns: 3_000,
    flag_ns: 3_000,
    interrupt_ns: 0,
    completion_ns: 4_000,
    contention_permille: 150,
    padding_permille: 8,
};

/// The host device. What a launch takes is in its profile, from which the gaps between launches
/// come too. A flag is a word that compute units share; an evicted launch is taken off its ring
/// without a call; compute units go on with the next block at once.
const HOST_COSTS: Costs = Costs {
    launch_ns: 0,
    dispatch_ns: 0,
    evicted_launch_ns: 500,
    flag_ns: 200,
    interrupt_ns: 0,
    completion_ns: 5_000,
    contention_permille: 0,
    padding_permille: 0,
};

/// All devices that can be simulated.
pub const DEVICES: &[DeviceParameters] = &[
    DeviceParameters {
        name: "mi50",
        about: "AMD MI50 with REEF's driver patch (REEF §4, §5, §7)",
        compute_units: 60,
        preempt_level: PreemptLevel::Interrupt,
        queues: 32,
        has_priorities: false,
        costs: MI50_COSTS,
    },
    DeviceParameters {
        name: "v100",
        about: "NVIDIA V100, 80 SMs (Volta whitepaper); costs from published launches",
        compute_units: 80,
        preempt_level: PreemptLevel::Deactivate,
        queues: 32,
        has_priorities: true,
        costs: NVIDIA_COSTS,
    },
    DeviceParameters {
        name: "a100",
        about: "NVIDIA A100, 108 SMs (Ampere whitepaper); costs from published launches",
        compute_units: 108,
        preempt_level: PreemptLevel::Deactivate,
        queues: 32,
        has_priorities: true,
        costs: NVIDIA_COSTS,
    },
    DeviceParameters {
        name: "h100",
        about: "NVIDIA H100 or H200 SXM, 132 SMs (Hopper whitepaper); costs from published launches",
        compute_units: 132,
        preempt_level: PreemptLevel::Deactivate,
        queues: 32,
        has_priorities: true,
        costs: NVIDIA_COSTS,
    },
    DeviceParameters {
        name: "host",
        about: "the host device of a machine on which `atoll profile` ran, with as many compute units",
        compute_units: 1,
        preempt_level: PreemptLevel::Deactivate,
        queues: 2,
        has_priorities: true,
        costs: HOST_COSTS,
    },
];

/// The device of this name.
pub fn device_by_name(name: &str) -> Option<&'static DeviceParameters> {
    DEVICES.iter().find(|device| device.name == name)
}
