//! Whether running blocks are stopped for more urgent ones, by trying: a kernel that never ends
//! holds all compute units, and others ask for them.

use super::cancel;
use crate::engine::EngineArgs;
use anyhow::Result;
use atoll_bench::commands::Workload;
use atoll_engine::Class;
use atoll_kgraph::Bundle;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

/// Times somebody asks.
const TRIES: u32 = 20;
/// Long enough for the kernel that never ends to be everywhere.
const RUNS: Duration = Duration::from_millis(10);

/// Blocks of the kernel that never ends: enough for every compute unit.
const BLOCKS: u32 = 512;
/// How long the kernel may take to end when nobody wants it any more.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// What happened.
pub(super) struct Interruption {
    pub(super) tries: u32,
    /// Requests that were answered while the kernel ran.
    pub(super) ran_beside: u32,
    pub(super) reexecuted_blocks: u64,
}

/// Asks an urgent function, again and again, beside a kernel that never ends. Where that is not
/// stopped, its time limit ends it, and the trial.
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
    // With its end come its counts.
    let _ = ended.recv_timeout(ENDS_WITHIN);
    let reexecuted_blocks = handle.statistics().reexecuted_blocks;
    engine.shutdown();
    Ok(Interruption { tries: TRIES, ran_beside, reexecuted_blocks })
}
