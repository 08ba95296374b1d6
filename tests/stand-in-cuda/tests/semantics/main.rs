//! What a program that drives a GPU relies on, asked of the stand-in through its entry points:
//! order, visibility, errors and what they do to a context, captures. Each test has a context of
//! its own, so that one that breaks does not disturb the others.

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
