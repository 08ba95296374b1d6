//! `atoll trace cuda`

use crate::commands::run::{Started, end, options_of, run_privately};
use crate::failure::OrUserError;
use crate::output::{bytes, counted};
use anyhow::{Context, Result, bail};
use atoll_session::Terms;
use atoll_session_server::{Libraries, Options, Recordings};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  atoll trace cuda -o 1.trace -- ./classify image1
  atoll trace cuda --memory-mib 512 -- python3 classify.py

A recording has the program's calls, all data that it copies to the device and back, and its modules. `atoll \
fn from-trace` makes a function of several recordings. The exit code is the program's.";

/// Record the CUDA calls of a program with their data, for `atoll fn from-trace`. The program runs
/// as with `atoll run --private`
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    program: Vec<OsString>,

    /// File to write. Further sessions, of child processes, are written into FILE.2, FILE.3, …
    #[arg(short, long, value_name = "FILE", default_value = "cuda.trace")]
    output: PathBuf,

    /// The CUDA driver [default: the installed one, or else the stand-in driver in this program's
    /// folder, which runs kernels on the CPU]
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,

    /// Ordinal of the device
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: u32,

    /// Device memory of the program in MiB [default: half of what is free]
    #[arg(long, value_name = "N")]
    memory_mib: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    // Creates the file first, so that an invalid path fails before the program runs.
    let recordings = Recordings::create(&args.output);
    let recordings = recordings.with_context(|| format!("cannot write {}", args.output.display())).or_user_error()?;
    let recordings = Arc::new(recordings);
    let options = options_of(args.driver.as_deref(), args.ordinal, args.memory_mib)?;
    let options = Options { recordings: Some(recordings.clone()), ..options };
    let started = Started { program: &args.program, terms: Terms::default(), libraries: Libraries::default() };
    let (status, ended) = run_privately(options, &started)?;
    for why in ended.iter().filter_map(|ended| ended.why.as_ref()) {
        tracing::warn!("a session ended: {why}");
    }
    if let Some(failure) = recordings.failures().first() {
        bail!("{failure}");
    }
    let files = recordings.files();
    if files.is_empty() {
        bail!("the program began no CUDA session, so {} is empty", args.output.display());
    }
    let sizes: u64 = files.iter().map(|file| file.metadata().map_or(0, |metadata| metadata.len())).sum();
    let text =
        format!("recorded {} into {}, {}\n", counted(files.len(), "session"), args.output.display(), bytes(sizes));
    // Standard output belongs to the program.
    let _ = std::io::stderr().write_all(text.as_bytes());
    end(status)
}
