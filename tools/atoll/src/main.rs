//! `atoll`: compile models, look at them, serve them, ask them, measure them.
//!
//! One file per command in `commands/`; those that measure, and what they share with the others,
//! are in `tools/bench`. A command reads its arguments into what they mean, does its work through
//! the libraries, and prints; nothing here decides anything that a library could decide.
//!
//! Exit codes: 0 if all went well, 1 if something failed, 2 if the command line or a file that the
//! user gave is at fault.

mod cli;
mod commands;
mod control;
mod expected;
mod logging;

use atoll_bench::{
    artifact, cache, client, compiler, device_name, drawing, engine, failure, invoker, npy, output, profiler, random,
    samples, symbols, tensors,
};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let result = logging::start(&cli).and_then(|()| commands::run(cli.command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
