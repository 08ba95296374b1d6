//! What a handle reports about the engine.

use super::EngineHandle;
use crate::config::FunctionKey;
use crate::event::Command;
use crate::recorder::TraceBatch;
use crate::request::ChainRequest;
use crate::statistics::EngineStatistics;
use crate::strings;
use std::sync::Arc;

impl EngineHandle {
    /// Whether the constants of a function are on the device or being loaded.
    pub fn holds_constants(&self, function: &FunctionKey) -> bool {
        self.shared.find(function).is_some_and(|function| function.is_resident())
    }

    /// Whether the thread that submits a request encodes strings or computes inputs, which may take
    /// long.
    pub fn encodes(&self, request: &ChainRequest) -> bool {
        strings::encodes(request, |function| self.shared.find(function))
    }

    /// The functions whose constants came to the device (`true`) or left it since the last call,
    /// and those of [`EngineHandle::preload`].
    pub fn take_residency(&self) -> Vec<(FunctionKey, bool)> {
        self.shared.residency.take()
    }

    /// Statistics of the engine. All zero once it has stopped, with the device marked as lost if
    /// the engine's thread panicked.
    pub fn statistics(&self) -> EngineStatistics {
        let mut statistics = self.ask(|answer| Command::Statistics { answer }).unwrap_or_else(|| {
            let mut stopped = EngineStatistics::default();
            stopped.device.lost =
                self.is_lost().then(|| "the thread that drives it panicked; restart the daemon".into());
            stopped
        });
        // Done on this thread rather than the engine's, because the system checks every page.
        for function in &mut statistics.functions {
            let bundle = self.shared.find(&function.key).map(|function| Arc::clone(&function.bundle));
            function.memory.constant_host_bytes = bundle.and_then(|bundle| bundle.weights_in_memory()).unwrap_or(0);
        }
        statistics
    }

    /// Trace records from a position on ([`TraceBatch::next`] of the previous batch; 0 is the
    /// oldest record kept), or, if `None`, from now on. Returns `None` once the engine has stopped.
    pub fn trace(&self, from: Option<u64>) -> Option<TraceBatch> {
        self.ask(|answer| Command::Trace { from, answer })
    }
}
