//! Whether code of others can be kept in a process of its own: one is started, and says what its
//! jail lacks.

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
            format!("kernels run in processes of their own, which lack {}", lacks.join(", ")),
            "system calls are kept from them all the same; a kernel with landlock (5.13 or later, in its lsm= list) adds a second wall",
        ),
        Err(error) => Finding::absent(
            "jail",
            format!("none: {error}"),
            "without it `atoll serve` needs --isolation none, which is for functions that you trust",
        ),
    }
}
