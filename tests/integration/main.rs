//! The integration tests of Atoll, one file a subject.

mod arrows;
mod assembled;
mod bad_input;
mod benchmark_functions;
mod cancel;
mod chaos;
mod control;
mod corpus;
mod dkp;
mod executors;
mod faults;
mod fence;
mod functions;
mod gpu_probe;
mod idempotence;
mod interruptions;
mod isolation;
mod models;
mod oracle;
mod padding;
mod passes;
mod ptxas;
mod random_kernels;
mod serve;
mod trace;
mod workloads;
