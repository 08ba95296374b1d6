//! Starts executors for these tests: the program is this test binary, which runs only its test
//! `executor_process`.

use super::suite::rig::Wanted;
use atoll_device_host::{HostConfig, KIND};
use atoll_executor::{ExecutorConfig, serve};
use std::time::Duration;

/// An executor with a host device.
pub fn config(Wanted { compute_units, queue_capacity }: Wanted) -> ExecutorConfig {
    let host = HostConfig {
        compute_units,
        queue_capacity,
        memory_bytes: 64 << 20,
        constants_bytes: 16 << 20,
        cpus: vec![],
        ..HostConfig::default()
    };
    ExecutorConfig {
        program: std::env::current_exe().expect("this program"),
        arguments: ["--exact", "executor_process", "--ignored", "--nocapture", "-q"].map(Into::into).into(),
        hang_after: Duration::from_secs(2),
        ..ExecutorConfig::new(host).expect("a configuration")
    }
}

/// The body of the test `executor_process`.
pub fn serve_and_exit() -> ! {
    serve(&[KIND]).expect("a daemon");
    std::process::exit(0)
}
