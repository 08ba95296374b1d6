//! Turns of large built-in stages, which limit how many compute at once.

use crate::limits::BUILTIN_STAGES_MAX;
use atoll_engine::Class;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns by class, so that stages of one class do not wait for those of the other.
#[derive(Clone, Debug)]
pub(crate) struct BuiltinTurns {
    real_time: Arc<Semaphore>,
    best_effort: Arc<Semaphore>,
}

impl BuiltinTurns {
    pub(crate) fn new() -> BuiltinTurns {
        let turns = || Arc::new(Semaphore::new(BUILTIN_STAGES_MAX));
        BuiltinTurns { real_time: turns(), best_effort: turns() }
    }

    /// Waits for a turn, which lasts until the result is dropped.
    pub(super) async fn take(&self, class: Class) -> Option<OwnedSemaphorePermit> {
        let turns = match class {
            Class::RealTime => &self.real_time,
            Class::BestEffort => &self.best_effort,
        };
        // The semaphores are never closed.
        turns.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn best_effort_stages_leave_turns_to_real_time_ones() {
        let turns = BuiltinTurns::new();
        let take = |class| turns.take(class).now_or_never().flatten();
        let mut flood: Vec<_> = (0..BUILTIN_STAGES_MAX).map(|_| take(Class::BestEffort).unwrap()).collect();
        assert!(take(Class::BestEffort).is_none(), "it waits");
        let urgent: Vec<_> = (0..BUILTIN_STAGES_MAX).map(|_| take(Class::RealTime).unwrap()).collect();
        assert!(take(Class::RealTime).is_none());
        flood.pop();
        assert!(take(Class::BestEffort).is_some());
        assert!(take(Class::RealTime).is_none());
        drop(urgent);
        assert!(take(Class::RealTime).is_some());
    }
}
