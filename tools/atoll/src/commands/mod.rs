//! One file per command.

pub(crate) mod auth;
pub(crate) mod compile;
pub(crate) mod completion;
pub(crate) mod device;
pub(crate) mod doctor;
pub(crate) mod functions;
pub(crate) mod future;
pub(crate) mod generate;
pub(crate) mod graph;
mod identity;
#[cfg(feature = "compiler")]
pub(crate) mod import;
pub(crate) mod infer;
pub(crate) mod inspect;
pub(crate) mod instance;
pub(crate) mod kernel;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod man;
pub(crate) mod models;
pub(crate) mod object;
#[cfg(feature = "compiler")]
pub(crate) mod pack;
pub(crate) mod profile;
pub(crate) mod ps;
#[cfg(feature = "compiler")]
pub(crate) mod ptx;
#[cfg(feature = "compiler")]
pub(crate) mod recompile;
#[cfg(feature = "cuda")]
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod sign;
pub(crate) mod stages;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod usage;

use crate::cli::Command;
use anyhow::Context;
use atoll_device::process::DeviceKind;
use atoll_server::LogControl;
use rustix::rand::{GetRandomFlags, getrandom};

/// The devices that this program can run in executors.
const DEVICES: &[DeviceKind] = &[
    atoll_device_host::KIND,
    #[cfg(feature = "cuda")]
    atoll_device_cuda::KIND,
    #[cfg(feature = "hip")]
    atoll_device_hip::KIND,
];

/// Runs a command.
pub(crate) fn run(command: Command, log: LogControl) -> anyhow::Result<()> {
    match command {
        Command::Compile(args) => compile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Sign(args) => sign::run(&args),
        Command::Verify(args) => sign::verify(&args),
        Command::Serve(args) => serve::run(args, log),
        Command::Infer(args) => infer::run(&args),
        #[cfg(feature = "cuda")]
        Command::Run(args) => run::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Functions(args) => functions::run(args),
        Command::Graph(args) => graph::run(args),
        Command::Future(args) => future::run(args),
        Command::Instance(args) => instance::run(args),
        Command::Lease(args) => lease::run(args),
        Command::Object(args) => object::run(args),
        Command::Auth(args) => auth::run(args),
        Command::Profile(args) => profile::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Device(args) => device::run(&args),
        Command::Session(args) => session::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(args),
        Command::Kernel(args) => kernel::run(args),
        #[cfg(feature = "compiler")]
        Command::Ptx(args) => ptx::run(args),
        #[cfg(feature = "compiler")]
        Command::Pack(args) => pack::run(&args),
        #[cfg(feature = "compiler")]
        Command::Import(args) => import::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => atoll_bench::commands::run(&args),
        Command::Completion(args) => completion::run(&args),
        Command::Man(args) => man::run(&args),
        #[cfg(feature = "compiler")]
        Command::Recompile(args) => recompile::run(&args),
        Command::Stages => stages::run(),
        Command::Executor => Ok(atoll_executor::serve(DEVICES)?),
    }
}

/// 128 random bits, in hexadecimal.
fn random_id() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).context("the system has no random numbers")?;
    Ok(bytes[..filled].iter().map(|byte| format!("{byte:02x}")).collect())
}
