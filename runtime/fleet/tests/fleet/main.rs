//! Fleets of fake engines.

mod home;
mod losses;
mod pool;
mod residency;
mod shares;
mod support;
