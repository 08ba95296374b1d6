//! Limits of the scheduler, each with the reason for its value.

/// Tasks that may wait in one host queue. A task behind a thousand others waits longer than clients
/// do, and a thousand inputs are as much as a daemon should keep. Beyond the limit new tasks are
/// refused, which the client sees and can act on.
pub const HOST_QUEUE_TASKS_MAX: usize = 1024;

/// Launches that a device queue holds, unless the device says less. REEF measured that with 4 the
/// queue is emptied quickly and keeping it filled costs less than 0.3 %.
pub const DEVICE_QUEUE_CAPACITY_DEFAULT: u32 = 4;

/// Cost of a launch in nanoseconds, unless the caller states another: it is 2 to 4 µs on NVIDIA
/// devices. The shortest token is derived from it ([`crate::tokens`]).
pub const LAUNCH_NS_DEFAULT: u64 = 4_000;

/// Device queues of one device, across all lanes. A decision of a lane scans its queues, so their
/// number bounds the time of one decision.
pub const DEVICE_QUEUES_MAX: u32 = 64;

/// Device queues that the default lane leaves to other lanes, if the device has that many more than
/// the default lane needs.
pub const DEFAULT_LANE_QUEUES: u32 = 32;

/// Devices of one daemon: more than any machine has, and few enough that a report of all of them
/// stays small.
pub const DEVICES_MAX: usize = 64;

/// Steps of one task. ResNet-152 has about 200; the limit keeps counters well within 32 bits.
pub const TASK_STEPS_MAX: usize = 1 << 20;

/// Best-effort launches co-scheduled in one real-time launch. Each needs a slot in the parameters
/// of the padded launch, which has one slot itself, and is one more candidate to examine in a
/// decision.
pub const PADS_MAX: usize = 3;

/// Dkp modules in which the kernels of a tenant can share launches. There is at most one for each
/// register class of a device; AMD GPUs have the most classes, at most one for each of 16 waves.
pub const PADDING_MODULES_MAX: usize = 16;

/// Bytes for the arguments of all launches that share one launch, each aligned to 16. The
/// parameters of a padded launch hold these and a slot of 16 bytes for each launch, and have at
/// most 4 KiB, like those of any launch.
pub const SHARED_PARAMS_BYTES_MAX: u32 = 4096 - 16 * (PADS_MAX as u32 + 1);

/// How long launches of a task that is over (cancelled, past its deadline, failed) may run before
/// they are aborted. A preemptible launch exits at the next block boundary, which takes
/// microseconds. A launch that runs longer has a long or endless block, whose result is not needed.
pub const ABORT_GRACE_NS: u64 = 2_000_000;

/// How long an aborted launch may take to end before the device counts as hung. An abort takes a
/// millisecond; a busy machine may take a thousand times as long, but a device that takes even
/// longer is unusable.
pub const HANG_NS: u64 = 5_000_000_000;

/// Most perturbations of one task (see [`crate::perturb`]), so that a perturbed task ends with
/// every seed.
pub const PERTURBATIONS_PER_TASK_MAX: u32 = 64;

/// Longest time between two perturbations while launches are in flight, in nanoseconds. Short
/// compared with a model (milliseconds), so that one run is perturbed at several places; long
/// compared with a launch of a few blocks, so that it makes progress in between.
pub const PERTURBATION_INTERVAL_NS_MAX: u64 = 400_000;
