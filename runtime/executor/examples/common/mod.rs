//! Shared by the examples that measure: the conformance suite's rig on a host device, and the time
//! stamp counter.
#![allow(dead_code, unreachable_pub, reason = "each example uses its part")]

#[path = "../../../device/tests/suite/rig.rs"]
pub mod rig;

use atoll_device::Device;
use atoll_device_host::{HostConfig, HostDevice, KIND};
use atoll_executor::{ExecutorConfig, ExecutorDevice, serve};
use rig::{Rig, kernels};
use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

/// The numbers on the command line, in order.
pub fn arguments() -> Vec<u32> {
    std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect()
}

/// Serves as an executor and exits, if an example started itself as one. Call it first.
pub fn serve_if_executor() {
    if std::env::args().nth(1).as_deref() == Some("executor") {
        serve(&[KIND]).expect("a parent that drives it");
        std::process::exit(0);
    }
}

/// Whether the device runs in a process of its own: `--executor`.
fn in_executor() -> bool {
    std::env::args().any(|argument| argument == "--executor")
}

/// Where the device runs, for the head of a table.
pub fn place() -> &'static str {
    if in_executor() { "in an executor" } else { "in this process" }
}

/// A host device with the suite's kernels.
pub fn start(config: HostConfig) -> Rig {
    let device: Box<dyn Device> = match in_executor() {
        true => Box::new(ExecutorConfig::new(config).and_then(ExecutorDevice::start).expect("an executor")),
        false => Box::new(HostDevice::start(config).expect("a host device")),
    };
    Rig::new(device, kernels())
}

/// The time stamp counter, which the kernels read too.
pub fn now() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction.
    unsafe { _rdtsc() }
}

/// Its frequency.
pub fn cycles_per_us() -> f64 {
    let (start, cycles) = (Instant::now(), now());
    std::thread::sleep(Duration::from_millis(100));
    (now() - cycles) as f64 / start.elapsed().as_micros() as f64
}
