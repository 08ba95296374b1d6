//! Devices as parameters, each figure with its source. Figures that were not measured are marked as
//! guesses.

use atoll_core::PreemptLevel;

/// Latencies and overheads of a device besides the blocks of its kernels, in nanoseconds unless
/// stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From submitting a launch to an idle queue to its first block. Behind other launches this
    /// latency is hidden.
    pub launch_ns: u64,
    /// Additional latency if the device last started a launch of another queue: it switches between
    /// queues.
    pub dispatch_ns: u64,
    /// How long the device takes to discard a launch whose epoch was raised.
    pub evicted_launch_ns: u64,
    /// From raising an epoch until kernels see it.
    pub flag_ns: u64,
    /// From kernels seeing a raised epoch until running blocks are stopped, on devices that can
    /// stop them.
    pub interrupt_ns: u64,
    /// From the end of a launch until the scheduler is notified.
    pub completion_ns: u64,
    /// How much longer blocks take while other kernels fill the whole device, in thousandths:
    /// contention for bandwidth and caches.
    pub contention_permille: u64,
    /// How much longer blocks take in a launch with padding, in thousandths.
    pub padding_permille: u64,
}

/// One cost by its name, for sensitivity studies.
#[derive(Clone, Copy)]
pub struct CostEntry {
    /// Its name.
    pub name: &'static str,
    /// The field.
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

/// The parameters of a simulated device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParameters {
    /// Its name, without the prefix `sim:`.
    pub name: &'static str,
    /// Which device it models, and the sources of the figures.
    pub about: &'static str,
    /// The number of compute units.
    pub compute_units: u32,
    /// How the device can preempt.
    pub preempt_level: PreemptLevel,
    /// The number of device queues.
    pub queues: u32,
    /// Whether queue 0 has priority over the others. Otherwise launches get compute units in the
    /// order in which they started.
    pub has_priorities: bool,
    /// Its latencies and overheads.
    pub costs: Costs,
}

/// MI50 with REEF's driver patch. REEF §4.1: emptying a device queue of 4 launches takes 31 µs,
/// which is 8 µs per evicted launch (a single one takes about 20); §5: 20 to 40 µs between streams;
/// §7.3: less than 40 µs for a whole preemption, 3 of them for host queues, which leaves a few for
/// the flag and the interrupt; §7.4: 0.8 % for padding. Launch and completion are guesses from the
/// shortest kernels of its profiles (12 µs including the launch). Contention is a guess from
/// GPREEMPT's table of sharing without priorities on an MI100.
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

/// NVIDIA: an asynchronous launch takes 2 to 4 µs, back-to-back dispatch of empty kernels 2 to 4
/// µs, and a word in mapped host memory becomes visible after 2 to 10 µs. Running blocks cannot be
/// stopped. These are published figures; we have not measured them.
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

/// The host device. The profile includes the launch latency and the gaps between launches. The flag
/// is a word in shared memory, an evicted launch is removed from its ring without a system call,
/// and compute units continue with the next block at once.
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

/// All simulated devices.
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
        name: "mi100",
        about: "AMD MI100, 120 compute units (CDNA whitepaper); costs of the MI50, a guess",
        compute_units: 120,
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
        about: "the host device of the machine on which `atoll profile` ran, with its number of compute units",
        compute_units: 1,
        preempt_level: PreemptLevel::Deactivate,
        queues: 2,
        has_priorities: true,
        costs: HOST_COSTS,
    },
];

/// The device with this name.
pub fn device_by_name(name: &str) -> Option<&'static DeviceParameters> {
    DEVICES.iter().find(|device| device.name == name)
}
