//! Memory of invocations: allocation, reuse, reclaim.
//!
//! An invocation gets all of its memory at once or none, so that waiting invocations cannot
//! deadlock; without memory it waits among the cold ones (`admission.rs`). Its memory is kept for
//! the next invocation of the same function and shape, until memory is short.
//!
//! Memory may also be kept for its outputs, which later invocations take as inputs: it is
//! *retained*. Nothing waits for retained memory. It counts as kept memory, but no invocation gets it
//! as it is, and it is freed last. Its outputs are then saved to host memory.

use super::event::Action;
use super::ledger::Purpose;
use super::limits::{IDLE_SLOTS_PER_FUNCTION_MAX, RETAINED_SLOTS_PER_FUNCTION_MAX};
use super::min_residency::Victims;
use super::quota::TenantBytes;
use super::spec::{Fresh, FunctionId, Granted, Place, SlotId, StageSpec};
use super::{Invocation, Memory};
use crate::ids::{Class, TaskId};
use crate::tenant::Tenant;
use std::collections::BTreeMap;

/// The memory of all invocations.
#[derive(Default)]
pub(super) struct Slots {
    slots: BTreeMap<SlotId, Slot>,
    /// Kept slots, in the order in which they are freed.
    idle: BTreeMap<FreeOrder, SlotId>,
    /// Kept slots of each function, oldest release first.
    idle_by_function: BTreeMap<FunctionId, Vec<SlotId>>,
    /// Kept slots of each tenant, in the order in which they are freed.
    idle_by_tenant: BTreeMap<Tenant, BTreeMap<FreeOrder, SlotId>>,
    idle_bytes: u64,
    /// Source of slot ids and release counts.
    count: u64,
}

/// Whether a kept slot is retained, and its release count: retained slots are freed last.
type FreeOrder = (bool, u64);

struct Slot {
    function: FunctionId,
    tenant: Tenant,
    shape: Box<[i64]>,
    place: Place,
    holder: Holder,
    /// Whether later invocations need its outputs.
    is_retained: bool,
}

#[derive(Clone, Copy)]
enum Holder {
    /// Held by an invocation of this class.
    Invocation(Class),
    /// Kept; released at this count.
    Idle(u64),
}

impl Slots {
    pub(super) fn idle_bytes(&self) -> u64 {
        self.idle_bytes
    }

    /// The kept slots of a function.
    pub(super) fn idle_of(&self, function: FunctionId) -> Vec<SlotId> {
        self.idle_by_function.get(&function).cloned().unwrap_or_default()
    }

    /// How many slots are kept for the next invocations of a function and shape.
    pub(super) fn idle_count(&self, function: FunctionId, shape: &[i64]) -> usize {
        let idle = self.idle_by_function.get(&function).into_iter().flatten();
        idle.filter(|slot| self.slots[slot].suits(shape)).count()
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn enter_idle(&mut self, id: SlotId) {
        let released = self.next();
        let slot = self.slots.get_mut(&id).expect("a slot exists until its memory is given back");
        slot.holder = Holder::Idle(released);
        let order = (slot.is_retained, released);
        self.idle.insert(order, id);
        self.idle_by_function.entry(slot.function).or_default().push(id);
        self.idle_by_tenant.entry(slot.tenant.clone()).or_default().insert(order, id);
        self.idle_bytes += slot.place.bytes;
    }

    fn leave_idle(&mut self, id: SlotId) {
        let slot = &self.slots[&id];
        let Holder::Idle(released) = slot.holder else { unreachable!("the slot is idle") };
        let order = (slot.is_retained, released);
        self.idle.remove(&order);
        self.idle_bytes -= slot.place.bytes;
        let of_function = self.idle_by_function.get_mut(&slot.function).expect("an idle slot is its function's");
        of_function.retain(|other| *other != id);
        if of_function.is_empty() {
            self.idle_by_function.remove(&slot.function);
        }
        let of_tenant = self.idle_by_tenant.get_mut(&slot.tenant).expect("an idle slot is its tenant's");
        of_tenant.remove(&order);
        if of_tenant.is_empty() {
            self.idle_by_tenant.remove(&slot.tenant);
        }
    }

    /// The slot of this shape that was released last.
    fn find_idle(&self, function: FunctionId, shape: &[i64]) -> Option<SlotId> {
        let idle = self.idle_by_function.get(&function)?;
        idle.iter().rev().copied().find(|slot| self.slots[slot].suits(shape))
    }

    /// The kept slots of a function that are retained, or those that are not, oldest release first.
    fn kept(&self, function: FunctionId, is_retained: bool) -> impl Iterator<Item = SlotId> {
        let kept = self.idle_by_function.get(&function).into_iter().flatten().copied();
        kept.filter(move |slot| self.slots[slot].is_retained == is_retained)
    }
}

impl Slot {
    /// Whether an invocation of this shape can have it once it is idle.
    fn suits(&self, shape: &[i64]) -> bool {
        !self.is_retained && *self.shape == *shape
    }
}

impl Memory {
    /// Obtains memory for all stages of an invocation, or for none. Its constants are on the
    /// device. Returns whether it succeeded.
    pub(super) fn obtain_all(&mut self, task: TaskId) -> bool {
        let Invocation { class, tenant, stages, .. } = &self.invocations[&task];
        let (class, tenant, stages) = (*class, tenant.clone(), stages.clone());
        if self.obtain_state(task).is_none() {
            return false;
        }
        let mut granted: Vec<Granted> = Vec::with_capacity(stages.len());
        for stage in &stages {
            match self.obtain(stage, class, &tenant) {
                Some(slot) => granted.push(slot),
                None => {
                    granted.into_iter().for_each(|slot| self.put_back(slot));
                    self.take_state_back(task);
                    return false;
                }
            }
        }
        self.invocation_mut(task).slots = granted.iter().map(|granted| granted.slot).collect();
        self.actions.push_back(Action::Grant { task, slots: granted });
        self.note_use(&tenant);
        true
    }

