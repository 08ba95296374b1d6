//! The request `Status` (`atoll top`): the current state of the engines, restricted to what the
//! peer may see.

use super::Control;
use super::requests::{Answered, plain};
use crate::identity::Principal;
use atoll_control::{Answer, DeviceStatus, FunctionStatus, LatencyStatus, StatusReport, UnitStatus, WholeStatus};
use atoll_engine::{Class, ComputeUnitUse, EngineStatistics, FunctionStatistics, Histogram};

impl Control {
    pub(super) async fn status(&self, principal: &Principal) -> Answered {
        plain(Answer::Status(status(self.engine_statistics().await?, principal)))
    }
}

/// The report of all devices; the fields outside `devices` describe the first device.
pub(crate) fn status(statistics: Vec<EngineStatistics>, principal: &Principal) -> StatusReport {
    let (policy, uptime_ns) = statistics.first().map_or(("", 0), |engine| (engine.policy, engine.uptime_ns));
    let devices: Vec<DeviceStatus> = statistics.iter().map(|engine| device(engine, principal)).collect();
    let functions = statistics.into_iter().flat_map(|EngineStatistics { device, functions, .. }| {
        functions
            .into_iter()
            .filter(|function| principal.sees(&function.key.tenant))
            .map(move |found| function(&device.name, found))
    });
    let functions = functions.collect();
    let first = devices.first().cloned();
    StatusReport {
        device: first.as_ref().map_or_else(String::new, |first| first.device.clone()),
        compute_units: first.as_ref().map_or(0, |first| first.compute_units),
        policy: policy.to_owned(),
        uptime_s: uptime_ns as f64 / 1e9,
        lost: first.as_ref().and_then(|first| first.lost.clone()),
        whole: first.and_then(|first| first.whole),
        functions,
        devices,
    }
}

fn device(statistics: &EngineStatistics, principal: &Principal) -> DeviceStatus {
    DeviceStatus {
        device: statistics.device.name.clone(),
        compute_units: statistics.device.compute_units,
        lost: statistics.device.lost.clone(),
        whole: principal.sees_all_tenants.then(|| whole(statistics)),
    }
}

fn whole(statistics: &EngineStatistics) -> WholeStatus {
    let device = &statistics.device;
    let waiting =
        |class: Class| statistics.classes.iter().find(|found| found.class == class).map_or(0, |found| found.waiting);
    let unit = |unit: &ComputeUnitUse| UnitStatus { busy_s: unit.busy_ns as f64 / 1e9, chunks: unit.chunks };
    WholeStatus {
        real_time_mode: statistics.real_time_mode,
        queue_depths: device.queue_depths.clone(),
        queue_capacity: device.queue_capacity,
        real_time_waiting: waiting(Class::RealTime),
        best_effort_waiting: waiting(Class::BestEffort),
        preemptions: statistics.preemptions,
        preemption_latency_us: latency(&statistics.preemption_latency),
        launches: statistics.issued_launches,
        evicted_launches: statistics.evicted_launches,
        padded_launches: statistics.padded_launches,
        memory_bytes: device.memory_total_bytes,
        memory_used_bytes: device.memory_used_bytes,
        units: device.units.iter().map(unit).collect(),
    }
}

fn latency(histogram: &Histogram) -> LatencyStatus {
    let us = |ns: u64| ns as f64 / 1e3;
    LatencyStatus {
        count: histogram.count(),
        p50: us(histogram.quantile_ns(0.5)),
        p99: us(histogram.quantile_ns(0.99)),
        max: us(histogram.max_ns()),
    }
}

fn function(device: &str, function: FunctionStatistics) -> FunctionStatus {
    let FunctionStatistics { key, class, running, in_queue, success, failure, rejected, preemptions, .. } = function;
    FunctionStatus {
        device: device.to_owned(),
        tenant: key.tenant,
        function: key.name,
        class,
        running,
        waiting: in_queue,
        success,
        failure,
        rejected,
        preemptions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_engine::{DeviceStatistics, FunctionKey};

    #[test]
    fn a_tenant_sees_its_functions_and_nothing_of_the_whole() {
        let function = |tenant: &str| FunctionStatistics {
            key: FunctionKey { tenant: tenant.parse().unwrap(), name: "f".into() },
            ..FunctionStatistics::default()
        };
        let engine = |name: &str, preemptions| EngineStatistics {
            functions: vec![function("a"), function("b")],
            device: DeviceStatistics { name: name.into(), ..DeviceStatistics::default() },
            preemptions,
            ..EngineStatistics::default()
        };
        let statistics = || vec![engine("host:0", 7), engine("host:1", 9)];
        let mut principal = Principal::of_test("b");
        let report = status(statistics(), &principal);
        assert_eq!((report.functions.len(), &report.functions[0].tenant, report.whole), (2, &principal.tenant, None));
        assert!(report.devices.iter().all(|device| device.whole.is_none()));
        assert_eq!(report.functions.iter().map(|function| &*function.device).collect::<Vec<_>>(), ["host:0", "host:1"]);
        principal.sees_all_tenants = true;
        let report = status(statistics(), &principal);
        assert_eq!(
            (report.functions.len(), &*report.device, report.whole.map(|whole| whole.preemptions)),
            (4, "host:0", Some(7))
        );
        let devices =
            report.devices.into_iter().map(|device| (device.device, device.whole.map(|whole| whole.preemptions)));
        assert_eq!(devices.collect::<Vec<_>>(), [("host:0".into(), Some(7)), ("host:1".into(), Some(9))]);
    }
}
