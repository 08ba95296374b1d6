//! What clients do: load and unload functions, invoke them, cancel invocations.

use super::{FUNCTIONS_MAX, Function, GRANULE, INVOCATIONS_MAX, Invocation, Stage, TENANTS, World};
use atoll_core::memory::{ConstantSpec, Event, FunctionId, FunctionSpec, InvocationSpec, StageSpec};
use atoll_core::{Class, TaskId, Tenant};

impl World {
    pub(super) fn load(&mut self) {
        if self.functions.len() >= FUNCTIONS_MAX {
            return;
        }
        let function = FunctionId(self.number());
        let tenant: Tenant = TENANTS[self.rng.below(3) as usize].parse().expect("a name");
        let class = if self.rng.below(3) == 0 { Class::RealTime } else { Class::BestEffort };
        let mut offset = 0;
        let constants: Vec<ConstantSpec> = (0..self.rng.below(4))
            .map(|_| {
                let content = self.rng.below(14) as u8;
                let bytes = GRANULE * (1 + u64::from(content) % 5) - u64::from(content);
                offset += bytes.next_multiple_of(GRANULE);
                ConstantSpec { digest: [content; 32], bytes, offset: offset - bytes.next_multiple_of(GRANULE) }
            })
            .collect();
        let spec = FunctionSpec { function, tenant: tenant.clone(), class, constants };
        match self.memory.register(spec) {
            Ok(set) => {
                self.functions.insert(function, Function { tenant, set, unloading: false });
                self.send(Event::Load { function });
            }
            Err(_) => self.totals.refused += 1,
        }
        while let Some(action) = self.memory.next_action() {
            self.carry_out(action);
        }
    }

    pub(super) fn begin_unload(&mut self) {
        let Some(id) = self.any_of(self.functions.keys().copied().collect()) else { return };
        self.functions.get_mut(&id).expect("picked").unloading = true;
        self.finish_unload(id);
    }

    pub(super) fn finish_unload(&mut self, id: FunctionId) {
        let calls = |invocation: &Invocation| invocation.spec.stages.iter().any(|stage| stage.function == id);
        if self.functions.get(&id).is_some_and(|function| function.unloading) && !self.invocations.values().any(calls) {
            self.unload(id);
        }
    }

    pub(super) fn unload(&mut self, id: FunctionId) {
        self.functions.remove(&id);
        self.unmapped.remove(&id);
        self.send(Event::Unloaded { function: id });
    }

    pub(super) fn arrive(&mut self) {
        if self.invocations.len() >= INVOCATIONS_MAX {
            return;
        }
        let loaded: Vec<FunctionId> =
            self.functions.iter().filter(|(_, function)| !function.unloading).map(|(id, _)| *id).collect();
        let Some(first) = self.any_of(loaded.clone()) else { return };
        let tenant = self.functions[&first].tenant.clone();
        let own: Vec<FunctionId> = loaded.into_iter().filter(|id| self.functions[id].tenant == tenant).collect();
        let mut stages = Vec::new();
        for at in 0..1 + self.rng.below(2) {
            let function = if at == 0 { first } else { self.any_of(own.clone()).expect("the first is one") };
            let shape = 1 + self.rng.below(3);
            stages.push(StageSpec { function, shape: Box::new([shape as i64]), bytes: shape * GRANULE * 3 - 7 });
        }
        let class = if self.rng.below(5) == 0 { Class::RealTime } else { Class::BestEffort };
        let task = TaskId(self.number());
        let session = (self.rng.below(4) == 0).then(|| self.pick_session(first));
        stages.truncate(if session.is_some() { 1 } else { stages.len() });
        let spec = InvocationSpec { task, class, tenant, stages, session };
        if self.memory.check(&spec).is_err() {
            self.totals.over_quota += 1;
            return;
        }
        if let Some(session) = session {
            self.join_session(first, session);
        }
        self.invocations
            .insert(task, Invocation { spec: spec.clone(), stage: Stage::Cold, slots: Vec::new(), since: self.steps });
        self.send(Event::Arrived(spec));
    }

    pub(super) fn cancel(&mut self) {
        let waiting =
            self.invocations.iter().filter(|(_, invocation)| invocation.stage != Stage::Running).map(|(task, _)| *task);
        if let Some(task) = self.any_of(waiting.collect()) {
            self.end(task);
        }
    }

    pub(super) fn end(&mut self, task: TaskId) {
        self.invocations.get_mut(&task).expect("it is there").stage = Stage::Ending;
        self.note(Event::Ending { task });
    }
}
