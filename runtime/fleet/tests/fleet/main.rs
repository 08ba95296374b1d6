//! Fleets of fake engines.

mod home;
mod pool;
mod residency;
mod shares;
mod support;
