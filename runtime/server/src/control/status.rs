//! `top`: what the engine does at the moment, and no more of it than a peer may see.

use super::Control;
use super::access::Principal;
use super::requests::{Answered, plain};
use atoll_control::{Answer, FunctionStatus, LatencyStatus, StatusReport, UnitStatus, WholeStatus};
use atoll_engine::{Class, ComputeUnitUse, EngineStatistics, FunctionStatistics, Histogram};

impl Control {
    pub(super) async fn status(&self, principal: &Principal) -> Answered {
        plain(Answer::Status(status(self.engine_statistics().await?, principal)))
    }
}

fn status(statistics: EngineStatistics, principal: &Principal) -> StatusReport {
    let whole = principal.sees_everybody.then(|| whole(&statistics));
    let EngineStatistics { uptime_ns, policy, device, functions, .. } = statistics;
    StatusReport {
        device: device.name,
        compute_units: device.compute_units,
        policy: policy.to_owned(),
        uptime_s: uptime_ns as f64 / 1e9,
        lost: device.lost,
        whole,
        functions: functions.into_iter().filter(|function| principal.sees(&function.key.tenant)).map(function).collect(),
    }
}

fn whole(statistics: &EngineStatistics) -> WholeStatus {
    let device = &statistics.device;
    let waiting = |class: Class| statistics.classes.iter().find(|found| found.class == class).map_or(0, |found| found.waiting);
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

fn function(function: FunctionStatistics) -> FunctionStatus {
    let FunctionStatistics { key, class, running, in_queue, success, failure, rejected, preemptions, .. } = function;
    FunctionStatus { tenant: key.tenant, function: key.name, class, running, waiting: in_queue, success, failure, rejected, preemptions }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::access::TenantLimits;
    use atoll_engine::FunctionKey;

    #[test]
    fn a_tenant_sees_its_functions_and_nothing_of_the_whole() {
        let function = |tenant: &str| FunctionStatistics {
            key: FunctionKey { tenant: tenant.parse().unwrap(), name: "f".into() },
            ..FunctionStatistics::default()
        };
        let statistics =
            || EngineStatistics { functions: vec![function("a"), function("b")], preemptions: 7, ..EngineStatistics::default() };
        let mut principal = Principal { tenant: "b".parse().unwrap(), limits: TenantLimits::ALL, sees_everybody: false };
        let report = status(statistics(), &principal);
        assert_eq!((report.functions.len(), &report.functions[0].tenant, report.whole), (1, &principal.tenant, None));
        principal.sees_everybody = true;
        let report = status(statistics(), &principal);
        assert_eq!((report.functions.len(), report.whole.map(|whole| whole.preemptions)), (2, Some(7)));
    }
}