    /// Obtains memory for a stage: a kept slot of the same shape, or a new one.
    fn obtain(&mut self, stage: &StageSpec, class: Class, tenant: &Tenant) -> Option<Granted> {
        let granted = match self.slots.find_idle(stage.function, &stage.shape) {
            Some(slot) => {
                self.slots.leave_idle(slot);
                self.tenant_mut(tenant).idle_bytes -= self.slots.slots[&slot].place.bytes;
                Granted { slot, fresh: None }
            }
            None if stage.bytes > self.obtainable_bytes() => return None,
            None => self.fresh(stage, tenant)?,
        };
        let slot = self.slots.slots.get_mut(&granted.slot).expect("present: obtained above");
        slot.holder = Holder::Invocation(class);
        let bytes = slot.place.bytes;
        self.tenant_mut(tenant).held += TenantBytes::of(class, bytes);
        Some(granted)
    }

    fn fresh(&mut self, stage: &StageSpec, tenant: &Tenant) -> Option<Granted> {
        let place = self.allocate(Purpose::Invocation, stage.bytes, Victims::All)?;
        let id = SlotId(self.slots.next());
        let slot = Slot {
            function: stage.function,
            tenant: tenant.clone(),
            shape: stage.shape.clone(),
            place,
            holder: Holder::Invocation(Class::BestEffort),
            is_retained: false,
        };
        self.slots.slots.insert(id, slot);
        // Memory of invocations is cleared when freed; memory of constants is not.
        Some(Granted { slot: id, fresh: Some(Fresh { place, clear: self.ledger.has_one_part() }) })
    }

    /// Undoes a grant before it was issued.
    fn put_back(&mut self, granted: Granted) {
        if granted.fresh.is_none() {
            return self.keep(granted.slot);
        }
        self.release_held(granted.slot);
        let slot = self.slots.slots.remove(&granted.slot).expect("it was granted");
        self.ledger.free(slot.place);
    }

    /// Undoes a grant that failed because new memory cannot be cleared. The invocation ends.
    pub(super) fn ungrant(&mut self, task: TaskId, granted: &[Granted]) {
        for &Granted { slot, fresh } in granted {
            let slots = &mut self.invocation_mut(task).slots;
            let is_held = slots.iter().position(|held| *held == slot).map(|at| slots.remove(at)).is_some();
            if let Some(fresh) = fresh {
                self.forget_slot(slot);
                if fresh.clear && !self.ledger.has_one_part() {
                    // If constants and invocations share a range, memory is cleared on every grant.
                    self.withhold(fresh.place);
                }
            } else if is_held && self.slots.slots.contains_key(&slot) {
                self.keep(slot);
            }
        }
        self.invocation_mut(task).ending = true;
        self.actions.retain(|action| match action {
            Action::Begin { task: other } | Action::Ready { task: other } => *other != task,
            _ => true,
        });
    }

    /// Removes a slot of a failed grant. It may have been taken from its invocation meanwhile.
    fn forget_slot(&mut self, id: SlotId) {
        match self.slots.slots.get(&id).map(|slot| slot.holder) {
            None => {
                return self.actions.retain(|action| !matches!(action, Action::FreeSlot { slot, .. } if *slot == id));
            }
            Some(Holder::Invocation(_)) => self.release_held(id),
            Some(Holder::Idle(_)) => {
                self.slots.leave_idle(id);
                let Slot { tenant, place, .. } = &self.slots.slots[&id];
                let (tenant, bytes) = (tenant.clone(), place.bytes);
                self.tenant_mut(&tenant).idle_bytes -= bytes;
            }
        }
        let slot = self.slots.slots.remove(&id).expect("present: checked above");
        self.ledger.free(slot.place);
    }

    /// Allocates memory, reclaiming unused memory if necessary.
    pub(super) fn allocate(&mut self, purpose: Purpose, bytes: u64, victims: Victims) -> Option<Place> {
        if bytes > self.ledger.total() {
            return None;
        }
        loop {
            match self.ledger.allocate(purpose, bytes) {
                Some(place) => return Some(place),
                None if self.reclaim_one(victims) => {}
                None => return None,
            }
        }
    }

