//! The requests `Processes` (`atoll ps`) and `Usage` (`atoll usage`): the engines' statistics as
//! types of the control protocol, restricted to what the peer may see.

use super::Control;
use super::instances::shares;
use super::refusal::panicked;
use super::requests::{Answered, plain};
use crate::deployed::Deployed;
use crate::graphs::StageUse;
use crate::identity::Principal;
use crate::prices::{CPU, Prices};
use crate::threads::for_client;
use atoll_control::{
    Answer, BilledBy, DeviceEntry, DeviceUsage, ExecutorEntry, ExecutorMemory, ExecutorUsage, MemoryEntry,
    ProcessEntry, ProcessReport, QuotaEntry, Refusal, Residency, UsageEntry, UsageReport,
};
use atoll_engine::{
    ConstantState, DeviceStatistics, DomainUse, EngineStatistics, ExecutorProcess, FunctionStatistics, GroupUse,
    InvocationOutcome, MemoryKind, MemoryUse, Tenant, UsageRow,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The device of rings in reports.
const RING: &str = "ring";

impl Control {
    pub(super) async fn usage(&self, principal: &Principal) -> Answered {
        let mut report = usage(self.engine_statistics().await?, principal, &self.app.prices);
        report.executors.extend(self.stage_usage(principal));
        report.executors.extend(self.ring_usage(principal));
        let quotas = self.quotas(principal, &report);
        plain(Answer::Usage(UsageReport { quotas, ..report }))
    }

    /// CPU time of stage processes, for the tenants that the peer may see and that called CPU
    /// stages.
    fn stage_usage(&self, principal: &Principal) -> Vec<ExecutorUsage> {
        let usage = self.app.stage_processes.usage().into_iter();
        let used = usage.filter(|(tenant, used)| principal.sees(tenant) && used.starts > 0);
        let price = self.app.prices.cpu_units();
        let entry = |(tenant, used): (Tenant, StageUse)| {
            let cpu_s = used.cpu_ns as f64 / 1e9;
            ExecutorUsage {
                device: CPU.into(),
                tenant,
                cpu_s,
                price: price.map(|price| price * cpu_s),
                memory: used.group.as_ref().map(memory_of),
            }
        };
        used.map(entry).collect()
    }

    /// CPU time of the daemon's threads of rings, for the tenants that the peer may see and that had
    /// rings. It has the price of CPU stages.
    fn ring_usage(&self, principal: &Principal) -> Vec<ExecutorUsage> {
        let used = self.app.rings.cpu().into_iter().filter(|(tenant, _)| principal.sees(tenant));
        let price = self.app.prices.cpu_units();
        let entry = |(tenant, cpu): (Tenant, Duration)| {
            let cpu_s = cpu.as_secs_f64();
            ExecutorUsage { device: RING.into(), tenant, cpu_s, price: price.map(|price| price * cpu_s), memory: None }
        };
        used.map(entry).collect()
    }

    /// The quotas of the tenants that the peer sees and that use something, and those of its own
    /// tenant.
    fn quotas(&self, principal: &Principal, report: &UsageReport) -> Vec<QuotaEntry> {
        let mut tenants: BTreeSet<Tenant> = report.rows.iter().map(|row| row.tenant.clone()).collect();
        tenants.extend(self.deployed.all().into_iter().map(|function| function.key.tenant.clone()));
        tenants.extend(self.store.tenants());
        tenants.extend(self.app.running.all().into_iter().map(|(tenant, _)| tenant));
        tenants.insert(principal.tenant.clone());
        tenants
            .into_iter()
            .filter(|tenant| principal.sees(tenant))
            .flat_map(|tenant| self.quotas_of(tenant, report))
            .collect()
    }

    fn quotas_of(&self, tenant: Tenant, report: &UsageReport) -> Vec<QuotaEntry> {
        let limits = self.deployed.limits(&tenant);
        let functions = self.deployed.of(&tenant);
        let objects = self.store.usage(&tenant);
        let descriptors = functions.iter().map(|function| function.constants).sum();
        let used = [
            ("functions", functions.len() as u64, limits.functions),
            ("invocations", self.app.running.of(&tenant), limits.invocations),
            ("compile_seconds_per_hour", self.deployed.compile_seconds(&tenant), limits.compile_seconds_per_hour),
            ("device_bytes", held_bytes(&tenant, report), limits.device.all),
            ("descriptors", descriptors, limits.descriptors),
            ("bundle_bytes", Deployed::bundle_bytes(&functions), limits.bundle_bytes),
            ("object_bytes", objects.bytes, limits.objects.all.bytes),
            ("object_count", objects.count, limits.objects.all.count),
        ];
        let entry = |(quota, used, limit): (&str, u64, u64)| QuotaEntry {
            tenant: tenant.clone(),
            quota: quota.into(),
            used,
            limit: (limit != u64::MAX).then_some(limit),
        };
        used.into_iter().map(entry).collect()
    }

    pub(super) async fn processes(&self, principal: &Principal) -> Answered {
        plain(Answer::Processes(processes(self.engine_statistics().await?, principal)))
    }

    pub(super) async fn engine_statistics(&self) -> Result<Vec<EngineStatistics>, Refusal> {
        let app = self.app.clone();
        for_client(move || app.statistics()).await.ok_or_else(panicked)
    }
}

/// The report of all devices; the fields outside `devices` describe the first device.
pub(crate) fn usage(statistics: Vec<EngineStatistics>, principal: &Principal, prices: &Prices) -> UsageReport {
    let uptime_ns = statistics.first().map_or(0, |engine| engine.uptime_ns);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let of = |(at, engine): (usize, &EngineStatistics)| device_usage(&engine.device, principal, prices.units(at));
    let devices: Vec<DeviceUsage> = statistics.iter().enumerate().map(of).collect();
    let executors = statistics.iter().flat_map(|engine| executor_usage(&engine.device, principal)).collect();
    let rows = statistics.into_iter().enumerate().flat_map(|(at, EngineStatistics { device, usage, .. })| {
        let price_per_s = prices.units(at);
        usage.into_iter().filter(|row| principal.sees(&row.tenant)).map(move |row| entry(&device, row, price_per_s))
    });
    let rows = rows.collect();
    let first = devices.first().cloned();
    UsageReport {
        started_at_s: now_s.saturating_sub(uptime_ns / 1_000_000_000),
        uptime_s: uptime_ns as f64 / 1e9,
        compute_units: first.as_ref().map_or(0, |first| first.compute_units),
        device_s: first.as_ref().and_then(|first| first.device_s),
        device: first.map_or_else(String::new, |first| first.device),
        rows,
        devices,
        executors,
        cpu_price_per_s: prices.cpu_units(),
        quotas: Vec::new(),
    }
}

/// Device memory that a tenant holds, in bytes: the maximum over all devices, since the quota
/// applies to each device.
fn held_bytes(tenant: &Tenant, report: &UsageReport) -> u64 {
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for row in report.rows.iter().filter(|row| row.tenant == *tenant) {
        *held.entry(&row.device).or_default() += row.memory.values().map(|memory| memory.bytes).sum::<u64>();
    }
    held.into_values().max().unwrap_or_default()
}

/// The counts of a control group.
fn memory_of(group: &GroupUse) -> ExecutorMemory {
    ExecutorMemory {
        limit_bytes: group.limit.map(|limit| limit.bytes()),
        bytes: group.current_bytes,
        peak_bytes: group.peak_bytes,
        kills: group.kills,
        throttled_s: group.throttled_ns as f64 / 1e9,
    }
}

/// The resources that the executors of a device used, for tenants that the peer sees.
fn executor_usage(device: &DeviceStatistics, principal: &Principal) -> Vec<ExecutorUsage> {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let entry = |used: &DomainUse| {
        let tenant: Tenant = used.domain.parse().ok()?;
        principal.sees(&tenant).then(|| ExecutorUsage {
            device: device.name.clone(),
            tenant,
            cpu_s: seconds(used.cpu_ns),
            price: None,
            memory: used.group.as_ref().map(memory_of),
        })
    };
    device.executors.domains.iter().filter_map(entry).collect()
}

fn device_usage(device: &DeviceStatistics, principal: &Principal, price_per_s: Option<f64>) -> DeviceUsage {
    DeviceUsage {
        device: device.name.clone(),
        compute_units: device.compute_units,
        device_s: device.busy_ns.filter(|_| principal.sees_all_tenants).map(|ns| device_s(device, ns.into())),
        price_per_s,
    }
}

/// Converts compute-unit time to time of the whole device.
fn device_s(device: &DeviceStatistics, compute_unit_ns: u128) -> f64 {
    compute_unit_ns as f64 / 1e9 / f64::from(device.compute_units.max(1))
}

fn entry(device: &DeviceStatistics, row: UsageRow, price_per_s: Option<f64>) -> UsageEntry {
    let billed_s = device_s(device, row.billed_ns());
    let UsageRow { tenant, function, class, usage, is_billed_by_cpu } = row;
    let memory = |kind: MemoryKind| {
        let MemoryUse { bytes, byte_ns } = usage.memory[kind as usize];
        (kind.label().to_owned(), MemoryEntry { bytes, byte_s: byte_ns as f64 / 1e9 })
    };
    let invocations = |outcome: InvocationOutcome| (outcome.label().to_owned(), usage.invocations[outcome as usize]);
    UsageEntry {
        device: device.name.clone(),
        tenant,
        function,
        class,
        device_s: device_s(device, usage.compute_unit_ns),
        billed_s,
        billed_by: if is_billed_by_cpu { BilledBy::Kernel } else { BilledBy::Report },
        price: price_per_s.map(|price| price * billed_s),
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

/// The report of all devices; the fields outside `devices` describe the first device.
pub(crate) fn processes(statistics: Vec<EngineStatistics>, principal: &Principal) -> ProcessReport {
    let devices: Vec<DeviceEntry> = statistics.iter().map(|engine| device_entry(&engine.device)).collect();
    let shares = shares(&statistics, principal);
    let (mut functions, mut executors) = (Vec::new(), Vec::new());
    for engine in statistics {
        let DeviceStatistics { name, executors: own, .. } = engine.device;
        let seen = engine.functions.into_iter().filter(|function| principal.sees(&function.key.tenant));
        functions.extend(seen.map(|function| process(&name, function)));
        let entries = own.processes.into_iter().filter_map(|process| executor(&name, process));
        executors.extend(entries.filter(|entry| principal.sees(&entry.tenant)));
    }
    let first = devices.first().cloned();
    ProcessReport {
        device: first.as_ref().map_or_else(String::new, |first| first.device.clone()),
        compute_units: first.as_ref().map_or(0, |first| first.compute_units),
        memory_bytes: first.as_ref().map_or(0, |first| first.memory_bytes),
        memory_used_bytes: first.as_ref().map_or(0, |first| first.memory_used_bytes),
        lost: first.and_then(|first| first.lost),
        functions,
        executors,
        shares,
        devices,
    }
}

fn device_entry(device: &DeviceStatistics) -> DeviceEntry {
    DeviceEntry {
        device: device.name.clone(),
        compute_units: device.compute_units,
        memory_bytes: device.memory_total_bytes,
        memory_used_bytes: device.memory_used_bytes,
        unready: device.is_unready,
        lost: device.lost.clone(),
    }
}

fn executor(device: &str, process: ExecutorProcess) -> Option<ExecutorEntry> {
    let ExecutorProcess { domain, pid, losses, cpu_ns, cause, jail_lacks, group } = process;
    // Domains are named after tenants.
    Some(ExecutorEntry {
        device: device.to_owned(),
        tenant: domain.parse().ok()?,
        pid,
        restarts: losses,
        cpu_s: cpu_ns as f64 / 1e9,
        memory_limit_bytes: group.and_then(|group| Some(group.limit?.bytes())),
        cause,
        jail_lacks,
    })
}

fn process(device: &str, function: FunctionStatistics) -> ProcessEntry {
    let FunctionStatistics { key, class, memory, running, in_queue, .. } = function;
    let residency = match memory.state {
        ConstantState::Device => Residency::Device,
        ConstantState::Loading => Residency::Loading,
        ConstantState::Host => Residency::Host,
    };
    ProcessEntry {
        device: device.to_owned(),
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
    use atoll_engine::{Class, ExecutorStatistics, FunctionKey, Tenant, Usage};

    /// Two devices, each with functions of two tenants.
    fn statistics() -> Vec<EngineStatistics> {
        vec![engine("host:0"), engine("host:1")]
    }

    fn engine(name: &str) -> EngineStatistics {
        let tenants: [Tenant; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let row = |tenant: &Tenant| UsageRow {
            tenant: tenant.clone(),
            function: Some("f".into()),
            class: Class::RealTime,
            usage: Usage { compute_unit_ns: 3_000_000_000, cpu_ns: 5_000_000_000, ..Usage::default() },
            is_billed_by_cpu: false,
        };
        let function = |tenant: &Tenant| FunctionStatistics {
            key: FunctionKey { tenant: tenant.clone(), name: "f".into() },
            ..FunctionStatistics::default()
        };
        EngineStatistics {
            usage: tenants.iter().map(row).collect(),
            functions: tenants.iter().map(function).collect(),
            device: DeviceStatistics {
                name: name.into(),
                compute_units: 2,
                busy_ns: Some(6_000_000_000),
                executors: ExecutorStatistics {
                    processes: ["a", "b"]
                        .map(|domain| ExecutorProcess { domain: domain.into(), ..ExecutorProcess::default() })
                        .into(),
                    ..ExecutorStatistics::default()
                },
                ..DeviceStatistics::default()
            },
            ..EngineStatistics::default()
        }
    }

    #[test]
    fn device_time_has_the_price_of_its_device() {
        let prices = Prices::of(&[("host:1".into(), 2_000_000)].into(), &["host:0".into(), "host:1".into()]).unwrap();
        let mut principal = Principal::of_test("b");
        principal.sees_all_tenants = true;
        let report = usage(statistics(), &principal, &prices);
        assert_eq!(report.devices.iter().map(|device| device.price_per_s).collect::<Vec<_>>(), [Some(0.0), Some(2.0)]);
        let bills: Vec<_> = report.rows.iter().map(|row| (&*row.device, row.price)).collect();
        assert_eq!(bills, [("host:0", Some(0.0)), ("host:0", Some(0.0)), ("host:1", Some(3.0)), ("host:1", Some(3.0))]);
        assert!(usage(statistics(), &principal, &Prices::default()).rows.iter().all(|row| row.price.is_none()));
    }

    #[test]
    fn cpu_time_is_billed_where_the_kernel_counts_it() {
        let mut statistics = statistics();
        statistics[1].usage.iter_mut().for_each(|row| row.is_billed_by_cpu = true);
        let prices = Prices::of(&[("host:1".into(), 2_000_000)].into(), &["host:0".into(), "host:1".into()]).unwrap();
        let report = usage(statistics, &Principal::of_test("b"), &prices);
        let bills: Vec<_> =
            report.rows.iter().map(|row| (row.device_s, row.billed_s, row.billed_by, row.price)).collect();
        let expected = [(1.5, 1.5, BilledBy::Report, Some(0.0)), (1.5, 2.5, BilledBy::Kernel, Some(5.0))];
        assert_eq!(bills, expected);
    }

    #[test]
    fn a_tenant_sees_only_its_own_usage() {
        let mut principal = Principal::of_test("b");
        let report = usage(statistics(), &principal, &Prices::default());
        let owners = |report: &UsageReport| report.rows.iter().map(|row| row.tenant.to_string()).collect::<Vec<_>>();
        assert_eq!((owners(&report), report.device_s, report.rows[0].device_s), (vec!["b".to_owned(); 2], None, 1.5));
        assert_eq!(report.rows.iter().map(|row| &*row.device).collect::<Vec<_>>(), ["host:0", "host:1"]);
        assert!(report.devices.iter().all(|device| device.device_s.is_none()));
        let report = processes(statistics(), &principal);
        assert_eq!(
            (report.functions.len(), report.executors.len(), &report.executors[0].tenant),
            (2, 2, &principal.tenant)
        );
        assert_eq!(report.executors.iter().map(|entry| &*entry.device).collect::<Vec<_>>(), ["host:0", "host:1"]);
        principal.sees_all_tenants = true;
        let report = usage(statistics(), &principal, &Prices::default());
        assert_eq!((owners(&report).len(), report.device_s), (4, Some(3.0)));
        assert_eq!(
            report.devices.iter().map(|device| (&*device.device, device.device_s)).collect::<Vec<_>>(),
            [("host:0", Some(3.0)), ("host:1", Some(3.0))]
        );
        let report = processes(statistics(), &principal);
        assert_eq!((report.functions.len(), report.executors.len(), report.devices.len()), (4, 4, 2));
    }
}
