//! Graphs of functions: the check of descriptions, phase one against brute force, and admissions.

mod bad_graphs;
mod decisions;
mod optimal;
mod support;
