//! Effects of a fault on its own process: which calls fail afterwards and with which error, and
//! whether resetting the context helps.

use crate::bench::Bench;
use crate::device::{DeviceWords, ProbeError};
use crate::report::{Findings, Row};
use atoll_cuda::{Arg, Context, Module, Stream};
use std::fmt::Display;
use std::sync::Arc;

const FAULT_PTX: &str = include_str!("../../kernels/fault.ptx");

/// An address in the first page, which is never mapped.
const UNMAPPED_ADDRESS: u64 = 16;

/// Causes a fault, then tries typical recovery steps.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    increment(&bench.context)?;
    let module = Module::load(&bench.context, FAULT_PTX.as_bytes())?;
    let stream = bench.stream(false)?;
    module.kernel("store_to")?.launch(&stream, 1, 1, &[Arg::U64(UNMAPPED_ADDRESS)])?;
    found.push(Row::text("faulting kernel", "synchronise", outcome(stream.synchronize())));
    found.push(Row::text("after the fault", "synchronise again", outcome(bench.context.synchronize())));
    found.push(Row::text("after the fault", "allocate", outcome(DeviceWords::new(&bench.context, 1).map(drop))));
    found.push(Row::text(
        "after the fault",
        "load a module",
        outcome(Module::load(&bench.context, FAULT_PTX.as_bytes()).map(drop)),
    ));
    drop((module, stream));
    found.push(Row::text("after the fault", "reset the context", outcome(bench.context.reset())));
    let entered = bench.context.gpu().enter();
    found.push(Row::text(
        "after the reset",
        "enter the context",
        outcome(entered.as_ref().map(|_| ()).map_err(Clone::clone)),
    ));
    found.push(Row::text(
        "after the reset",
        "run a kernel",
        outcome(entered.map_err(ProbeError::from).and_then(|context| increment(&context))),
    ));
    Ok(())
}

/// Runs a kernel that increments a word, to test whether the context works.
pub(crate) fn increment(context: &Arc<Context>) -> Result<(), ProbeError> {
    let module = Module::load(context, FAULT_PTX.as_bytes())?;
    let word = DeviceWords::new(context, 1)?;
    let stream = Stream::new(context, 0)?;
    module.kernel("increment")?.launch(&stream, 1, 1, &[Arg::U64(word.address())])?;
    stream.synchronize()?;
    match word.read()?.first() {
        Some(1) => Ok(()),
        _ => Err(ProbeError::Miscounted),
    }
}

fn outcome<E: Display>(result: Result<(), E>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "works".to_owned())
}
