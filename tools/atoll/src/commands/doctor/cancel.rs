//! Measures how soon an endless kernel leaves the device after its invocation is cancelled.

use super::Finding;
use crate::engine::EngineArgs;
use anyhow::{Context, Result};
use atoll_engine::{Class, Engine, FunctionKey, FunctionOptions, InputTensor, InvocationRequest, InvokeError};
use atoll_kgraph::{Bundle, DType};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const KERNEL: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry forever(.param .u64 x, .param .u64 y)
{
$again:
	bra $again;
}
";

const MANIFEST: &str = r#"
name = "forever"
ptx = ["forever.ptx"]
[buffers]
x = { kind = "input", dtype = "u32", shape = [1] }
y = { kind = "output", dtype = "u32", shape = [1] }
[[step]]
kernel = "forever"
grid = [BLOCKS]
block = [32]
args = ["x", "y"]
reads = ["x"]
writes = ["y"]
"#;

/// Number of cancellations.
const ROUNDS: u32 = 10;
/// Time before the cancellation, so that the kernel is running.
const RUNS: Duration = Duration::from_millis(20);
/// Longest wait for the kernel to end; a device that cannot abort kernels exceeds it.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn finding(engine: &EngineArgs) -> Finding {
    match longest_cancellation(engine) {
        Ok(Some(longest)) => {
            let grace_ms = atoll_core::limits::ABORT_GRACE_NS / 1_000_000;
            let ms = longest.as_secs_f64() * 1e3;
            Finding::good(
                "cancel",
                format!(
                    "an endless kernel left the device within {ms:.1} ms of its cancellation, in each of {ROUNDS} \
                    trials; this includes the {grace_ms} ms in which a kernel may end by itself"
                ),
            )
        }
        Ok(None) => Finding::absent(
            "cancel",
            format!("an endless kernel was still running {} s after its cancellation", TIMEOUT.as_secs()),
            "this device cannot abort kernels; where supported, --time-limit bounds their run time",
        ),
        Err(error) => {
            Finding::bad("cancel", format!("failed: {error:#}"), "run with --log debug for details, or report this")
        }
    }
}

/// The longest time from the cancellation to the answer; `None` if an answer did not come in time.
fn longest_cancellation(engine: &EngineArgs) -> Result<Option<Duration>> {
    let engine = engine.start()?;
    load(&engine, 1)?;
    let times: Result<Vec<Option<Duration>>> = (0..ROUNDS).map(|_| cancel_once(&engine)).collect();
    Ok(times?.into_iter().collect::<Option<Vec<Duration>>>().and_then(|times| times.into_iter().max()))
}

/// Loads a function whose only kernel never ends, with `blocks` blocks.
pub(super) fn load(engine: &Engine, blocks: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (manifest, path) = (folder.path().join("forever.toml"), folder.path().join("forever.kg"));
    std::fs::write(folder.path().join("forever.ptx"), KERNEL)?;
    std::fs::write(&manifest, MANIFEST.replace("BLOCKS", &blocks.to_string()))?;
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&manifest, &path, &options, &Silent).context("cannot pack the kernel")?;
    let options = FunctionOptions {
        key: FunctionKey::local("forever"),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    };
    engine.handle().load(Bundle::open(&path)?, options)?;
    Ok(())
}

/// An invocation of it.
pub(super) fn request() -> InvocationRequest {
    InvocationRequest {
        function: FunctionKey::local("forever"),
        inputs: vec![InputTensor { dtype: Some(DType::U32), shape: vec![1], bytes: vec![0; 4] }],
        class: None,
        priority: 0,
        instance: None,
        deadline: None,
    }
}

fn cancel_once(engine: &Engine) -> Result<Option<Duration>> {
    let (send, answer) = channel();
    let id = engine.handle().submit(request(), Box::new(move |result| drop(send.send((result, Instant::now())))));
    std::thread::sleep(RUNS);
    let begin = Instant::now();
    engine.handle().cancel(id);
    match answer.recv_timeout(TIMEOUT) {
        Ok((Err(InvokeError::Cancelled), at)) => Ok(Some(at.saturating_duration_since(begin))),
        Ok((other, _)) => anyhow::bail!("an endless kernel returned {:?}", other.err()),
        Err(_) => Ok(None),
    }
}
