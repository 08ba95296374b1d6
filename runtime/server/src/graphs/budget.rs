//! The price limit of an admitted request, also after it has lost its reservations with a device.
//!
//! The plan of such a request is no longer valid. Each stage then runs on the fastest kind of device
//! that leaves enough of the limit for the stages to come, at their least prices. So the request
//! keeps its limit, or fails with the cause.

use atoll_core::Nanos;
use atoll_core::graphs::{Cost, KindId};
use std::collections::BTreeMap;

/// A kind of device that can run a stage, by the recent runs of the stage there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) kind: KindId,
    pub(super) took: Nanos,
    pub(super) price: Cost,
}

/// The price limit of a request, and what it has spent.
#[derive(Debug)]
pub(super) struct Budget {
    price_max: Cost,
    spent: Cost,
    /// The prices of stages in flight.
    running: BTreeMap<usize, Cost>,
}

/// A stage cannot run within the price limit of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Overrun {
    #[error("its price is known for no other one")]
    NoDevice,
    #[error(
        "the price limit of {:.9} units is too low: {:.9} units are spent, and the rest costs at least {:.9}",
        .price_max.units(), .spent.units(), .rest.units()
    )]
    TooDear { price_max: Cost, spent: Cost, rest: Cost },
}

fn plus(a: Cost, b: Cost) -> Cost {
    Cost(a.0.saturating_add(b.0))
}

impl Budget {
    pub(super) fn new(price_max: Cost) -> Budget {
        Budget { price_max, spent: Cost(0), running: BTreeMap::new() }
    }

    /// A stage starts at this price.
    pub(super) fn begin(&mut self, stage: usize, price: Cost) {
        self.running.insert(stage, price);
    }

    /// A stage ended at this price. One that failed costs at most what was expected, since only
    /// launches that ended are billed.
    pub(super) fn end(&mut self, stage: usize, price: Cost, has_failed: bool) {
        let expected = self.running.remove(&stage).unwrap_or(price);
        self.spent = plus(self.spent, if has_failed { price.min(expected) } else { price });
    }

    /// Whether a stage is in flight.
    pub(super) fn is_running(&self, stage: usize) -> bool {
        self.running.contains_key(&stage)
    }

    /// The fastest offer for a stage that leaves `rest` of the limit, for the stages to come.
    ///
    /// # Errors
    /// If there is no such offer.
    pub(super) fn choose(&self, offers: &[Offer], rest: Cost) -> Result<Offer, Overrun> {
        let spent = self.running.values().fold(self.spent, |sum, price| plus(sum, *price));
        let fits = |offer: &&Offer| plus(plus(spent, rest), offer.price) <= self.price_max;
        if let Some(fastest) = offers.iter().filter(fits).min_by_key(|offer| (offer.took, offer.price)) {
            return Ok(*fastest);
        }
        let least = offers.iter().map(|offer| offer.price).min().ok_or(Overrun::NoDevice)?;
        Err(Overrun::TooDear { price_max: self.price_max, spent, rest: plus(least, rest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(kind: u8, took: u64, price: u64) -> Offer {
        Offer { kind: KindId(kind), took: Nanos(took), price: Cost(price) }
    }

    #[test]
    fn the_fastest_kind_is_chosen_that_leaves_enough_for_the_rest() {
        let budget = Budget::new(Cost(100));
        let offers = [offer(0, 50, 10), offer(1, 5, 60), offer(2, 1, 90)];
        for (rest, kind) in [(0, 2), (10, 2), (11, 1), (40, 1), (41, 0), (90, 0)] {
            assert_eq!(budget.choose(&offers, Cost(rest)).map(|offer| offer.kind), Ok(KindId(kind)), "{rest}");
        }
        let error = budget.choose(&offers, Cost(91)).unwrap_err();
        assert_eq!(error, Overrun::TooDear { price_max: Cost(100), spent: Cost(0), rest: Cost(101) });
        assert_eq!(budget.choose(&[], Cost(0)), Err(Overrun::NoDevice));
        assert!(budget.choose(&offers, Cost(u64::MAX)).is_err(), "sums do not overflow");
    }

    #[test]
    fn stages_count_while_they_run_and_when_they_have_ended_or_failed() {
        let mut budget = Budget::new(Cost(100));
        let left =
            |budget: &Budget| (0..=100).rev().find(|price| budget.choose(&[offer(0, 1, *price)], Cost(0)).is_ok());
        budget.begin(0, Cost(30));
        assert!(budget.is_running(0) && left(&budget) == Some(70));
        budget.end(0, Cost(40), false);
        assert!(!budget.is_running(0) && left(&budget) == Some(60), "it took longer than expected");
        budget.begin(1, Cost(20));
        budget.end(1, Cost(500), true);
        assert_eq!(left(&budget), Some(40), "it waited until its device was known to be lost");
        budget.begin(1, Cost(20));
        budget.end(1, Cost(3), true);
        assert_eq!(left(&budget), Some(37));
    }
}
