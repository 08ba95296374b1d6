//! How soon a kernel that never ends leaves the device once nobody wants it, by trying.

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

/// Times the kernel is given up.
const ROUNDS: u32 = 10;
/// Long enough for it to be in the middle.
const RUNS: Duration = Duration::from_millis(20);
/// A device that cannot end kernels is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn finding(engine: &EngineArgs) -> Finding {
    match try_it(engine) {
        Ok(Some(longest)) => {
            let grace_ms = atoll_core::limits::ABORT_GRACE_NS / 1_000_000;
            let ms = longest.as_secs_f64() * 1e3;
            Finding::good(
                "cancel",
                format!(
                    "a kernel that never ends left the device {ms:.1} ms after it was given up, at most, {ROUNDS} times; {grace_ms} ms of that it has to end by itself"
                ),
            )
        }
        Ok(None) => Finding::absent(
            "cancel",
            format!("a kernel that never ends was still there {} s after it was given up", PATIENCE.as_secs()),
            "this device cannot end kernels; --time-limit bounds how long they hold it, where the device knows one",
        ),
        Err(error) => Finding::bad(
            "cancel",
            format!("failed: {error:#}"),
            "run with --log debug for more; otherwise please report it",
        ),
    }
}

/// The longest time from giving up to the answer; `None` if that did not come.
fn try_it(engine: &EngineArgs) -> Result<Option<Duration>> {
    let engine = engine.start()?;
    load(&engine, 1)?;
    let times: Result<Vec<Option<Duration>>> = (0..ROUNDS).map(|_| give_up(&engine)).collect();
    Ok(times?.into_iter().collect::<Option<Vec<Duration>>>().and_then(|times| times.into_iter().max()))
}

/// Loads a kernel that never ends, with so many blocks.
pub(super) fn load(engine: &Engine, blocks: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (manifest, path) = (folder.path().join("forever.toml"), folder.path().join("forever.kg"));
    std::fs::write(folder.path().join("forever.ptx"), KERNEL)?;
    std::fs::write(&manifest, MANIFEST.replace("BLOCKS", &blocks.to_string()))?;
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&manifest, &path, &options, &Silent).context("packing a kernel")?;
    let options = FunctionOptions {
        key: FunctionKey::local("forever"),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
    };
    engine.handle().load(Bundle::open(&path)?, options)?;
    Ok(())
}

/// A call of it.
pub(super) fn request() -> InvocationRequest {
    InvocationRequest {
        function: FunctionKey::local("forever"),
        inputs: vec![InputTensor { dtype: Some(DType::U32), shape: vec![1], bytes: vec![0; 4] }],
        class: None,
        priority: 0,
        deadline: None,
    }
}

fn give_up(engine: &Engine) -> Result<Option<Duration>> {
    let (send, answer) = channel();
    let id = engine.handle().submit(request(), Box::new(move |result| drop(send.send((result, Instant::now())))));
    std::thread::sleep(RUNS);
    let begin = Instant::now();
    engine.handle().cancel(id);
    match answer.recv_timeout(PATIENCE) {
        Ok((Err(InvokeError::Cancelled), at)) => Ok(Some(at.saturating_duration_since(begin))),
        Ok((other, _)) => anyhow::bail!("a kernel that never ends was answered with {:?}", other.err()),
        Err(_) => Ok(None),
    }
}
