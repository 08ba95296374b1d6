//! Graphs of functions: the check of descriptions, phase one against brute force, and admissions.

mod bad_graphs;
mod chaos;
mod decisions;
mod live;
mod optimal;
mod support;
