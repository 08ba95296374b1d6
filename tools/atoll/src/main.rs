//! `atoll`: compile models, look at them, serve them, ask them, measure them.
//!
//! One file per command in `commands/`. A command reads its arguments into what they mean, does its work through the libraries, and prints; nothing here decides
//! anything that a library could decide.
//!
//! Exit codes: 0 if all went well, 1 if something failed, 2 if the command line or a file that the user gave is at fault.

mod artifact;
mod cache;
mod cli;
mod client;
mod commands;
mod compiler;
mod control;
mod devices;
mod drawing;
mod engine;
mod expected;
mod failure;
mod invoker;
mod logging;
mod npy;
mod output;
mod profiler;
mod random;
mod samples;
mod tensors;

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