    /// Frees one unused piece of memory, or reclaims a constant set so that its memory can be freed
    /// next. Returns whether there was any.
    pub(super) fn reclaim_one(&mut self, victims: Victims) -> bool {
        if let Some(place) = self.constants.reclaim_cached() {
            self.free_constants([place]);
            return true;
        }
        (victims == Victims::All && self.reclaim_idle(None)) || self.reclaim_set(victims)
    }

    /// Frees the slot that was released first, of all or of a tenant; a retained one only if there is
    /// no other. Returns whether there was one.
    pub(super) fn reclaim_idle(&mut self, tenant: Option<&Tenant>) -> bool {
        let idle = match tenant {
            None => Some(&self.slots.idle),
            Some(tenant) => self.slots.idle_by_tenant.get(tenant),
        };
        let oldest = idle.and_then(|idle| idle.first_key_value()).map(|(_, slot)| *slot);
        oldest.inspect(|&slot| self.give_back(slot)).is_some()
    }

    /// Subtracts an invocation's slot from its tenant's held memory.
    fn release_held(&mut self, id: SlotId) {
        let slot = &self.slots.slots[&id];
        let Holder::Invocation(class) = slot.holder else { unreachable!("the slot is an invocation's") };
        let (tenant, gone) = (slot.tenant.clone(), TenantBytes::of(class, slot.place.bytes));
        let held = &mut self.tenant_mut(&tenant).held;
        *held = TenantBytes { all: held.all - gone.all, best_effort: held.best_effort - gone.best_effort };
    }

    /// Keeps an invocation's memory for the next one, or for its outputs.
    pub(super) fn keep(&mut self, id: SlotId) {
        self.release_held(id);
        self.slots.enter_idle(id);
        let Slot { function, tenant, place, is_retained, .. } = &self.slots.slots[&id];
        let (function, tenant, bytes, is_retained) = (*function, tenant.clone(), place.bytes, *is_retained);
        self.tenant_mut(&tenant).idle_bytes += bytes;
        self.limit_kept(function, is_retained);
    }

    /// Frees the oldest slot of a kind that is kept for a function, if there are too many.
    fn limit_kept(&mut self, function: FunctionId, is_retained: bool) {
        let max = if is_retained { RETAINED_SLOTS_PER_FUNCTION_MAX } else { IDLE_SLOTS_PER_FUNCTION_MAX };
        let mut kept = self.slots.kept(function, is_retained);
        let oldest = kept.next();
        if kept.count() >= max
            && let Some(oldest) = oldest
        {
            self.give_back(oldest);
        }
    }

    /// Retains a slot of an invocation that is about to end.
    pub(super) fn retain_outputs(&mut self, id: SlotId) {
        if let Some(slot) = self.slots.slots.get_mut(&id) {
            assert!(matches!(slot.holder, Holder::Invocation(_)), "outputs are retained before their invocation ends");
            slot.is_retained = true;
        }
    }

    /// Keeps a retained slot for the next invocation instead of its outputs.
    pub(super) fn release_outputs(&mut self, id: SlotId) {
        // Never reused, so it is gone if it was freed.
        let Some(Slot { function, .. }) = self.slots.slots.get(&id).filter(|slot| slot.is_retained) else { return };
        let function = *function;
        self.slots.leave_idle(id);
        self.slots.slots.get_mut(&id).expect("present: checked above").is_retained = false;
        self.slots.enter_idle(id);
        self.limit_kept(function, false);
    }

    /// Frees a kept slot. The caller saves its outputs, if it is retained, and clears its memory
    /// ([`Action::FreeSlot`]), so no other owner can read its contents.
    pub(super) fn give_back(&mut self, id: SlotId) {
        self.slots.leave_idle(id);
        let Slot { tenant, place, is_retained, .. } = self.slots.slots.remove(&id).expect("an idle slot exists");
        self.tenant_mut(&tenant).idle_bytes -= place.bytes;
        self.forget_tenant(&tenant);
        if is_retained {
            self.actions.push_back(Action::SaveOutputs { slot: id });
        }
        self.actions.push_back(Action::FreeSlot { slot: id, place });
        self.ledger.free(place);
    }

    /// Takes freed memory that cannot be cleared out of use. Parts that were granted meanwhile are
    /// cleared before use.
    pub(super) fn withhold(&mut self, place: Place) {
        let overlaps = |other: &Place| other.at.0 < place.at.0 + place.bytes && place.at.0 < other.at.0 + other.bytes;
        for action in &mut self.actions {
            let Action::Grant { slots, .. } = action else { continue };
            let fresh = slots.iter_mut().filter_map(|slot| slot.fresh.as_mut());
            fresh.filter(|fresh| overlaps(&fresh.place)).for_each(|fresh| fresh.clear = true);
        }
        self.sessions.note_unclear(place);
        self.ledger.withhold(place);
        self.refuse_misfits();
    }
}
