//! Tests of the pool with all policies.

mod golden;
mod indexes;
mod mixed;
mod policies;
mod pool;
mod random;
mod world;
