//! Tests of the pool with all policies.

mod golden;
mod indexes;
mod policies;
mod pool;
mod random;
mod world;
