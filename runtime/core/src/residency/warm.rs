//! Warm items, in the order in which they cool.

use super::{ItemId, Warm};
use crate::ids::Nanos;
use std::collections::BTreeMap;

/// Unpinned items by the time at which they cool, with their bytes. Items that have cooled stay
/// until [`WarmItems::at`] is called, so that each event handles one item only.
#[derive(Default)]
pub(super) struct WarmItems {
    by_time: BTreeMap<(Nanos, ItemId), u64>,
    bytes: u64,
}

impl WarmItems {
    /// Changes the time at which an item cools; `None` means that it is in use, was never used, or
    /// is not on the device.
    pub(super) fn moved(&mut self, item: ItemId, bytes: u64, before: Option<Nanos>, after: Option<Nanos>) {
        if before == after {
            return;
        }
        if let Some(bytes) = before.and_then(|at| self.by_time.remove(&(at, item))) {
            self.bytes -= bytes;
        }
        if let Some(at) = after {
            self.by_time.insert((at, item), bytes);
            self.bytes += bytes;
        }
    }

    /// The items that are warm now. Drops those that have cooled.
    pub(super) fn at(&mut self, now: Nanos) -> Warm {
        while let Some(first) = self.by_time.first_entry().filter(|first| first.key().0 <= now) {
            self.bytes -= first.remove();
        }
        Warm { bytes: self.bytes, until: self.by_time.first_key_value().map(|(&(until, _), _)| until) }
    }

    /// The items that are warm now, the first to cool first.
    pub(super) fn items(&self, now: Nanos) -> impl Iterator<Item = (Nanos, ItemId)> {
        self.by_time.keys().copied().skip_while(move |(until, _)| *until <= now)
    }
}
