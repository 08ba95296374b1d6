//! Measures the compile time of the host target for each kernel of the corpus, at the first block
//! shape of its case, from PTX text to native code.
//!
//! ```text
//! cargo run --release -p atoll-workbench --example compile_time [ROUNDS]
//! ```
//!
//! A single thread compiles. The result is the best CPU time of each kernel's rounds (default 3),
//! so that other programs affect it little.

use atoll_ptx::Module;
use atoll_target_host::{CpuLevel, KernelShape, Options, compile};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The relevant fields of a case.
#[derive(Deserialize)]
struct Case {
    name: String,
    file: String,
    launches: Vec<[Vec<u32>; 2]>,
}

#[derive(Deserialize)]
struct Cases {
    case: Vec<Case>,
}

/// One kernel of one PTX file, with its best times.
struct Sample {
    label: String,
    /// Lines of the file, divided by its number of kernels.
    lines: usize,
    read: Duration,
    compile: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(3), |n| n.parse::<u32>())?.max(1);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kernels");
    let cases: Cases = toml::from_str(&std::fs::read_to_string(corpus.join("cases.toml"))?)?;
    let level = CpuLevel::of_this_machine().ok_or("no native code for this machine")?;
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(corpus.join("ptx"))?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.sort();
    let (mut samples, mut refused) = (Vec::new(), Vec::new());
    for case in &cases.case {
        let prefix = format!("{}.", case.file);
        for path in files.iter().filter(|p| name(p).starts_with(&prefix)) {
            match measure(case, path, level, rounds) {
                Ok(sample) => samples.push(sample),
                Err(error) => refused.push(format!("{} ({}): {error}", case.name, name(path))),
            }
        }
    }
    report(&mut samples, &refused);
    Ok(())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// CPU time of this process.
fn on_processor() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measure(case: &Case, path: &Path, level: CpuLevel, rounds: u32) -> Result<Sample, Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let sizes = &case.launches.first().ok_or("the case has no launch")?[1];
    let block = [0, 1, 2].map(|axis| sizes.get(axis).copied().unwrap_or(1));
    let shape = KernelShape { name: case.name.as_str().into(), block };
    let options = Options { threads: 1, ..Options::default() };
    let (mut read, mut compiled) = (Duration::MAX, Duration::MAX);
    let mut kernels = 1;
    for _ in 0..rounds {
        let started = on_processor();
        let module: Module = atoll_ptx::parse(&text).map_err(|e| e.to_string())?;
        read = read.min(on_processor() - started);
        let started = on_processor();
        compile(&module, std::slice::from_ref(&shape), level, &options)?;
        compiled = compiled.min(on_processor() - started);
        kernels = module.kernels().count().max(1);
    }
    Ok(Sample {
        label: format!("{} ({})", case.name, name(path)),
        lines: text.lines().count() / kernels,
        read,
        compile: compiled,
    })
}

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
fn report(samples: &mut [Sample], refused: &[String]) {
    println!("{} kernels, {} refused", samples.len(), refused.len());
    refused.iter().for_each(|line| println!("  refused: {line}"));
    let Some(last) = samples.len().checked_sub(1) else { return };
    let milliseconds = |d: Duration| d.as_secs_f64() * 1e3;
    println!("{:<16} {:>8} {:>8} {:>8} {:>8}  ms", "", "min", "p50", "p90", "max");
    for (what, time) in
        [("read the file", (|s| s.read) as fn(&Sample) -> Duration), ("compile a kernel", |s| s.compile)]
    {
        samples.sort_by_key(time);
        let [min, p50, p90, max] = [0, last / 2, last * 9 / 10, last].map(|at| milliseconds(time(&samples[at])));
        println!("{what:<16} {min:>8.2} {p50:>8.2} {p90:>8.2} {max:>8.2}");
    }
    for sample in [&samples[0], &samples[last / 2], &samples[last * 9 / 10], &samples[last]] {
        println!("  {:>8.2} ms  {:>4} lines  {}", milliseconds(sample.compile), sample.lines, sample.label);
    }
}
