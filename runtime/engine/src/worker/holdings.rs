//! The bytes behind the ids of memory decisions.

use crate::accounts::Holder;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::instance::Instance;
use crate::staging::{Staged, Stager};
use crate::statistics::ConstantStatistics;
use atoll_core::memory::{InvocationSpec, SessionId, SessionSpec, SlotId, StageSpec};
use atoll_core::residency::ItemId;
use atoll_core::{DeviceOffset, TaskId};
use atoll_kgraph::Bundle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The memory of a session that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionMemory {
    /// In the memory of its tenant; that of another executor lies elsewhere.
    pub(super) at: DeviceOffset,
    pub(super) bytes: u64,
    /// Who is billed for it.
    pub(super) holder: Holder,
}

/// What the engine keeps for memory decisions: the bytes behind ids.
pub(super) struct Holdings {
    /// Memory of past invocations, with the function it is for.
    pub(super) kept: BTreeMap<SlotId, (FunctionId, Instance)>,
    /// Where the bytes of sets come from: the bundle of a set's first function.
    pub(super) bundles: BTreeMap<ItemId, Arc<Bundle>>,
    /// Sets that are being read into host memory.
    pub(super) staged: Vec<(ItemId, Arc<Staged>)>,
    pub(super) stager: Stager,
    pub(super) counters: BTreeMap<ItemId, ConstantStatistics>,
    pub(super) totals: ConstantStatistics,
    /// Bytes of constants are to be divided anew among those who pay for them.
    pub(super) bills_due: bool,
    /// Memory of sessions that have begun.
    pub(super) sessions: BTreeMap<SessionId, SessionMemory>,
}

impl Holdings {
    pub(super) fn new(stager: Stager) -> Holdings {
        Holdings {
            kept: BTreeMap::new(),
            bundles: BTreeMap::new(),
            staged: Vec::new(),
            stager,
            counters: BTreeMap::new(),
            totals: ConstantStatistics::default(),
            bills_due: false,
            sessions: BTreeMap::new(),
        }
    }

    /// What happened to a set since its first function was loaded.
    pub(super) fn counters(&self, set: ItemId) -> ConstantStatistics {
        self.counters.get(&set).copied().unwrap_or_default()
    }

    pub(super) fn count(&mut self, set: ItemId, count: impl Fn(&mut ConstantStatistics)) {
        count(self.counters.entry(set).or_default());
        count(&mut self.totals);
    }
}

/// What memory decisions know of an invocation.
pub(super) fn spec_of(submission: &Submission) -> InvocationSpec {
    let stages = submission.chain.stages.iter().map(|stage| StageSpec {
        function: stage.function.id,
        shape: stage.binding.largest.as_ref().into(),
        bytes: stage.binding.layout.bytes,
    });
    InvocationSpec {
        task: TaskId(submission.id.0),
        class: submission.class,
        tenant: submission.chain.tenant().clone(),
        stages: stages.collect(),
        session: submission.session.as_ref().map(|session| SessionSpec {
            session: session.id,
            bytes: submission.chain.stages[0].binding.layout.state_bytes,
            idle_ns: session.idle_ns,
        }),
    }
}
