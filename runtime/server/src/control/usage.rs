//! `ps` and `usage`: what the engine tells about itself, in the words of the wire, and no more of it than a peer may see.

use super::Control;
use super::access::Principal;
use super::refusal::panicked;
use super::requests::{Answered, plain};
use crate::inference::blocking;
use atoll_control::{Answer, ExecutorEntry, MemoryEntry, ProcessEntry, ProcessReport, Refusal, Residency, UsageEntry, UsageReport};
use atoll_engine::{
    ConstantState, EngineStatistics, ExecutorProcess, FunctionStatistics, InvocationOutcome, MemoryKind, MemoryUse, Tenant, UsageRow,
};
use std::time::{SystemTime, UNIX_EPOCH};

impl Control {
    pub(super) async fn usage(&self, principal: &Principal) -> Answered {
        plain(Answer::Usage(usage(self.engine_statistics().await?, principal)))
    }

    pub(super) async fn processes(&self, principal: &Principal) -> Answered {
        plain(Answer::Processes(processes(self.engine_statistics().await?, principal)))
    }

    pub(super) async fn engine_statistics(&self) -> Result<EngineStatistics, Refusal> {
        let engine = self.app.engine.clone();
        blocking(move || engine.statistics()).await.ok_or_else(panicked)
    }
}

impl Principal {
    pub(super) fn sees(&self, tenant: &Tenant) -> bool {
        self.sees_everybody || *tenant == self.tenant
    }
}

fn usage(statistics: EngineStatistics, principal: &Principal) -> UsageReport {
    let EngineStatistics { uptime_ns, usage, device, .. } = statistics;
    let device_s = |compute_unit_ns: u128| compute_unit_ns as f64 / 1e9 / f64::from(device.compute_units.max(1));
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    UsageReport {
        started_at_s: now_s.saturating_sub(uptime_ns / 1_000_000_000),
        uptime_s: uptime_ns as f64 / 1e9,
        compute_units: device.compute_units,
        device_s: device.busy_ns.filter(|_| principal.sees_everybody).map(|ns| device_s(ns.into())),
        rows: usage.into_iter().filter(|row| principal.sees(&row.tenant)).map(|row| entry(row, device_s)).collect(),
        device: device.name,
    }
}

fn entry(row: UsageRow, device_s: impl Fn(u128) -> f64) -> UsageEntry {
    let UsageRow { tenant, function, class, usage } = row;
    let memory = |kind: MemoryKind| {
        let MemoryUse { bytes, byte_ns } = usage.memory[kind as usize];
        (kind.label().to_owned(), MemoryEntry { bytes, byte_s: byte_ns as f64 / 1e9 })
    };
    let invocations = |outcome: InvocationOutcome| (outcome.label().to_owned(), usage.invocations[outcome as usize]);
    UsageEntry {
        tenant,
        function,
        class,
        device_s: device_s(usage.compute_unit_ns),
        launches: usage.launches,
        evicted_launches: usage.evicted_launches,
        aborted_launches: usage.aborted_launches,
        memory: MemoryKind::ALL.into_iter().map(memory).collect(),
        written_bytes: usage.written_bytes,
        read_bytes: usage.read_bytes,
        invocations: InvocationOutcome::ALL.into_iter().map(invocations).collect(),
        preemptions: usage.preemptions,
        retries: usage.retries,
        cold_starts: usage.cold_starts,
        disk_cold_starts: usage.disk_cold_starts,
        reclaims: usage.reclaims,
    }
}

fn processes(statistics: EngineStatistics, principal: &Principal) -> ProcessReport {
    let EngineStatistics { functions, device, .. } = statistics;
    ProcessReport {
        device: device.name,
        compute_units: device.compute_units,
        memory_bytes: device.memory_total_bytes,
        memory_used_bytes: device.memory_used_bytes,
        lost: device.lost,
        functions: functions.into_iter().filter(|function| principal.sees(&function.key.tenant)).map(process).collect(),
        executors: device.executors.processes.into_iter().filter_map(executor).filter(|entry| principal.sees(&entry.tenant)).collect(),
    }
}

fn executor(process: ExecutorProcess) -> Option<ExecutorEntry> {
    let ExecutorProcess { domain, pid, losses, cause, jail_lacks } = process;
    // The engine names domains after tenants.
    Some(ExecutorEntry { tenant: domain.parse().ok()?, pid, restarts: losses, cause, jail_lacks })
}

fn process(function: FunctionStatistics) -> ProcessEntry {
    let FunctionStatistics { key, class, memory, running, in_queue, .. } = function;
    let residency = match memory.state {
        ConstantState::Device => Residency::Device,
        ConstantState::Loading => Residency::Loading,
        ConstantState::Host => Residency::Host,
    };
    ProcessEntry {
        tenant: key.tenant,
        function: key.name,
        class,
        residency,
        constant_bytes: memory.constant_bytes,
        constant_device_bytes: memory.constant_device_bytes,
        constant_host_bytes: memory.constant_host_bytes,
        invocation_bytes: memory.invocation_bytes,
        running,
        waiting: in_queue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::access::TenantLimits;
    use atoll_engine::{Class, DeviceStatistics, ExecutorStatistics, FunctionKey, Usage};

    fn statistics() -> EngineStatistics {
        let tenants: [Tenant; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let row = |tenant: &Tenant| UsageRow {
            tenant: tenant.clone(),
            function: Some("f".into()),
            class: Class::RealTime,
            usage: Usage { compute_unit_ns: 3_000_000_000, ..Usage::default() },
        };
        let function = |tenant: &Tenant| FunctionStatistics {
            key: FunctionKey { tenant: tenant.clone(), name: "f".into() },
            ..FunctionStatistics::default()
        };
        EngineStatistics {
            usage: tenants.iter().map(row).collect(),
            functions: tenants.iter().map(function).collect(),
            device: DeviceStatistics {
                compute_units: 2,
                busy_ns: Some(6_000_000_000),
                executors: ExecutorStatistics {
                    processes: ["a", "b"].map(|domain| ExecutorProcess { domain: domain.into(), ..ExecutorProcess::default() }).into(),
                    ..ExecutorStatistics::default()
                },
                ..DeviceStatistics::default()
            },
            ..EngineStatistics::default()
        }
    }

    #[test]
    fn a_tenant_sees_its_own_and_nobody_learns_of_others() {
        let mut principal = Principal { tenant: "b".parse().unwrap(), limits: TenantLimits::ALL, sees_everybody: false };
        let report = usage(statistics(), &principal);
        let owners = |report: &UsageReport| report.rows.iter().map(|row| row.tenant.to_string()).collect::<Vec<_>>();
        assert_eq!((owners(&report), report.device_s, report.rows[0].device_s), (vec!["b".to_owned()], None, 1.5));
        let report = processes(statistics(), &principal);
        assert_eq!((report.functions.len(), report.executors.len(), &report.executors[0].tenant), (1, 1, &principal.tenant));
        principal.sees_everybody = true;
        let report = usage(statistics(), &principal);
        assert_eq!((owners(&report).len(), report.device_s), (2, Some(3.0)));
        let report = processes(statistics(), &principal);
        assert_eq!((report.functions.len(), report.executors.len()), (2, 2));
    }
}
