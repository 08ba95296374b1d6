//! Memory of invocations: reused, reclaimed, waited for.
//!
//! An invocation gets all of its memory at once or waits without any, so that those who wait cannot block each other; it then waits among the cold ones (`residency.rs`).

use super::Worker;
use super::functions::Loaded;
use super::sparing::Victims;
use crate::accounts::{Holder, MemoryKind};
use crate::binding::Binding;
use crate::clock;
use crate::function::FunctionId;
use crate::instance::Instance;
use crate::limits::IDLE_INSTANCES_PER_FUNCTION_MAX;
use crate::memory::{Allocation, Purpose};
use atoll_core::{Class, TaskId, Tenant};
use std::sync::Arc;

impl Worker {
    /// Memory for every stage of an invocation, or for none. Its constants are there.
    pub(super) fn obtain_all(&mut self, task: TaskId) -> Option<Vec<Instance>> {
        let stages = &self.invocation(task).submission.chain.stages;
        let wanted: Vec<_> = stages.iter().map(|stage| (stage.function.id, Arc::clone(&stage.binding))).collect();
        let class = self.invocation(task).submission.class;
        let mut instances = Vec::with_capacity(wanted.len());
        for (function, binding) in &wanted {
            match self.obtain(*function, binding, class) {
                Some(instance) => instances.push(instance),
                None => {
                    wanted.iter().zip(instances).for_each(|((function, _), instance)| self.release(*function, instance));
                    return None;
                }
            }
        }
        let tenant = self.invocation(task).submission.chain.tenant().clone();
        self.note_use(&tenant);
        Some(instances)
    }

    /// Memory for a call: what an earlier one of the same shapes left, or new.
    fn obtain(&mut self, function: FunctionId, binding: &Arc<Binding>, class: Class) -> Option<Instance> {
        let loaded = self.functions.get_mut(&function).expect("a function outlives its invocations");
        let holder = (loaded.account(class), MemoryKind::Invocations);
        let generation = self.constants.generation(loaded.membership.set);
        let idle = loaded.idle.iter().rposition(|idle| idle.binding.symbols == binding.symbols).map(|at| loaded.idle.remove(at));
        let mut instance = match idle {
            Some(instance) => instance,
            None if binding.layout.bytes > self.obtainable_bytes() => return None,
            None => {
                let allocation = self.allocate_clean(binding.layout.bytes)?;
                let loaded = &self.functions[&function];
                Instance::new(Arc::clone(binding), allocation, self.constants.offsets(&loaded.membership), generation, loaded.module)
            }
        };
        if instance.generation != generation {
            instance.move_constants(generation, self.constants.offsets(&self.functions[&function].membership));
        }
        self.hand_over(&mut instance, Some(holder));
        Some(instance)
    }

    /// Memory for an invocation, in which nothing of others is left. What invocations give back is scrubbed; what constants gave back is not.
    fn allocate_clean(&mut self, bytes: u64) -> Option<Allocation> {
        let allocation = self.allocate(Purpose::Invocation, bytes, Victims::All)?;
        if self.memory.has_one_part() && self.lost.is_none() {
            let answer = self.device.fill(allocation.offset(), 0, allocation.bytes());
            if self.check(answer).is_err() {
                self.memory.free(allocation);
                return None;
            }
        }
        Some(allocation)
    }

    /// Allocates, at the cost of what nobody uses right now.
    pub(super) fn allocate(&mut self, purpose: Purpose, bytes: u64, victims: Victims) -> Option<Allocation> {
        if bytes > self.memory.total() {
            return None;
        }
        loop {
            match self.memory.allocate(purpose, bytes) {
                Some(allocation) => return Some(allocation),
                None => self.reclaim_one(victims)?,
            }
        }
    }

    /// What is kept of past invocations.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.functions.values().flat_map(|loaded| &loaded.idle).map(|instance| instance.bytes()).sum()
    }

    /// Gives back a piece of memory, or takes constants off the device so that theirs can be given back; `None` if everything is in use.
    pub(super) fn reclaim_one(&mut self, victims: Victims) -> Option<()> {
        let leftover = self.constants.reclaim_leftover().map(|place| self.free_constants([place]));
        let idle = |worker: &mut Worker| if victims == Victims::All { worker.reclaim_idle(None) } else { None };
        leftover.or_else(|| idle(self)).or_else(|| self.evict_one(victims))
    }

    /// Gives back what was released longest ago, by anybody or by a tenant; `None` if nothing is idle.
    pub(super) fn reclaim_idle(&mut self, tenant: Option<&Tenant>) -> Option<()> {
        let is_meant = |loaded: &&mut Loaded| !loaded.idle.is_empty() && tenant.is_none_or(|tenant| loaded.key().tenant == *tenant);
        let oldest = self.functions.values_mut().filter(is_meant).min_by_key(|loaded| loaded.idle[0].released)?;
        let instance = oldest.idle.remove(0);
        self.free(instance);
        Some(())
    }

    /// Somebody else is billed for an instance from now on.
    fn hand_over(&mut self, instance: &mut Instance, holder: Option<Holder>) {
        let before = std::mem::replace(&mut instance.holder, holder);
        self.accounts.pass(instance.bytes(), before, holder, clock::now());
    }

    /// Keeps an invocation's memory for the next one.
    pub(super) fn release(&mut self, function: FunctionId, mut instance: Instance) {
        instance.released = self.releases;
        self.releases += 1;
        let holder = (self.functions[&function].own_account(), MemoryKind::Idle);
        self.hand_over(&mut instance, Some(holder));
        let idle = &mut self.functions.get_mut(&function).expect("a function outlives its invocations").idle;
        idle.push(instance);
        if idle.len() > IDLE_INSTANCES_PER_FUNCTION_MAX {
            let oldest = idle.remove(0);
            self.free(oldest);
        }
    }

    /// Gives an invocation's memory back. Nobody else ever finds in it what was there: it goes back to the system, and reads as zero when it comes again.
    pub(super) fn free(&mut self, mut instance: Instance) {
        self.hand_over(&mut instance, None);
        let at = instance.at(0);
        let allocation = instance.into_allocation();
        if self.lost.is_none() {
            let answer = self.device.give_back(at, allocation.bytes());
            if self.check(answer).is_err() {
                // It cannot be scrubbed, so nobody gets it.
                return;
            }
        }
        self.memory.free(allocation);
    }
}
