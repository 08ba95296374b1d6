//! The data behind the ids of memory decisions.

use super::suspended::Suspended;
use crate::accounts::Holder;
use crate::allowance::Allowance;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::instance::Instance;
use crate::retained::Retained;
use crate::staging::{Staged, Stager};
use crate::statistics::ConstantStatistics;
use crate::suspension::HostRoom;
use atoll_core::memory::{InvocationSpec, SessionId, SessionSpec, SlotId, StageSpec};
use atoll_core::residency::ItemId;
use atoll_core::{DeviceOffset, TaskId};
use atoll_kgraph::Bundle;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The memory of a session that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionMemory {
    /// Its offset in its tenant's memory; memory of another executor has another offset.
    pub(super) at: DeviceOffset,
    pub(super) bytes: u64,
    /// The account that is charged for it.
    pub(super) holder: Holder,
}

/// The data behind the ids of memory decisions.
pub(super) struct Holdings {
    /// Memory kept from past invocations, with its function.
    pub(super) kept: BTreeMap<SlotId, (FunctionId, Instance)>,
    /// Kept memory that is retained for its outputs, until these are released or saved.
    pub(super) retained: BTreeMap<SlotId, Weak<Retained>>,
    /// The source of each set's bytes: the bundle of the set's first function.
    pub(super) bundles: BTreeMap<ItemId, Arc<Bundle>>,
    /// Sets that are being read into host memory.
    pub(super) staged: Vec<(ItemId, Arc<Staged>)>,
    pub(super) stager: Stager,
    pub(super) counters: BTreeMap<ItemId, ConstantStatistics>,
    pub(super) totals: ConstantStatistics,
    /// Whether the bytes of constants have to be divided again among the functions that have them.
    pub(super) charges_changed: bool,
    /// Whether constants may have come to the device or left it since that was last reported.
    pub(super) residency_changed: bool,
    /// Memory of sessions that have begun.
    pub(super) sessions: BTreeMap<SessionId, SessionMemory>,
    pub(super) allowance: Allowance,
    pub(super) suspended: Suspended,
}

impl Holdings {
    pub(super) fn new(stager: Stager, host: Arc<HostRoom>) -> Holdings {
        Holdings {
            kept: BTreeMap::new(),
            retained: BTreeMap::new(),
            bundles: BTreeMap::new(),
            staged: Vec::new(),
            stager,
            counters: BTreeMap::new(),
            totals: ConstantStatistics::default(),
            charges_changed: false,
            residency_changed: false,
            sessions: BTreeMap::new(),
            allowance: Allowance::default(),
            suspended: Suspended::new(host),
        }
    }

    /// Loads and reclaims of a set since its first function was loaded.
    pub(super) fn counters(&self, set: ItemId) -> ConstantStatistics {
        self.counters.get(&set).copied().unwrap_or_default()
    }

    pub(super) fn count(&mut self, set: ItemId, count: impl Fn(&mut ConstantStatistics)) {
        count(self.counters.entry(set).or_default());
        count(&mut self.totals);
    }
}

/// An invocation in the form of memory decisions.
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
            may_suspend: session.memory_bytes.is_some(),
            at: None,
        }),
    }
}
