//! What the handlers share.

use crate::compiler::CompilerService;
use crate::config::ServerConfig;
use crate::inference::Inference;
use crate::limits::BODIES_IN_FLIGHT_BYTES_MAX;
use crate::metrics::Recorder;
use crate::repository::Repository;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit in which bytes in flight are counted, so that they fit a semaphore.
const BUDGET_UNIT_BYTES: usize = 4096;

/// The state of a server.
pub(crate) struct App {
    pub(crate) engine: Arc<dyn Inference>,
    pub(crate) repository: Repository,
    pub(crate) recorder: Recorder,
    pub(crate) body_bytes_max: usize,
    bodies: Arc<Semaphore>,
    loaded: AtomicBool,
    draining: AtomicBool,
}

impl App {
    pub(crate) fn new(config: &ServerConfig, engine: Arc<dyn Inference>, compiler: Option<Arc<dyn CompilerService>>) -> App {
        App {
            repository: Repository::new(config.repository.clone(), config.cache.clone(), engine.clone(), compiler),
            engine,
            recorder: Recorder::default(),
            // A body that exceeds the budget by itself could never be taken.
            body_bytes_max: config.body_bytes_max.min(BODIES_IN_FLIGHT_BYTES_MAX),
            bodies: Arc::new(Semaphore::new(BODIES_IN_FLIGHT_BYTES_MAX / BUDGET_UNIT_BYTES)),
            loaded: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    /// Room for a body of so many bytes, until the permit is dropped; `None` if there is none now.
    pub(crate) fn reserve_body(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(BUDGET_UNIT_BYTES)).ok()?;
        self.bodies.clone().try_acquire_many_owned(units).ok()
    }

    /// Whether requests are welcome: the repository has been loaded and nobody asked to stop.
    pub(crate) fn is_ready(&self) -> bool {
        self.loaded.load(Ordering::Relaxed) && !self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }
}
