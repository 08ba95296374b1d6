//! `atoll stages`, which the daemon starts to run the CPU stages of a tenant's graphs.

use anyhow::Result;
use atoll_executor::enter_stage_jail;
use atoll_stages::limits::PROCESS_BYTES;
use atoll_stages::serve;

/// The out-of-memory score of the process, the same as for executors: the system kills them before
/// the daemon.
const OUT_OF_MEMORY_SCORE: &str = "900";

/// Enters the jail and serves calls until the daemon closes the pipe.
///
/// # Errors
/// A pipe fails.
pub(crate) fn run() -> Result<()> {
    // Replaces the score inherited from the daemon. Ignores an error: without this file there is no
    // score.
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    let jail = enter_stage_jail(PROCESS_BYTES);
    let ready = jail.map_err(|reason| format!("this machine cannot confine CPU stages of tenants: {reason}"));
    Ok(serve(ready, std::io::stdin().lock(), std::io::stdout().lock())?)
}
