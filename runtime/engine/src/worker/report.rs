//! Collects the engine's statistics.

use super::Worker;
use super::loaded::Loaded;
use crate::accounts::{Pending, UsageRow};
use crate::clock;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::statistics::{
    ClassStatistics, ConstantState, DeviceStatistics, EngineStatistics, FunctionMemory, FunctionStatistics,
};
use atoll_core::memory::SetState;
use atoll_core::{Class, Nanos, QueueId, Tenant};
use atoll_device::{DomainUse, ExecutorStatistics};
use std::collections::BTreeMap;

/// How much older than the reports of executors the kernel's count of CPU time may be. The count is
/// read 20 times a second.
const CPU_TIME_LAG_NS: u128 = 100_000_000;

impl Worker {
    pub(super) fn statistics(&mut self) -> EngineStatistics {
        self.update_charges();
        let now = clock::now();
        let executors = self.device.executors();
        let usage = self.usage(&executors, now);
        let shares = self.share_statistics();
        let counters = self.scheduler.counters();
        let class = |class: Class| ClassStatistics {
            class,
            admitted: counters.arrived[class as usize],
            finished: counters.finished[class as usize],
            waiting: self.scheduler.waiting(class) as u64,
        };
        let (padding_candidates, padding_modules) = self.padding.modules.candidates();
        let bytes = self.invocation_bytes();
        let mut functions: Vec<_> =
            self.functions.values().map(|loaded| self.function_statistics(loaded, &bytes)).collect();
        functions.sort_by(|a, b| a.key.cmp(&b.key));
        EngineStatistics {
            uptime_ns: now.0.saturating_sub(self.started.0),
            usage,
            tenants: self.tenant_memory(),
            shares,
            functions,
            device: DeviceStatistics {
                name: self.shared.device.name.clone(),
                memory_total_bytes: self.memory.total_bytes(),
                memory_used_bytes: self.memory.used_bytes(),
                memory_used_bytes_max: self.memory.used_bytes_max(),
                constant_bytes: self.memory.constant_bytes(),
                constant_bytes_all: self.memory.constant_bytes_all(),
                compute_units: self.shared.device.compute_units,
                units: self.device.compute_units(),
                queue_depths: (0..self.scheduling.queues)
                    .map(|queue| self.scheduler.device_queue_depth(QueueId(queue)) as u64)
                    .collect(),
                queue_capacity: self.scheduling.queue_capacity,
                lanes: self.lane_statistics(),
                busy_ns: self.device.busy_ns(),
                executors,
                is_unready: self.device.is_unready(),
                lost: self.lost.clone(),
            },
            suspension: self.suspension_statistics(),
            classes: [Class::RealTime, Class::BestEffort].map(class).to_vec(),
            constants: self.holdings.totals,
            cold_invocations: self.memory.cold_count() as u64,
            policy: self.scheduling.policy.name,
            real_time_mode: self.scheduler.is_in_real_time_mode(),
            preemptions: counters.preemptions,
            padded_launches: counters.padded_launches,
            padding_blocks: counters.padding_blocks,
            forks: counters.forks,
            best_effort_slices: counters.best_effort_slices,
            issued_launches: counters.issued_launches,
            evicted_launches: counters.evicted_launches,
            retries: self.retries,
            aborted_launches: counters.aborted_launches,
            reexecuted_blocks: self.reexecuted_blocks,
            discarded_ns: self.discarded_ns,
            padding_modules,
            padding_candidates,
            padding_pending: self.padding.modules.is_pending(),
            rt_start_latency: self.rt_start_latency.clone(),
            preemption_latency: self.preemption_latency.clone(),
            drain_latency: self.drain_latency.clone(),
            flag_latency: self.flag_latency.clone(),
            interrupt_latency: self.interrupt_latency.clone(),
        }
    }

    /// All usage up to now, with the CPU time that the kernel has counted for executors.
    fn usage(&mut self, executors: &ExecutorStatistics, now: Nanos) -> Vec<UsageRow> {
        let lag_ns = u128::from(self.shared.device.compute_units) * CPU_TIME_LAG_NS;
        let Worker { accounts, functions, invocations, .. } = self;
        let pending = invocations.values().flat_map(|invocation| {
            let Submission { chain, class, .. } = &invocation.submission;
            let records = chain.stages.iter().zip(&invocation.stages);
            records.map(|(stage, record)| (functions[&stage.function.id].account(*class), &record.usage))
        });
        let pending = Pending::of(pending);
        // Domains have the names of tenants. The only exception is the domain of a whole GPU, whose
        // executor does not compute on the CPU.
        for DomainUse { domain, cpu_ns, .. } in &executors.domains {
            if let Ok(tenant) = domain.parse::<Tenant>() {
                accounts.bill_cpu(&tenant, *cpu_ns, lag_ns, &pending);
            }
        }
        accounts.rows(&pending, now)
    }

    fn function_statistics(&self, loaded: &Loaded, bytes: &BTreeMap<FunctionId, u64>) -> FunctionStatistics {
        let set = loaded.set;
        let memory = FunctionMemory {
            state: match self.memory.state(set) {
                SetState::Resident => ConstantState::Device,
                SetState::Loading { .. } => ConstantState::Loading,
                SetState::Absent => ConstantState::Host,
            },
            constant_bytes: self.memory.set_bytes(set),
            constant_device_bytes: self.memory.set_device_bytes(set),
            constant_host_bytes: 0,
            invocation_bytes: bytes.get(&loaded.function_id()).copied().unwrap_or_default(),
        };
        FunctionStatistics { memory, constants: self.holdings.counters(set), ..loaded.statistics() }
    }

    /// Bytes of memory of each function's invocations, including memory kept from past ones.
    fn invocation_bytes(&self) -> BTreeMap<FunctionId, u64> {
        let mut bytes: BTreeMap<FunctionId, u64> = BTreeMap::new();
        for (function, instance) in self.holdings.kept.values() {
            *bytes.entry(*function).or_default() += instance.bytes();
        }
        for invocation in self.invocations.values() {
            for (stage, instance) in invocation.submission.chain.stages.iter().zip(&invocation.instances) {
                *bytes.entry(stage.function.id).or_default() += instance.bytes();
            }
        }
        bytes
    }
}
