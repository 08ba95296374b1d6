//! Tests of the pool with all policies.

mod policies;
mod pool;
mod random;
mod world;
