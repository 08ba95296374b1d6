//! Fleets of fake engines.

mod home;
mod pool;
mod shares;
mod support;
