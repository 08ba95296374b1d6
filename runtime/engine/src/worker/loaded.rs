//! The engine thread's state of a function.

use crate::accounts::{AccountId, Usage};
use crate::config::{FunctionInfo, FunctionKey};
use crate::error::EngineError;
use crate::function::{Function, FunctionId};
use crate::request::InvocationTiming;
use crate::statistics::{ConstantStatistics, FunctionStatistics};
use atoll_core::Class;
use atoll_core::residency::ItemId;
use atoll_device::ModuleId;
use crossbeam_channel::Sender;
use std::sync::Arc;

pub(super) type LoadAnswer = Sender<Result<FunctionInfo, EngineError>>;

/// A function on the device.
pub(super) struct Loaded {
    pub(super) function: Arc<Function>,
    pub(super) module: ModuleId,
    pub(super) set: ItemId,
    /// Invocations that are not finished; the requests of a batch, but not the batch itself.
    pub(super) invocations: u64,
    /// Batches of several requests that are not finished.
    pub(super) batches: u64,
    /// By [`Class`].
    pub(super) accounts: [AccountId; 2],
    pub(super) totals: FunctionStatistics,
    pub(super) unloading: Option<Sender<Result<(), EngineError>>>,
}

impl Loaded {
    pub(super) fn function_id(&self) -> FunctionId {
        self.function.id
    }

    pub(super) fn key(&self) -> &FunctionKey {
        &self.function.key
    }

    pub(super) fn is_unloading(&self) -> bool {
        self.unloading.is_some()
    }

    /// The account of invocations of a class.
    pub(super) fn account(&self, class: Class) -> AccountId {
        self.accounts[class as usize]
    }

    /// The account of everything that belongs to no invocation.
    pub(super) fn own_account(&self) -> AccountId {
        self.account(self.function.class)
    }

    /// Counts the usage of a finished invocation.
    pub(super) fn count_usage(&mut self, usage: &Usage) {
        self.totals.preemptions += usage.preemptions;
        self.totals.evicted_launches += usage.evicted_launches;
    }

    /// Counts a finished request, and its timing if it succeeded.
    pub(super) fn count(&mut self, timing: Option<InvocationTiming>) {
        let totals = &mut self.totals;
        match timing {
            Some(timing) => {
                totals.success += 1;
                totals.queue_ns += timing.queue_ns;
                totals.input_ns += timing.input_ns;
                totals.compute_ns += timing.compute_ns;
                totals.output_ns += timing.output_ns;
            }
            None => totals.failure += 1,
        }
    }

    pub(super) fn statistics(&self) -> FunctionStatistics {
        let in_queue = self.function.waiting() as u64;
        FunctionStatistics {
            key: self.function.key.clone(),
            class: self.function.class,
            rejected: self.function.rejected(),
            in_queue,
            running: self.invocations.saturating_sub(in_queue),
            ..self.totals.clone()
        }
    }
}

/// A function that is being loaded.
pub(super) struct LoadJob {
    pub(super) function: Arc<Function>,
    pub(super) answer: LoadAnswer,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    /// Not started.
    Waiting,
    /// The code is being loaded.
    Code { module: ModuleId },
    /// The code is loaded. The constants are being loaded, were on the device before (`was_there`),
    /// or are left for the first invocation. `before` are their statistics before this load.
    Constants { module: ModuleId, set: ItemId, was_there: bool, before: ConstantStatistics },
}
