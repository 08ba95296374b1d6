//! Multi-level feedback queues (thesis §6.1).

use super::Policy;
use super::heads::Heads;
use crate::ids::{DeviceId, Nanos};
use crate::placement::FunctionId;
use crate::placement::classes::ClassId;
use crate::placement::config::{BucketWeights, PoolOptions, Visibility};
use crate::placement::requests::Order;
use crate::placement::state::State;
use crate::rng::Rng;

/// Sorts requests into buckets by expected service time. Draws a bucket at random among those whose
/// first request can run, and dispatches that request to the next free device after that of the
/// last dispatch. If there is only one such bucket, it is taken without a draw.
///
/// If the policy sees the future, it draws among all buckets and waits until the first request of
/// the bucket has arrived, as the thesis's simulator does.
pub(super) struct Mlfqs {
    heads: Heads<(Bucket, ClassId), Order>,
    sees_future: bool,
    weights: BucketWeights,
    rng: Rng,
    /// The bucket that was drawn and has not been served.
    drawn: Option<Bucket>,
}

/// Logarithm of the expected service time: times within a factor of two are in one bucket.
type Bucket = u32;

impl Mlfqs {
    pub(super) fn new(options: &PoolOptions) -> Mlfqs {
        Mlfqs {
            heads: Heads::default(),
            sees_future: options.visibility != Visibility::Online,
            weights: options.buckets,
            rng: Rng::new(options.seed),
            drawn: None,
        }
    }

    /// Buckets that may be served, ascending, each with the service time of its oldest function.
    fn eligible(&self, now: Nanos, state: &State) -> Vec<(Bucket, u64)> {
        let mut buckets: Vec<(Bucket, Order, FunctionId)> = Vec::new();
        for ((bucket, class), order, function) in self.heads.firsts() {
            let arrived = self.sees_future || order.0 <= now;
            if !arrived || state.classes.get(class).free.is_empty() {
                continue;
            }
            match buckets.last_mut() {
                Some(last) if last.0 == bucket => *last = (*last).min((bucket, order, function)),
                _ => buckets.push((bucket, order, function)),
            }
        }
        buckets.iter().map(|&(bucket, _, function)| (bucket, state.function(function).shortest_service())).collect()
    }

    fn draw(&mut self, buckets: &[(Bucket, u64)]) -> Option<Bucket> {
        if buckets.len() < 2 {
            return buckets.first().map(|(bucket, _)| *bucket);
        }
        if self.weights == BucketWeights::Uniform {
            return Some(buckets[self.rng.below(buckets.len() as u64) as usize].0);
        }
        let weight = |service: u64| 1.0 / service.max(1) as f64;
        let sum: f64 = buckets.iter().map(|(_, service)| weight(*service)).sum();
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        let found = buckets.iter().find(|(_, service)| {
            left -= weight(*service);
            left < 0.0
        });
        found.or(buckets.last()).map(|(bucket, _)| *bucket)
    }
}

impl Policy for Mlfqs {
    fn sees_future(&self) -> bool {
        self.sees_future
    }

    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function).map(|(head, order)| {
            let bucket = head.shortest_service().max(1).ilog2();
            ((bucket, head.class), order)
        });
        self.heads.set(function, entry);
    }

    fn next(&mut self, now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        let eligible = self.eligible(now, state);
        let drawn = self.drawn.filter(|drawn| eligible.iter().any(|(bucket, _)| bucket == drawn));
        let bucket = drawn.or_else(|| self.draw(&eligible))?;
        self.drawn = Some(bucket);
        let in_bucket = self
            .heads
            .firsts()
            .filter(|((b, class), ..)| *b == bucket && { !state.classes.get(*class).free.is_empty() });
        let ((_, class), (arrival, _), function) = in_bucket.min_by_key(|(_, order, _)| *order)?;
        if arrival > now {
            return None;
        }
        let device = state.classes.get(class).free.first_from(state.cursor)?;
        self.drawn = None;
        Some((function, device))
    }
}
