//! Spinning before sleeping.

use std::time::{Duration, Instant};

/// How long a side spins without giving up its CPU: longer than a record takes from CPU to CPU.
/// Afterwards it lets other threads run in between, since the thread that it waits for may need the
/// same CPU.
const BUSY: Duration = Duration::from_micros(2);

/// A wait that spins until its limit.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    limit: Duration,
    begun: Instant,
}

impl Spin {
    /// Begins a wait that spins for `limit`.
    pub fn new(limit: Duration) -> Spin {
        Spin { limit, begun: Instant::now() }
    }

    /// Spins once. False if the limit has passed; the caller then sleeps.
    pub fn turn(&self) -> bool {
        let spent = self.begun.elapsed();
        if spent >= self.limit {
            return false;
        }
        if spent < BUSY {
            std::hint::spin_loop()
        } else {
            std::thread::yield_now()
        }
        true
    }
}
