//! Routes requests that name no instance: each goes to the instance of its function that is
//! expected to finish it first ([`atoll_core::routing`]). Keeps the measurements for that, and
//! counts the requests of each instance.

use crate::latency::{Counts, Distribution};
use atoll_core::Nanos;
use atoll_core::routing::{self, Choice, Computed, Router, Standing};
use atoll_core::tokens::{Ppm, WINDOW_NS_DEFAULT};
use atoll_engine::{Class, FunctionKey, InvocationResult, InvokeError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The routers of all functions that have instances.
#[derive(Debug)]
pub(crate) struct Routes {
    functions: Mutex<BTreeMap<FunctionKey, Router<String>>>,
    /// The requests of each instance, by its tenant and name.
    served: Mutex<BTreeMap<FunctionKey, Arc<Served>>>,
    /// Time 0 of the routers.
    began: Instant,
}

/// The requests of an instance since it was created or restored.
#[derive(Debug, Default)]
struct Served {
    begun: AtomicU64,
    latencies: Counts,
    /// The target latency in nanoseconds; 0 if there is none.
    target_ns: AtomicU64,
    /// Requests that missed the target.
    late: AtomicU64,
}

/// What decides which of two requests of an instance runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Urgency {
    pub(crate) class: Class,
    /// The priority within the class.
    pub(crate) priority: u32,
    /// The time that is left until the deadline.
    pub(crate) deadline: Option<Duration>,
}

impl Urgency {
    /// With the deadline as a time.
    fn at(self, now: Nanos) -> routing::Urgency {
        let Urgency { class, priority, deadline } = self;
        let deadline = deadline.map(|within| Nanos(now.0.saturating_add(nanoseconds(within))));
        routing::Urgency { class, priority, deadline }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The requests of an instance at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests that were given to it.
    pub(crate) begun: u64,
    /// The time from when each of them was given to it until its end. `None` if none has ended.
    pub(crate) ended: Option<Distribution>,
    /// Those that took longer than its target latency, or were ended by their deadline after it.
    pub(crate) late: u64,
}

impl Load {
    /// The number of requests that have ended.
    pub(crate) fn count_ended(&self) -> u64 {
        self.ended.iter().flat_map(|ended| &ended.counts).map(|(_, count)| count).sum()
    }
}

/// A request that runs under an instance. It counts as the instance's load until it ends or is
/// dropped.
#[derive(Debug)]
pub(crate) struct Routed {
    routes: Arc<Routes>,
    function: FunctionKey,
    instance: String,
    urgency: routing::Urgency,
    /// When the instance got it, and the counts of the instance.
    began: Instant,
    served: Option<Arc<Served>>,
    has_ended: bool,
}

/// The key of an instance, which is unique among all functions of its tenant.
fn key(function: &FunctionKey, instance: &str) -> FunctionKey {
    FunctionKey { tenant: function.tenant.clone(), name: instance.to_owned() }
}

impl Routes {
    pub(crate) fn new() -> Routes {
        Routes { functions: Mutex::default(), served: Mutex::default(), began: Instant::now() }
    }

