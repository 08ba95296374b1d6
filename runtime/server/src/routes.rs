//! Routes requests that name no instance: each goes to the instance of its function that is
//! expected to finish it first ([`atoll_core::routing`]). Keeps the measurements for that, and
//! counts the requests of each instance.

use crate::latency::{Counts, Distribution};
use atoll_core::Nanos;
use atoll_core::routing::{Computed, Router, Standing};
use atoll_core::tokens::{Ppm, WINDOW_NS_DEFAULT};
use atoll_engine::{FunctionKey, InvocationResult, InvokeError};
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
}

/// The requests of an instance at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests that were given to it.
    pub(crate) begun: u64,
    /// The time from when each of them was given to it until its end. `None` if none has ended.
    pub(crate) ended: Option<Distribution>,
}

/// A request that runs under an instance. It counts as the instance's load until it ends or is
/// dropped.
#[derive(Debug)]
pub(crate) struct Routed {
    routes: Arc<Routes>,
    function: FunctionKey,
    instance: String,
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
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Adds an instance of a function, or changes its limit.
    pub(crate) fn set(&self, function: &FunctionKey, instance: &str, limit: Ppm) {
        self.served().entry(key(function, instance)).or_default();
        let mut functions = self.functions();
        let router = functions.entry(function.clone()).or_insert_with(|| Router::new(WINDOW_NS_DEFAULT));
        router.set(instance.to_owned(), limit);
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
        deadline: Option<Duration>,
        may: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let functions = self.functions();
        let now = self.now();
        let deadline =
            deadline.map(|within| Nanos(now.0.saturating_add(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX))));
        let choice = functions.get(function)?.choose(now, deadline, |instance| may(instance))?;
        Some(choice.instance)
    }

    /// Counts a request as running under an instance, whether it named the instance or was routed
    /// to it.
    pub(crate) fn begin(self: &Arc<Routes>, function: &FunctionKey, instance: &str) -> Routed {
        if let Some(router) = self.functions().get_mut(function) {
            router.begin(&instance.to_owned());
        }
        let served = self.served().get(&key(function, instance)).cloned();
        if let Some(served) = &served {
            served.begun.fetch_add(1, Ordering::Relaxed);
        }
        Routed {
            routes: self.clone(),
            function: function.clone(),
            instance: instance.into(),
            began: Instant::now(),
            served,
            has_ended: false,
        }
    }

    /// The requests of an instance; `None` if there is no such instance.
    pub(crate) fn load(&self, function: &FunctionKey, instance: &str) -> Option<Load> {
        let served = self.served().get(&key(function, instance)).cloned()?;
        // Counts of ended requests are read first, so that they never exceed those that began.
        let ended = served.latencies.distribution();
        Some(Load { begun: served.begun.load(Ordering::Relaxed), ended })
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
        // A response from the cache took no device time and is not measured.
        self.note(computed.filter(|computed| computed.compute_ns > 0));
    }

    fn note(&mut self, computed: Option<Computed>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            if let Some(served) = &self.served {
                served.latencies.note(self.began.elapsed());
            }
            let now = self.routes.now();
            if let Some(router) = self.routes.functions().get_mut(&self.function) {
                router.end(now, &self.instance, computed);
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

    #[test]
    fn the_requests_of_an_instance_are_counted_until_it_is_removed() {
        let routes = Arc::new(Routes::new());
        let function = FunctionKey { tenant: Tenant::default(), name: "f".into() };
        assert_eq!(routes.load(&function, "a"), None);
        routes.set(&function, "a", Ppm::WHOLE);
        assert_eq!(routes.load(&function, "a"), Some(Load { begun: 0, ended: None }));
        let first = routes.begin(&function, "a");
        let second = routes.begin(&function, "a");
        drop(first);
        let load = routes.load(&function, "a").unwrap();
        let ended: u64 = load.ended.unwrap().counts.iter().map(|(_, count)| count).sum();
        assert_eq!((load.begun, ended), (2, 1));
        // A resize keeps the counts.
        routes.set(&function, "a", Ppm::WHOLE);
        assert_eq!(routes.load(&function, "a").unwrap().begun, 2);
        routes.remove(&function, "a");
        drop(second);
        assert_eq!(routes.load(&function, "a"), None);
        // One that takes its name begins anew.
        routes.set(&function, "a", Ppm::WHOLE);
        assert_eq!(routes.load(&function, "a").unwrap().begun, 0);
    }
}
