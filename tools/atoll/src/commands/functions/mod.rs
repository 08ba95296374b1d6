//! `atoll fn`: functions deployed in a daemon.

mod alias;
mod deploy;
#[cfg(all(feature = "compiler", feature = "cuda"))]
mod from_trace;
pub(super) mod invoke;
pub(super) mod ls;
mod rm;
pub(super) mod source;

use anyhow::Result;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll fn deploy gemm.kg --name gemm --class real-time
  atoll fn from-trace 1.trace 2.trace 3.trace -o classify.kg
  atoll fn invoke gemm a=a.npy b=@9f86d0…0a08 --save out/
  atoll fn invoke gemm --then relu:y=x --keep
  atoll fn invoke gemm a=a.npy --async=first
  atoll fn alias classify resnet-v1=90 resnet-v2=10
  atoll fn ls --json
  atoll fn rm gemm";

/// Deploy functions to a running daemon, call them and chain them
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Deploy(deploy::Args),
    #[cfg(all(feature = "compiler", feature = "cuda"))]
    FromTrace(Box<from_trace::Args>),
    Ls(ls::Args),
    Rm(rm::Args),
    Alias(alias::Args),
    Invoke(invoke::Args),
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Deploy(args) => deploy::run(&args),
        #[cfg(all(feature = "compiler", feature = "cuda"))]
        Command::FromTrace(args) => from_trace::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Alias(args) => alias::run(&args),
        Command::Invoke(args) => invoke::run(&args),
    }
}
