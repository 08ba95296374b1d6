//! The behaviour on which programs that use a GPU rely, tested through the stand-in's entry points:
//! order, visibility, errors and their effect on a context, captures. Each test has its own
//! context, so that a fault does not disturb other tests.

#![cfg(target_arch = "x86_64")]

mod entry_points;
mod faults;
mod gpu;
mod graphs;
mod memory;
mod modules;
mod options;
mod streams;
mod table;
