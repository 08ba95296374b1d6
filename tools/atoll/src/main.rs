//! `atoll`: compile, inspect, serve, call and measure models.
//!
//! There is one file per command in `commands/`. The commands under `bench`, and helpers shared
//! with the others, are in `tools/bench`. A command parses its arguments, calls the libraries, and
//! prints the result; decisions belong to the libraries.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for a mistake in the command line or in a file
//! that the user supplied.
//!
//! Start reading in `cli.rs`.
//!
//! # Invariants
//!
//! - Standard output has the result only; with `--json` it is one JSON value. Logs, progress, notes
//!   and errors go to standard error.
//! - If the command line or a file of the user is wrong, the command names the argument or the
//!   file, and exits with 2 (`failure::users`).
//! - A closed standard output ends the program without an error.
//! - Every command has an example in its help. The command line and the fields of JSON outputs are
//!   compared with their pages in `docs/reference` by a test.

mod cli;
mod commands;
mod control;
mod expected;
mod interrupt;
mod logging;

#[cfg(feature = "compiler")]
use atoll_bench::recompiler;
use atoll_bench::{
    artifact, cache, client, compiler, credentials, device_name, drawing, engine, failure, grid, invoker, npy, output,
    profiler, random, samples, symbols, tensors,
};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let result = logging::start(&cli).and_then(|log| commands::run(cli.command, log));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
