//! Routes requests that name no instance: each goes to the instance of its function that is
//! expected to finish it first ([`atoll_core::routing`]). Keeps the measurements for that.

use atoll_core::Nanos;
use atoll_core::routing::{Computed, Router, Standing};
use atoll_core::tokens::{Ppm, WINDOW_NS_DEFAULT};
use atoll_engine::{FunctionKey, InvocationResult, InvokeError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The routers of all functions that have instances.
#[derive(Debug)]
pub(crate) struct Routes {
    functions: Mutex<BTreeMap<FunctionKey, Router<String>>>,
    /// Time 0 of the routers.
    began: Instant,
}

/// A request that runs under an instance. It counts as the instance's load until it ends or is
/// dropped.
#[derive(Debug)]
pub(crate) struct Routed {
    routes: Arc<Routes>,
    function: FunctionKey,
    instance: String,
    has_ended: bool,
}

impl Routes {
    pub(crate) fn new() -> Routes {
        Routes { functions: Mutex::default(), began: Instant::now() }
    }

    fn functions(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Router<String>>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Adds an instance of a function, or changes its limit.
    pub(crate) fn set(&self, function: &FunctionKey, instance: &str, limit: Ppm) {
        let mut functions = self.functions();
        let router = functions.entry(function.clone()).or_insert_with(|| Router::new(WINDOW_NS_DEFAULT));
        router.set(instance.to_owned(), limit);
    }

    /// Removes an instance of a function.
    pub(crate) fn remove(&self, function: &FunctionKey, instance: &str) {
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
        Routed { routes: self.clone(), function: function.clone(), instance: instance.into(), has_ended: false }
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
