//! Tests whether running blocks are interrupted for more urgent ones: real-time requests compete
//! with an endless kernel that holds all compute units.

use super::cancel;
use crate::engine::EngineArgs;
use anyhow::Result;
use atoll_bench::commands::Workload;
use atoll_engine::Class;
use atoll_kgraph::Bundle;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

/// Number of real-time requests.
const TRIES: u32 = 20;
/// Pause before each request, so that the endless kernel occupies all compute units.
const RUNS: Duration = Duration::from_millis(10);

/// Blocks of the endless kernel: enough for every compute unit.
const BLOCKS: u32 = 512;
/// Longest wait for the endless kernel to end after its cancellation.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Result of the test.
pub(super) struct Interruption {
    pub(super) tries: u32,
    /// Requests that were answered while the endless kernel ran.
    pub(super) ran_beside: u32,
    pub(super) reexecuted_blocks: u64,
}

/// Sends real-time requests while an endless kernel runs. If its blocks are not interrupted, the
/// kernel's time limit ends it, and with it the test.
pub(super) fn probe(args: &EngineArgs, urgent: &Arc<Bundle>) -> Result<Interruption> {
    let engine = args.start()?;
    let handle = engine.handle();
    let urgent = Workload::load(&handle, "urgent", urgent, Class::RealTime, 0)?;
    urgent.ask()?;
    cancel::load(&engine, BLOCKS)?;
    let (end, ended) = channel();
    let forever = handle.submit(cancel::request(), Box::new(move |result| drop(end.send(result.map(drop)))));
    let mut ran_beside = 0;
    for _ in 0..TRIES {
        std::thread::sleep(RUNS);
        urgent.ask()?;
        if !matches!(ended.try_recv(), Err(TryRecvError::Empty)) {
            break;
        }
        ran_beside += 1;
    }
    handle.cancel(forever);
    // The engine counts the kernel's blocks when it ends.
    let _ = ended.recv_timeout(ENDS_WITHIN);
    let reexecuted_blocks = handle.statistics().reexecuted_blocks;
    engine.shutdown();
    Ok(Interruption { tries: TRIES, ran_beside, reexecuted_blocks })
}
