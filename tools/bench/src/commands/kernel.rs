//! `atoll bench kernel`

use super::kernels::Given::{Bytes, Floats, Int};
use super::kernels::{KERNELS, MeasuredKernel, PTX};
use crate::failure::{OrUserError, user_error};
use crate::output::{Align, Table, milliseconds};
use crate::random::Random;
use crate::report::Findings;
use anyhow::{Context, Result};
use atoll_workbench::{Arg, Buffer, HostBench, HostOptions, Kernel, KernelDevice, Launch};
use regex::Regex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench kernel
  atoll bench kernel --only gemm --rounds 5 --json
  atoll bench kernel --python ~/.cache/atoll/venv/bin/python";

/// The common source of the kernels and of the peers' kernels.
const SOURCE: &str = include_str!("kernels/kernels.c");
const PEERS: &str = include_str!("kernels/peers.py");

/// Time for which a kernel is repeated per round.
const ROUND: Duration = Duration::from_millis(400);

/// Measure PTX kernels on the host device, beside OpenBLAS and pocl
///
/// There is one row per kernel, number of threads and peer. pocl runs the same source as OpenCL C.
/// The peers need Python with numpy; pocl also needs pyopencl and an installed driver. Without them
/// their columns are empty.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Measure only kernels whose names match this regular expression
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,

    /// Number of alternating rounds; the best one counts
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroU32::new(3).expect("not zero"))]
    rounds: NonZeroU32,

    /// Python with numpy and pyopencl [default: that of $ATOLL_VENV, else python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,

    /// Do not measure peers
    #[arg(long)]
    no_peers: bool,
}

/// One row.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    device: &'static str,
    threads: u32,
    unit: &'static str,
    value: f64,
    peer: Option<&'static str>,
    peer_value: Option<f64>,
    /// Atoll's value over the peer's; higher is better.
    ratio: Option<f64>,
    /// Milliseconds from PTX to loaded native code.
    compile_ms: f64,
}

/// Seconds by kernel.
type Seconds = BTreeMap<String, f64>;

/// Output of peers.py.
#[derive(Debug, Default, Deserialize)]
struct Peers {
    openblas: Option<Seconds>,
    pocl: Option<Seconds>,
    notes: Vec<String>,
}

/// Best times with one number of threads.
#[derive(Debug, Default)]
struct Best {
    ours: Seconds,
    compile: Seconds,
    peers: Peers,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let wanted = |bench: &&MeasuredKernel| args.only.as_ref().is_none_or(|only| only.is_match(bench.name));
    let benches: Vec<&MeasuredKernel> = KERNELS.iter().filter(wanted).collect();
    if benches.is_empty() {
        let names = KERNELS.map(|k| k.name).join(", ");
        return Err(user_error(format!("--only matches no kernel; the kernels are {names}")));
    }
    let all = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let threads: Vec<u32> = if all > 1 { vec![1, all] } else { vec![1] };
    let mut best: BTreeMap<u32, Best> = BTreeMap::new();
    for _ in 0..args.rounds.get() {
        for &threads in &threads {
            let best = best.entry(threads).or_default();
            measure(&benches, threads, best)?;
            if !args.no_peers {
                best.peers.take_better(ask_peers(args, threads)?);
            }
        }
    }
    let rows: Vec<Row> =
        best.iter().flat_map(|(threads, best)| rows(&benches, *threads, best)).chain(scaling(&best)).collect();
    for note in best.values().flat_map(|b| &b.peers.notes).collect::<std::collections::BTreeSet<_>>() {
        writeln!(std::io::stderr(), "note: {note}")?;
    }
    Findings::new(&rows, table(&rows))
}

/// Runs each kernel for a while and keeps its best time.
fn measure(benches: &[&MeasuredKernel], threads: u32, best: &mut Best) -> Result<()> {
    let module = atoll_ptx::parse(PTX).context("cannot parse the measured kernels")?;
    let mut host =
        HostBench::start(HostOptions { compute_units: threads, memory_bytes: 256 << 20, ..HostOptions::default() })?;
    for bench in benches {
        let (mut buffers, args) = arguments(bench);
        let launch = Launch { grid: bench.grid, shared_bytes: 0, args };
        let start = Instant::now();
        let kernel = host.load(&Kernel { module: &module, entry: bench.entry, report: None, block: bench.block })?;
        keep_less(&mut best.compile, bench.name, start.elapsed().as_secs_f64());
        let once = host.launch(&kernel, &launch, &mut buffers, 1)?.times[0];
        let repeat = (ROUND.as_secs_f64() / once.as_secs_f64().max(1e-6)).clamp(5.0, 20_000.0) as u32;
        let times = host.launch(&kernel, &launch, &mut buffers, repeat)?.times;
        let least = times.into_iter().min().unwrap_or_default();
        keep_less(&mut best.ours, bench.name, least.as_secs_f64());
        host.unload(kernel);
    }
    Ok(())
}

fn keep_less(seconds: &mut Seconds, name: &str, value: f64) {
    let kept = seconds.entry(name.to_owned()).or_insert(f64::INFINITY);
    *kept = kept.min(value);
}

/// Random buffers and arguments of a launch.
fn arguments(kernel: &MeasuredKernel) -> (Vec<Buffer>, Vec<Arg>) {
    let mut random = Random::new(1);
    let mut buffers = Vec::new();
    let mut memory = |bytes| {
        buffers.push(Buffer { name: format!("buffer {}", buffers.len()), bytes, writable: true });
        Arg::buffer(buffers.len() - 1)
    };
    let args = kernel.args.iter().map(|given| match given {
        Floats(count) => memory((0..*count).flat_map(|_| (random.normal() as f32).to_le_bytes()).collect()),
        Bytes(count) => memory((0..*count).map(|_| random.next_u64() as u8).collect()),
        Int(value) => Arg::Value(value.to_le_bytes().to_vec()),
    });
    let args = args.collect();
    (buffers, args)
}