    fn served(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Arc<Served>>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn functions(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Router<String>>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(nanoseconds(self.began.elapsed()))
    }

    /// Adds an instance of a function, or changes its limit and its target latency.
    pub(crate) fn set(&self, function: &FunctionKey, instance: &str, limit: Ppm, target: Option<Duration>) {
        let target_ns = target.map(nanoseconds);
        let served = self.served().entry(key(function, instance)).or_default().clone();
        served.target_ns.store(target_ns.unwrap_or(0), Ordering::Relaxed);
        let mut functions = self.functions();
        let router = functions.entry(function.clone()).or_insert_with(|| Router::new(WINDOW_NS_DEFAULT));
        router.set(instance.to_owned(), limit, target_ns);
    }

    /// Removes an instance of a function.
    pub(crate) fn remove(&self, function: &FunctionKey, instance: &str) {
        self.served().remove(&key(function, instance));
        let mut functions = self.functions();
        if let Some(router) = functions.get_mut(function) {
            router.remove(&instance.to_owned());
            if router.is_empty() {
                functions.remove(function);
            }
        }
    }

    /// The instance that is expected to finish a request of a function first, among those for which
    /// `may` returns true.
    pub(crate) fn choose(
        &self,
        function: &FunctionKey,
        urgency: Urgency,
        may: impl Fn(&str) -> bool,
    ) -> Option<Choice<String>> {
        let functions = self.functions();
        let now = self.now();
        functions.get(function)?.choose(now, &urgency.at(now), |instance| may(instance))
    }

    /// Counts a request as running under an instance, whether it named the instance or was routed
    /// to it.
    pub(crate) fn begin(self: &Arc<Routes>, function: &FunctionKey, instance: &str, urgency: Urgency) -> Routed {
        let urgency = urgency.at(self.now());
        if let Some(router) = self.functions().get_mut(function) {
            router.begin(&instance.to_owned(), urgency);
        }
        let served = self.served().get(&key(function, instance)).cloned();
        if let Some(served) = &served {
            served.begun.fetch_add(1, Ordering::Relaxed);
        }
        Routed {
            routes: self.clone(),
            function: function.clone(),
            instance: instance.into(),
            urgency,
            began: Instant::now(),
            served,
            has_ended: false,
        }
    }

    /// The requests of an instance; `None` if there is no such instance.
    pub(crate) fn load(&self, function: &FunctionKey, instance: &str) -> Option<Load> {
        let served = self.served().get(&key(function, instance)).cloned()?;
        // Counts of ended requests are read first, so that they never exceed those that began.
        let (ended, late) = (served.latencies.distribution(), served.late.load(Ordering::Relaxed));
        Some(Load { begun: served.begun.load(Ordering::Relaxed), ended, late })
    }

    /// The load and speed of an instance.
    pub(crate) fn standing(&self, function: &FunctionKey, instance: &str) -> Option<Standing> {
        self.functions().get(function)?.standing(&instance.to_owned())
    }
}

impl Routed {
    /// Notes the end of the request and its device time.
    pub(crate) fn end(mut self, result: &Result<InvocationResult, InvokeError>) {
        let computed = result.as_ref().ok().map(|result| Computed {
            device: result.device,
            compute_ns: result.timing.compute_ns,
            batch: result.batch,
        });
        if matches!(result, Ok(_) | Err(InvokeError::DeadlineExceeded)) {
            self.note_lateness();
        }
        // A response from the cache took no device time and is not measured.
        self.note(computed.filter(|computed| computed.compute_ns > 0));
    }

    /// Counts the request as late if it took longer than the target latency.
    fn note_lateness(&self) {
        let Some(served) = &self.served else { return };
        let target_ns = served.target_ns.load(Ordering::Relaxed);
        let is_late = target_ns > 0 && nanoseconds(self.began.elapsed()) > target_ns;
        served.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
    }

    fn note(&mut self, computed: Option<Computed>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            if let Some(served) = &self.served {
                served.latencies.note(self.began.elapsed());
            }
            let now = self.routes.now();
            if let Some(router) = self.routes.functions().get_mut(&self.function) {
                router.end(now, &self.instance, &self.urgency, computed);
            }
        }
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.note(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_engine::Tenant;

    const ANY: Urgency = Urgency { class: Class::BestEffort, priority: 0, deadline: None };

    fn function() -> FunctionKey {
        FunctionKey { tenant: Tenant::default(), name: "f".into() }
    }

    #[test]
    fn the_requests_of_an_instance_are_counted_until_it_is_removed() {
        let (routes, function) = (Arc::new(Routes::new()), function());
        assert_eq!(routes.load(&function, "a"), None);
        routes.set(&function, "a", Ppm::WHOLE, None);
        assert_eq!(routes.load(&function, "a"), Some(Load { begun: 0, ended: None, late: 0 }));
        let first = routes.begin(&function, "a", ANY);
        let second = routes.begin(&function, "a", ANY);
        drop(first);
        let load = routes.load(&function, "a").unwrap();
        assert_eq!((load.begun, load.count_ended(), load.late), (2, 1, 0));
        // A resize keeps the counts.
        routes.set(&function, "a", Ppm::WHOLE, None);
        assert_eq!(routes.load(&function, "a").unwrap().begun, 2);
        routes.remove(&function, "a");
        drop(second);
        assert_eq!(routes.load(&function, "a"), None);
        // One that takes its name begins anew.
        routes.set(&function, "a", Ppm::WHOLE, None);
        assert_eq!(routes.load(&function, "a").unwrap().begun, 0);
    }

    #[test]
    fn requests_that_miss_the_target_of_their_instance_are_counted() {
        let (routes, function) = (Arc::new(Routes::new()), function());
        let late = |target: Option<Duration>, result: &Result<InvocationResult, InvokeError>| {
            routes.set(&function, "a", Ppm::WHOLE, target);
            let before = routes.load(&function, "a").unwrap().late;
            routes.begin(&function, "a", ANY).end(result);
            routes.load(&function, "a").unwrap().late - before
        };
        let (missed, failed) = (Err(InvokeError::DeadlineExceeded), Err(InvokeError::Cancelled));
        let tiny = Some(Duration::from_nanos(1));
        assert_eq!((late(None, &missed), late(tiny, &missed), late(tiny, &failed)), (0, 1, 0));
        assert_eq!(late(Some(Duration::from_secs(3600)), &missed), 0, "its own deadline was earlier");
    }
}
