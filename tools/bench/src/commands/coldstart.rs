//! `atoll bench coldstart`

use crate::engine::EngineArgs;
use crate::invoker::{invoke, load, request};
use crate::output::{Align, Table, parse_bytes};
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::{Context, Result};
use atoll_engine::{Class, EngineHandle, FunctionKey};
use atoll_kgraph::Bundle;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Location of the constants when the request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// In a file that was never opened, and has to be checked first.
    New,
    Disk,
    Host,
    Device,
}

const TIERS: [(Tier, &str); 4] = [
    (Tier::New, "new, from disk"),
    (Tier::Disk, "from disk"),
    (Tier::Host, "from host memory"),
    (Tier::Device, "warm"),
];

const EXAMPLES: &str = "\
Examples:
  atoll bench coldstart
  atoll bench coldstart --bytes 1G --count 5 --json";

/// Measure the first answer of a new function, and of one with its constants on disk, in host
/// memory and on the device; beside a plain copy of the same bytes
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Bytes of the function's constants
    #[arg(long, default_value = "100M", value_parser = parse_bytes)]
    bytes: u64,

    /// Number of cold starts to measure per tier
    #[arg(long, default_value_t = NonZeroU32::new(10).expect("not zero"))]
    count: NonZeroU32,

    /// Folder for the function's file, on the disk to measure [default: the folder for temporary
    /// files]
    #[arg(long)]
    folder: Option<PathBuf>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Times of one tier.
struct Measured {
    name: &'static str,
    /// Time to the answer: from opening the file (new), from loading the function (disk), or from
    /// the request (others).
    start: Distribution,
    /// Time of a plain copy of the same bytes from the same tier.
    copy: Distribution,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let folder = match &args.folder {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let bundle = function(folder.path(), args.bytes)?;
    let engine = args.engine.start()?;
    let handle = engine.handle();
    let mut times = TIERS.map(|_| (Vec::new(), Vec::new()));
    // Tiers alternate, so that disturbances affect all of them.
    for _ in 0..args.count.get() {
        for ((tier, _), (starts, copies)) in TIERS.iter().zip(&mut times) {
            copies.push(copy(&bundle, *tier)?);
            starts.push(start(&handle, &bundle, *tier)?);
        }
    }
    engine.shutdown();
    let measured: Vec<Measured> = TIERS
        .iter()
        .zip(times)
        .map(|((_, name), (starts, copies))| Measured {
            name,
            start: Distribution::of(&starts),
            copy: Distribution::of(&copies),
        })
        .collect();
    findings(args, &measured)
}

fn findings(args: &Args, measured: &[Measured]) -> Result<Findings> {
    let multiple = |m: &Measured| m.start.p50_ms / m.copy.p50_ms;
    let one =
        |m: &Measured| (m.name.replace(' ', "_"), json!({ "start": m.start, "copy": m.copy, "multiple": multiple(m) }));
    let report = json!({ "bytes": args.bytes, "tiers": measured.iter().map(one).collect::<serde_json::Map<_, _>>() });
    let mut table = Table::new([
        ("ms", Align::Left),
        ("p50", Align::Right),
        ("max", Align::Right),
        ("copy p50", Align::Right),
        ("copy max", Align::Right),
        ("multiple", Align::Right),
    ]);
    for m in measured {
        let [p50, max, copy_p50, copy_max] =
            [m.start.p50_ms, m.start.max_ms, m.copy.p50_ms, m.copy.max_ms].map(|ms| format!("{ms:.1}"));
        table.row([m.name.into(), p50, max, copy_p50, copy_max, format!("{:.2}", multiple(m))]);
    }
    Findings::new(&report, table)
}

/// The first answer with the constants in a tier. For a new function it includes everything, even
/// the check of the file's digests. A known function has been checked before, so only loading it
/// remains. The function is unloaded afterwards.
fn start(handle: &EngineHandle, path: &Path, tier: Tier) -> Result<Duration> {
    let bring = |bundle: &Arc<Bundle>| load(handle, bundle, "cold", Class::BestEffort);
    let ask = || invoke(handle, request("cold", &[], None)).map(drop);
    let known = if tier == Tier::New {
        drop_from_memory(path)?;
        None
    } else {
        let bundle = Bundle::open(path)?;
        bundle.constants();
        Some(bundle)
    };
    if tier == Tier::Disk
        && let Some(bundle) = &known
    {
        anyhow::ensure!(bundle.page_out(), "the system did not page out the constants");
    }
    if tier == Tier::Device
        && let Some(bundle) = &known
    {
        bring(bundle)?;
        ask()?;
    }
    let begin = Instant::now();
    match &known {
        Some(_) if tier == Tier::Device => {}
        Some(bundle) => drop(bring(bundle)?),
        None => drop(bring(&Bundle::open(path)?)?),
    }
    ask()?;
    let took = begin.elapsed();
    handle.unload(&FunctionKey::local("cold"))?;
    Ok(took)
}

/// Copies the file's bytes into new memory. This is also the reference for warm starts, although
/// these copy nothing.
fn copy(path: &Path, tier: Tier) -> Result<Duration> {
    let bytes = std::fs::metadata(path)?.len();
    if matches!(tier, Tier::New | Tier::Disk) {
        drop_from_memory(path)?;
    }
    let mut file = File::open(path)?;
    let begin = Instant::now();
    let mut content = Vec::with_capacity(bytes as usize);
    file.read_to_end(&mut content)?;
    let took = begin.elapsed();
    // Uses the result, so that the copy is not optimized away.
    anyhow::ensure!(content.len() as u64 == bytes, "the file changed");
    Ok(took)
}

/// Drops a file from the page cache.
fn drop_from_memory(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed).context("the system did not drop the file from the page cache")
}

/// A function with `bytes` bytes of constants, of which it reads one word.
fn function(folder: &Path, bytes: u64) -> Result<PathBuf> {
    let words = bytes.div_ceil(4).max(1);
    std::fs::write(folder.join("first.ptx"), include_str!("first.ptx"))?;
    let mut constant = std::io::BufWriter::new(File::create(folder.join("c.bin"))?);
    for word in 0..words {
        // Arbitrary bytes that differ.
        constant.write_all(&(word as u32).wrapping_mul(0x9e37_79b9).to_le_bytes())?;
    }
    constant.flush()?;
    let manifest = folder.join("cold.toml");
    let text = format!(
        "name = \"cold\"\nptx = [\"first.ptx\"]\n[buffers]\nc = {{ kind = \"const\", dtype = \"u32\", shape = \
        [{words}], file = \"c.bin\" }}\n\
         y = {{ kind = \"output\", dtype = \"u32\", shape = [1] }}\n[[step]]\nkernel = \"first\"\ngrid = [1]\nblock = \
         [32]\nargs = [\"c\", \"y\"]\n"
    );
    std::fs::write(&manifest, text)?;
    let bundle = folder.join("cold.kg");
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&manifest, &bundle, &options, &Silent)?;
    std::fs::remove_file(folder.join("c.bin"))?;
    Ok(bundle)
}
