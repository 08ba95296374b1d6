//! Tests of the engine, in one binary because each binary costs a link.

mod batching;
#[cfg(target_arch = "x86_64")]
mod bound_shares;
mod checks;
mod engine;
mod failed_loads;
mod fake;
mod flow;
#[cfg(target_arch = "x86_64")]
mod host;
#[cfg(target_arch = "x86_64")]
mod instance_memory;
mod lanes;
mod read_backs;
mod residency;
#[cfg(target_arch = "x86_64")]
mod shares;
mod strings;
mod suspending;
mod toy;
