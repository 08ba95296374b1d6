//! Tests of the engine, in one binary because each binary costs a link.

mod batching;
mod checks;
mod engine;
mod failed_loads;
mod fake;
#[cfg(target_arch = "x86_64")]
mod host;
mod read_backs;
mod residency;
#[cfg(target_arch = "x86_64")]
mod shares;
mod toy;
