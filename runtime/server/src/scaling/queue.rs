//! The queue of requests that wait for an instance of a model. It persists when the model is
//! reloaded.

use crate::limits::SCALING_WAITING_MAX;
use atoll_engine::Class;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The requests that wait for an instance of a model.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By class, so that requests of one class cannot take the places of the other.
    real_time: AtomicUsize,
    best_effort: AtomicUsize,
    /// Whether the model is not autoscaled any more, so that waiting requests get no instance.
    is_over: AtomicBool,
    /// Wakes the waiting requests when an instance may have started.
    pub(super) started: Notify,
}

/// A request that waits until this is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Queue>, Class);

impl Queue {
    /// Adds a request; `None` if [`SCALING_WAITING_MAX`] requests of its class already wait.
    pub(super) fn join(self: &Arc<Queue>, class: Class) -> Option<Waiting> {
        let more = |waiting: usize| (waiting < SCALING_WAITING_MAX).then_some(waiting + 1);
        self.of(class).fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Waiting(self.clone(), class))
    }

    /// Number of waiting requests.
    pub(super) fn waiting(&self) -> u64 {
        let of = |class| self.of(class).load(Ordering::Acquire) as u64;
        of(Class::RealTime) + of(Class::BestEffort)
    }

    fn of(&self, class: Class) -> &AtomicUsize {
        match class {
            Class::RealTime => &self.real_time,
            Class::BestEffort => &self.best_effort,
        }
    }

    /// Whether the model was not autoscaled any more at the last call of [`Queue::wake`].
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Wakes the waiting requests so that they look for an instance.
    pub(super) fn wake(&self, is_over: bool) {
        self.is_over.store(is_over, Ordering::Release);
        self.started.notify_waiters();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.of(self.1).fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_requests_of_a_class_wait() {
        let queue = Arc::new(Queue::default());
        let join = |class| queue.join(class);
        let mut waiting: Vec<Waiting> = (0..SCALING_WAITING_MAX).map(|_| join(Class::BestEffort).unwrap()).collect();
        assert!(join(Class::BestEffort).is_none());
        let real_time = join(Class::RealTime);
        assert!(real_time.is_some(), "places of their own");
        assert_eq!(queue.waiting(), SCALING_WAITING_MAX as u64 + 1);
        waiting.pop();
        drop(real_time);
        assert_eq!(queue.waiting(), SCALING_WAITING_MAX as u64 - 1);
        assert!(join(Class::BestEffort).is_some());
    }
}
