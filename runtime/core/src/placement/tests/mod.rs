//! Tests of the pool with all policies.

mod policies;

mod random;
mod world;
