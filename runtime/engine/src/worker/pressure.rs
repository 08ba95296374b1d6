//! Memory of invocations: reused, reclaimed, waited for, refused.
//!
//! An invocation gets all of its memory at once or waits without any, so that those who wait cannot block each other. A real-time invocation waits for
//! real-time ones only: best-effort ones may be paused for its sake, and then never give anything back.

use super::Worker;
use crate::accounts::{Holder, MemoryKind};
use crate::binding::Binding;
use crate::clock;
use crate::error::InvokeError;
use crate::function::FunctionId;
use crate::instance::Instance;
use crate::limits::IDLE_INSTANCES_PER_FUNCTION_MAX;
use crate::memory::Allocation;
use atoll_core::{Class, TaskId};
use std::sync::Arc;

impl Worker {
    /// Memory for every stage of an invocation, or for none.
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
        Some(instances)
    }

    /// Memory for a call: what an earlier one of the same shapes left, or new.
    fn obtain(&mut self, function: FunctionId, binding: &Arc<Binding>, class: Class) -> Option<Instance> {
        let loaded = self.functions.get_mut(&function).expect("a function outlives its invocations");
        let holder = (loaded.account(class), MemoryKind::Invocations);
        if let Some(at) = loaded.idle.iter().rposition(|idle| idle.binding.symbols == binding.symbols) {
            let mut instance = loaded.idle.remove(at);
            self.hand_over(&mut instance, Some(holder));
            return Some(instance);
        }
        let (module, constants) = (loaded.module, loaded.membership.constants.iter().map(|&id| self.constants.offset(id)).collect());
        let allocation = self.allocate(binding.layout.bytes)?;
        let mut instance = Instance::new(Arc::clone(binding), allocation, constants, module);
        self.hand_over(&mut instance, Some(holder));
        Some(instance)
    }

    /// Allocates, at the cost of memory that nobody uses right now.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<Allocation> {
        if bytes > self.memory.total() {
            return None;
        }
        loop {
            match self.memory.allocate(bytes) {
                Some(allocation) => return Some(allocation),
                None => self.reclaim_one()?,
            }
        }
    }

    /// Gives back what was released longest ago; `None` if nothing is idle.
    fn reclaim_one(&mut self) -> Option<()> {
        let oldest = self.functions.values_mut().filter(|loaded| !loaded.idle.is_empty()).min_by_key(|loaded| loaded.idle[0].released)?;
        let instance = oldest.idle.remove(0);
        self.free(instance);
        Some(())
    }

    /// Somebody else is billed for an instance from now on.
    fn hand_over(&mut self, instance: &mut Instance, holder: Option<Holder>) {
        let before = std::mem::replace(&mut instance.holder, holder);
        self.accounts.pass(instance.bytes(), before, holder, clock::now());
    }

    /// Gives the memory of an instance back.
    pub(super) fn free(&mut self, mut instance: Instance) {
        self.hand_over(&mut instance, None);
        self.memory.free(instance.into_allocation());
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

    /// No memory for this task: it waits for those who will give some back, or fails.
    pub(super) fn short_of_memory(&mut self, task: TaskId) {
        let (real_time, wanted) = {
            let invocation = self.invocation(task);
            (invocation.is_real_time(), invocation.submission.chain.bytes())
        };
        let will_be_returned = self.invocations.values().any(|other| !other.instances.is_empty() && (!real_time || other.is_real_time()));
        if will_be_returned && wanted <= self.memory.total() {
            return self.short_of_memory.push_back(task);
        }
        let (free, total) = (self.memory.free_bytes(), self.memory.total());
        self.fail(task, InvokeError::OutOfMemory { wanted, free, total });
    }

    /// Memory may have been given back: whoever waits for it tries again, in order.
    pub(super) fn prepare_waiting(&mut self) {
        for task in std::mem::take(&mut self.short_of_memory) {
            self.prepare(task);
        }
    }
}
