//! Tests of the host target, in one binary because each binary costs a link.

mod barriers;
#[cfg(target_arch = "x86_64")]
mod bounds;
mod cache;
mod calls;
mod common;
mod control_flow;
mod deep_divergence;
mod early_exits;
mod every_form;
mod growth;
mod instructions;
mod integers;
mod math;
mod matrices;
mod memory;
mod named_barriers;
mod numbers;
mod random_flow;
mod reference;
mod refusals;
mod shared_object;
mod spinning;
mod strided;
mod warps;
