//! Every bound of the scheduler, with the reason for the number.

/// Tasks that may wait in one host queue. A task waiting behind a thousand others waits longer than
/// any client does, and a thousand inputs are what a daemon can be asked to keep; beyond it a new
/// task is refused, which the client can see and act on.
pub const HOST_QUEUE_TASKS_MAX: usize = 1024;

/// Launches a device queue holds unless the device says less. REEF measured 4 as the point where
/// emptying the queue stays short and keeping it filled costs less than 0.3 %.
pub const DEVICE_QUEUE_CAPACITY_DEFAULT: u32 = 4;

/// Device queues of one device, over all lanes. The decisions of a lane scan its queues, so that
/// their number bounds the time of one decision.
pub const DEVICE_QUEUES_MAX: u32 = 64;

/// Device queues that the default lane leaves to others where the device has as many more than it
/// needs itself.
pub const DEFAULT_LANE_QUEUES: u32 = 32;

/// Devices of one daemon: more than any machine has, and few enough that a report of all of them
/// stays small.
pub const DEVICES_MAX: usize = 64;

/// Steps of one task. ResNet-152 has about 200; the bound keeps counters in 32 bits with room to
/// spare.
pub const TASK_STEPS_MAX: usize = 1 << 20;

/// Best-effort launches that run beside one real-time launch. Each is a slot in the launch's
/// parameters, of which it has one itself, and a candidate to be asked in every decision.
pub const PADS_MAX: usize = 3;

/// Bytes for the arguments of all launches that run beside each other, each beginning at a multiple
/// of 16: what the parameters of a launch hold besides a slot of 16 bytes for each.
pub const SHARED_PARAMS_BYTES_MAX: u32 = 512 - 16 * (PADS_MAX as u32 + 1);

/// How long launches of a task that is over (cancelled, past its deadline, failed) may go on before
/// they are aborted. A launch that can leave does so after the block it is in, which takes
/// microseconds; what is still there after this long is a long block or an endless one, and nobody
/// wants what it computes.
pub const ABORT_GRACE_NS: u64 = 2_000_000;

/// How long a launch that was aborted may take to end before the device counts as hung. Aborting
/// takes a millisecond; a machine so busy that it takes a thousand times that is possible, one that
/// takes longer is of no use.
pub const HANG_NS: u64 = 5_000_000_000;

/// Perturbations one task suffers at most (see [`crate::perturb`]), so that a perturbed task ends
/// however unlucky its seed is.
pub const PERTURBATIONS_PER_TASK_MAX: u32 = 64;

/// Longest time between two perturbations while launches are in flight. Short against a model
/// (milliseconds), so that one run is hit at several places, long against a launch of a few blocks,
/// so that it gets ahead between two hits.
pub const PERTURBATION_INTERVAL_NS_MAX: u64 = 400_000;
