//! Limits on what is read from files, with the reason for each number.

/// Bytes of a profile, a kernel schedule or a workload. The largest published file has a tenth of
/// this.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// Kernels of a model: a task cannot have more steps.
pub(crate) const KERNELS_MAX: usize = 1 << 16;

/// Blocks of a kernel: the limit of a GPU launch in one dimension.
pub(crate) const BLOCKS_MAX: u64 = (1 << 31) - 1;

/// Wave times of a kernel, one for each number of blocks per compute unit. No device holds more
/// than 32.
pub(crate) const WAVES_MAX: usize = 64;

/// Nanoseconds of a wave: ten minutes, longer than any kernel that can be scheduled.
pub(crate) const WAVE_NS_MAX: u64 = 600_000_000_000;

/// Clients of a workload.
pub(crate) const CLIENTS_MAX: usize = 1024;

/// Arrivals of a recorded load.
pub(crate) const TRACE_MAX: usize = 1 << 20;

/// Seconds of a workload: one day.
pub(crate) const SECONDS_MAX: f64 = 86_400.0;

/// Requests per second of one client.
pub(crate) const RATE_MAX: f64 = 1e6;
