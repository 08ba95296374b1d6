//! What a fault leaves behind in its own process: which calls fail afterwards and with what, and whether a reset of the context helps.

use crate::bench::Bench;
use crate::driver::{Arg, CudaError, DeviceWords, Module};
use crate::report::{Findings, Row};

const FAULT_PTX: &str = include_str!("../../kernels/fault.ptx");

/// An address in the first page, which is never mapped.
const NOBODYS_ADDRESS: u64 = 16;

/// Faults, then tries what a program might try.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), CudaError> {
    increment(bench)?;
    let module = Module::load(&bench.driver, FAULT_PTX)?;
    let stream = bench.stream(false)?;
    module.kernel("store_to")?.launch(&stream, 1, 1, &[Arg::U64(NOBODYS_ADDRESS)])?;
    found.push(Row::text("faulting kernel", "synchronise", outcome(stream.synchronize())));
    found.push(Row::text("after the fault", "synchronise again", outcome(bench.driver.synchronize())));
    found.push(Row::text("after the fault", "allocate", outcome(DeviceWords::new(&bench.driver, 1).map(drop))));
    found.push(Row::text("after the fault", "load a module", outcome(Module::load(&bench.driver, FAULT_PTX).map(drop))));
    drop((module, stream));
    found.push(Row::text("after the fault", "reset the context", outcome(bench.driver.reset_context())));
    found.push(Row::text("after the reset", "enter the context", outcome(bench.driver.enter_context())));
    found.push(Row::text("after the reset", "run a kernel", outcome(increment(bench))));
    found.push(Row::text("after the reset", "leave the context", outcome(bench.driver.leave_context())));
    Ok(())
}

/// Runs a kernel that counts to one: shows that the context lives.
pub(crate) fn increment(bench: &Bench) -> Result<(), CudaError> {
    let module = Module::load(&bench.driver, FAULT_PTX)?;
    let word = DeviceWords::new(&bench.driver, 1)?;
    let stream = bench.stream(false)?;
    module.kernel("increment")?.launch(&stream, 1, 1, &[Arg::U64(word.address())])?;
    stream.synchronize()?;
    match word.read()?.first() {
        Some(1) => Ok(()),
        _ => Err(CudaError { call: "increment", code: 0, name: "the kernel ran and counted wrong".to_owned() }),
    }
}

fn outcome(result: Result<(), CudaError>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "works".to_owned())
}
