//! Hedged requests. A request that takes longer than most is also sent to a second device; the
//! first answer is used, and the other request is cancelled. [`atoll_core::placement`] decides when
//! and how often. Both count as one invocation for the tenant's quota.

use crate::inference::{Pending, invoke};
use crate::running::Permit;
use atoll_core::Nanos;
use atoll_core::placement::{HedgeConfig, Hedges, Why};
use atoll_engine::{ChainRequest, InvocationResult, InvokeError, ShareClient};
use atoll_fleet::{Inference, may_retry};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State and counts of the hedging of a model.
pub(crate) struct Hedging {
    hedges: Mutex<Hedges>,
    /// Requests that were sent twice and whose first device answered first.
    lost: AtomicU64,
    /// Requests that were sent twice and whose second device answered first.
    won: AtomicU64,
}

impl Hedging {
    pub(crate) fn new(config: HedgeConfig) -> Hedging {
        Hedging { hedges: Mutex::new(Hedges::new(config)), lost: AtomicU64::new(0), won: AtomicU64::new(0) }
    }

    /// Counts of requests that were sent twice: `won` if the second device answered first, else
    /// `lost`.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        [("won", self.won.load(Ordering::Relaxed)), ("lost", self.lost.load(Ordering::Relaxed))]
    }

    fn lock(&self) -> MutexGuard<'_, Hedges> {
        self.hedges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an invocation. Cancels it, on both devices, if the future is dropped.
    pub(crate) async fn invoke(
        &self,
        engine: &Arc<dyn Inference>,
        permit: &Permit,
        request: ChainRequest,
    ) -> Result<InvocationResult, InvokeError> {
        let (begun, after) = (Instant::now(), self.lock().arrived());
        // Requests with large inputs are not hedged: their copy would cost more than a hedge gains.
        // Those of an instance that is bound to a device are not, since it has no share elsewhere.
        let after = after.filter(|_| may_retry(&request) && !is_bound(engine, &request));
        let result = match after {
            Some(after) => self.hedged(engine, permit, request, begun, Duration::from_nanos(after.0)).await,
            None => invoke(engine, permit, request).await,
        };
        if result.is_ok() {
            let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.lock().ended(Nanos(took));
        }
        result
    }

    async fn hedged(
        &self,
        engine: &Arc<dyn Inference>,
        permit: &Permit,
        request: ChainRequest,
        begun: Instant,
        after: Duration,
    ) -> Result<InvocationResult, InvokeError> {
        let again = request.clone();
        let first =
            Pending::submit(engine, permit, request, |engine, request, reply| engine.submit(request, reply)).await?;
        let id = first.id();
        let mut first = pin!(first.answer());
        if let Ok(answer) = tokio::time::timeout(after, &mut first).await {
            return answer;
        }
        let function = again.stages.first().map(|stage| stage.function.clone());
        let place = || {
            let device = engine.place_of(id?)?;
            engine.other_device(function.as_ref()?, device)
        };
        // A request that still waits for a device is not hedged: it would only wait twice.
        let Some(device) = place().filter(|_| self.lock().take()) else { return first.await };
        let deadline = again.deadline.map(|deadline| deadline.saturating_sub(begun.elapsed()));
        let again = ChainRequest { deadline, ..again };
        let second = Pending::submit(engine, permit, again, move |engine, again, reply| {
            engine.submit_to(device, Why::Hedged, again, reply)
        });
        let mut second = pin!(async { second.await?.answer().await });
        let (answer, is_second) = tokio::select! {
            biased;
            answer = &mut first => (answer, false),
            answer = &mut second => (answer, true),
        };
        // An error is returned only if both devices fail.
        let (answer, is_second) = match (answer, is_second) {
            (Err(_), true) => (first.await, false),
            (Err(error), false) => match second.await {
                Ok(result) => (Ok(result), true),
                Err(_) => (Err(error), false),
            },
            ended => ended,
        };
        let counted = if is_second { &self.won } else { &self.lost };
        counted.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

/// Whether a request names an instance that is bound to one device.
fn is_bound(engine: &Arc<dyn Inference>, request: &ChainRequest) -> bool {
    let (Some(instance), Some(stage)) = (&request.instance, request.stages.first()) else { return false };
    let client = ShareClient { tenant: stage.function.tenant.clone(), instance: Some(instance.clone()) };
    engine.device_of_share(&client).is_some()
}
