//! Starts an executor and reports which parts of its jail this machine does not support.

use super::Finding;
use crate::engine::EngineArgs;
use atoll_executor::{ExecutorConfig, ExecutorDevice};

pub(super) fn finding(engine: &EngineArgs) -> Finding {
    let answer = ExecutorConfig::new(engine.host_config())
        .and_then(ExecutorDevice::start)
        .and_then(|executor| executor.wait_ready());
    match answer {
        Ok(lacks) if lacks.is_empty() => Finding::good(
            "jail",
            "kernels run in processes without files, network, privileges and all but a few system calls",
        ),
        Ok(lacks) => Finding::absent(
            "jail",
            format!("kernels run in separate processes whose jail lacks {}", lacks.join(", ")),
            "system calls are still filtered; a Linux kernel with landlock (5.13 or later, enabled in its lsm= list) \
            adds a second barrier",
        ),
        Err(error) => Finding::absent(
            "jail",
            format!("none: {error}"),
            "`atoll serve` then needs --isolation none, which is for trusted functions only",
        ),
    }
}
