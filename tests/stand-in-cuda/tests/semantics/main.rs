//! Tests, through the stand-in's entry points, the behaviour that GPU programs rely on: order,
//! visibility, errors and their effect on a context, captures. Each test has its own context, so
//! that a fault in one test does not affect the others.

#![cfg(target_arch = "x86_64")]

mod entry_points;
mod faults;
mod gpu;
mod graphs;
mod ipc;
mod memory;
mod modules;
mod options;
mod streams;
mod table;
mod visible;