impl Peers {
    fn take_better(&mut self, other: Peers) {
        for (mine, theirs) in [(&mut self.openblas, other.openblas), (&mut self.pocl, other.pocl)] {
            for (name, value) in theirs.into_iter().flatten() {
                keep_less(mine.get_or_insert_default(), &name, value);
            }
        }
        self.notes.extend(other.notes);
    }

    /// The peers that ran a kernel, with their seconds.
    fn of(&self, name: &str) -> Vec<(&'static str, f64)> {
        let find = |peer, seconds: &Option<Seconds>| Some((peer, *seconds.as_ref()?.get(name)?));
        [find("openblas", &self.openblas), find("pocl", &self.pocl)].into_iter().flatten().collect()
    }
}

fn ask_peers(args: &Args, threads: u32) -> Result<Peers> {
    let folder = tempfile::tempdir()?;
    let (script, source) = (folder.path().join("peers.py"), folder.path().join("kernels.cl"));
    std::fs::write(&script, PEERS)?;
    std::fs::write(&source, SOURCE)?;
    let in_venv = std::env::var_os("ATOLL_VENV").map(|venv| Path::new(&venv).join("bin/python"));
    let python = args.python.clone().or(in_venv).unwrap_or_else(|| "python3".into());
    let output =
        Command::new(&python).arg(&script).arg(&source).arg(threads.to_string()).stderr(Stdio::piped()).output();
    let output = output
        .with_context(|| format!("cannot run {}; choose a Python with --python, or use --no-peers", python.display()))
        .or_user_error()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("cannot measure the peers: {}", message.trim().lines().last().unwrap_or("no message"));
    }
    serde_json::from_slice(&output.stdout).context("invalid output of the peers")
}

fn rows(benches: &[&MeasuredKernel], threads: u32, best: &Best) -> Vec<Row> {
    let mut rows = Vec::new();
    for bench in benches {
        let value = bench.work / best.ours[bench.name];
        let row = |peer: Option<(&'static str, f64)>| {
            let peer_value = peer.map(|(_, seconds)| bench.work / seconds);
            Row {
                name: bench.name.into(),
                device: "host",
                threads,
                unit: bench.unit,
                value,
                peer: peer.map(|p| p.0),
                peer_value,
                ratio: peer_value.map(|peer| value / peer),
                compile_ms: milliseconds(Duration::from_secs_f64(best.compile[bench.name])),
            }
        };
        let peers = best.peers.of(bench.name);
        rows.extend(peers.iter().map(|peer| row(Some(*peer))));
        if peers.is_empty() {
            rows.push(row(None));
        }
    }
    rows
}

/// Speed-up of all threads over one, beside that of OpenBLAS.
fn scaling(best: &BTreeMap<u32, Best>) -> Option<Row> {
    const NAME: &str = "gemm_f32_512";
    let (one, (&threads, all)) = (best.get(&1)?, best.last_key_value().filter(|(threads, _)| **threads > 1)?);
    let value = one.ours.get(NAME)? / all.ours.get(NAME)?;
    let theirs = |best: &Best| best.peers.openblas.as_ref()?.get(NAME).copied();
    let peer_value = theirs(one).zip(theirs(all)).map(|(one, all)| one / all);
    Some(Row {
        name: format!("{NAME}_scaling"),
        device: "host",
        threads,
        unit: "x",
        value,
        peer: peer_value.map(|_| "openblas"),
        peer_value,
        ratio: peer_value.map(|peer| value / peer),
        compile_ms: milliseconds(Duration::from_secs_f64(all.compile[NAME])),
    })
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new([
        ("name", Align::Left),
        ("threads", Align::Right),
        ("unit", Align::Left),
        ("value", Align::Right),
        ("peer", Align::Left),
        ("peer's", Align::Right),
        ("ratio", Align::Right),
        ("compile ms", Align::Right),
    ]);
    let number = |value: Option<f64>| value.map_or("–".into(), |v| format!("{v:.2}"));
    for row in rows {
        table.row([
            row.name.clone(),
            row.threads.to_string(),
            row.unit.into(),
            number(Some(row.value)),
            row.peer.unwrap_or("–").into(),
            number(row.peer_value),
            number(row.ratio),
            format!("{:.1}", row.compile_ms),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measured_kernel_is_in_the_module_with_its_parameters() {
        let module = atoll_ptx::parse(PTX).unwrap();
        for bench in &KERNELS {
            let kernel = module.function(bench.entry).unwrap_or_else(|| panic!("{}", bench.entry));
            assert_eq!(kernel.params.len(), bench.args.len(), "{}", bench.name);
        }
    }

    #[test]
    fn rows_name_their_peers() {
        let bench = &KERNELS[0];
        let seconds = |s: f64| Seconds::from([(bench.name.to_owned(), s)]);
        let peers = Peers { openblas: Some(seconds(0.5)), pocl: Some(seconds(2.0)), notes: vec![] };
        let best = Best { ours: seconds(1.0), compile: seconds(0.02), peers };
        let found = rows(&[bench], 1, &best);
        assert_eq!(
            found.iter().map(|r| (r.peer, r.ratio)).collect::<Vec<_>>(),
            [(Some("openblas"), Some(0.5)), (Some("pocl"), Some(2.0))]
        );
        let alone = rows(&[bench], 1, &Best { peers: Peers::default(), ..best });
        assert_eq!((alone.len(), alone[0].peer), (1, None));
    }
}
