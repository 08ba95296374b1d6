//! The integration tests of Atoll, one file a subject.

mod arrows;
mod models;
mod ptxas;
mod serve;
