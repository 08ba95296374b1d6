//! A snapshot of the daemon, and the view that a principal has of it.

use super::events::{Event, Events};
use crate::control::status::status;
use crate::control::usage::{processes, usage};
use crate::identity::Principal;
use crate::inference::blocking;
use crate::latency::{BOUNDS, Distribution, bound_ns};
use crate::limits::{DASHBOARD_INTERVAL, DASHBOARD_ROWS_MAX};
use crate::prices::Prices;
use atoll_control::{ProcessReport, StatusReport, UsageReport};
use atoll_engine::{Class, EngineStatistics, FunctionKey, FunctionName, Ppm, Tenant};
use atoll_fleet::FleetStatus;
use axum::body::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// The daemon at one moment.
pub(crate) struct Snapshot {
    /// Nanoseconds since 1970.
    pub(super) at_ns: u64,
    /// The same moment, in nanoseconds of the monotonic clock.
    pub(super) monotonic_ns: u64,
    pub(super) statistics: Vec<EngineStatistics>,
    pub(super) fleet: FleetStatus,
    pub(super) prices: Prices,
    pub(super) latencies: Vec<FunctionLatencies>,
    pub(super) events: Events,
    pub(super) events_lost: u64,
    pub(super) views: Views,
}

/// Encoded views. The key says whether the viewer sees all tenants, and the viewer's tenant.
pub(super) type Views = Mutex<BTreeMap<(bool, Tenant), Arc<OnceCell<Bytes>>>>;

/// Latencies of the requests of a function in one class.
pub(crate) struct FunctionLatencies {
    pub(super) key: FunctionKey,
    pub(super) class: Class,
    pub(super) distribution: Distribution,
}

/// The JSON that a viewer gets. Its reports are those of `atoll top`, `atoll ps` and `atoll usage`.
#[derive(Serialize)]
struct View<'a> {
    /// Seconds since 1970.
    at_s: f64,
    interval_ms: u64,
    viewer: Viewer<'a>,
    status: StatusReport,
    processes: ProcessReport,
    usage: UsageReport,
    pool: Option<Pool>,
    lanes: Vec<Lane<'a>>,
    shares: Vec<Share<'a>>,
    latency_bounds_us: Vec<f64>,
    latencies: Vec<Latency<'a>>,
    events: Vec<EventView<'a>>,
    /// Number of trace records that were not read in time, so that events may be missing. A viewer
    /// that sees one tenant gets 0 or 1 only.
    events_lost: u64,
    /// Number of rows that were left out of lists that are too long.
    left_out: usize,
}

#[derive(Serialize)]
struct Viewer<'a> {
    tenant: &'a Tenant,
    sees_all_tenants: bool,
}

/// The queue in front of the devices.
#[derive(Serialize)]
struct Pool {
    policy: Option<&'static str>,
    waiting: u64,
}

#[derive(Serialize)]
struct Lane<'a> {
    device: &'a str,
    lane: u32,
    /// Indices of its compute units.
    units: &'a [u32],
    invocations: u64,
    queue_depths: &'a [u64],
    closing: bool,
}

#[derive(Serialize)]
struct Share<'a> {
    device: &'a str,
    lane: u32,
    tenant: &'a Tenant,
    /// `None` for the share of a whole tenant.
    instance: Option<&'a str>,
    /// In percent, as in `atoll instance`.
    sm_partition: f64,
    quota_request: f64,
    quota_limit: f64,
    received: f64,
    has_token: bool,
    tokens: u64,
    recalls: u64,
    p99_overshoot_us: f64,
}

#[derive(Serialize)]
struct Latency<'a> {
    tenant: &'a Tenant,
    function: &'a str,
    class: Class,
    sum_s: f64,
    /// Pairs of the index of a bound and the number of requests with a latency up to it and above
    /// the bound before. The index after the last bound counts longer ones.
    counts: &'a [(usize, u64)],
}

#[derive(Serialize)]
struct EventView<'a> {
    number: u64,
    at_s: f64,
    device: &'a str,
    kind: &'static str,
    tenant: Option<&'a str>,
    function: Option<&'a str>,
    class: Option<Class>,
    by_tenant: Option<&'a str>,
    by_function: Option<&'a str>,
}

impl Snapshot {
    /// The view of a principal as JSON. It is encoded once for all viewers with the same view, on a
    /// blocking thread. `None` if that panicked.
    pub(crate) async fn view(self: &Arc<Snapshot>, principal: &Principal) -> Option<Bytes> {
        let key = (principal.sees_all_tenants, principal.tenant.clone());
        let view = self.views.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let make = || async {
            let (snapshot, principal) = (self.clone(), principal.clone());
            blocking(move || snapshot.json(&principal)).await.ok_or(())
        };
        view.get_or_try_init(make).await.ok().cloned()
    }

    fn json(&self, principal: &Principal) -> Bytes {
        // Reports contain only names and finite numbers, which are always valid JSON.
        serde_json::to_vec(&self.of(principal)).unwrap_or_default().into()
    }

    fn of<'a>(&'a self, principal: &'a Principal) -> View<'a> {
        let mut left_out = 0;
        let mut status = status(self.statistics.clone(), principal);
        cut(&mut status.functions, &mut left_out);
        let mut processes = processes(self.statistics.clone(), principal);
        cut(&mut processes.functions, &mut left_out);
        // Left out here: the list `shares` of the view has more fields.
        processes.shares = Vec::new();
        let mut usage = usage(self.statistics.clone(), principal, &self.prices);
        cut(&mut usage.rows, &mut left_out);
        let mut shares = self.shares(principal);
        cut(&mut shares, &mut left_out);
        let mut latencies = self.latencies(principal);
        cut(&mut latencies, &mut left_out);
        let sees_all = principal.sees_all_tenants;
        View {
            at_s: seconds(self.at_ns),
            interval_ms: DASHBOARD_INTERVAL.as_millis() as u64,
            viewer: Viewer { tenant: &principal.tenant, sees_all_tenants: sees_all },
            status,
            processes,
            usage,
            pool: sees_all.then_some(Pool { policy: self.fleet.policy, waiting: self.fleet.waiting }),
            lanes: if sees_all { self.lanes() } else { Vec::new() },
            shares,
            latency_bounds_us: (0..BOUNDS).map(|at| bound_ns(at) as f64 / 1e3).collect(),
            latencies,
            events: self.recent(principal),
            // The exact number would reveal how busy other tenants are.
            events_lost: if sees_all { self.events_lost } else { self.events_lost.min(1) },
            left_out,
        }
    }

    fn lanes(&self) -> Vec<Lane<'_>> {
        let lanes = self.statistics.iter().flat_map(|engine| {
            engine.device.lanes.iter().map(|lane| Lane {
                device: &engine.device.name,
                lane: lane.lane.0,
                units: &lane.units,
                invocations: lane.invocations,
                queue_depths: &lane.queue_depths,
                closing: lane.is_closing,
            })
        });
        lanes.collect()
    }

    fn shares(&self, principal: &Principal) -> Vec<Share<'_>> {
        let all =
            self.statistics.iter().flat_map(|engine| engine.shares.iter().map(|share| (&engine.device.name, share)));
        let seen = all.filter(|(_, share)| principal.sees(&share.client.tenant));
        let fraction = |ppm: Ppm| f64::from(ppm.millionths()) / 1e6;
        seen.map(|(device, share)| Share {
            device,
            lane: share.lane.0,
            tenant: &share.client.tenant,
            instance: share.client.instance.as_deref(),
            sm_partition: fraction(share.share.partition()) * 100.0,
            quota_request: fraction(share.share.request()),
            quota_limit: fraction(share.share.limit()),
            received: share.received_ratio,
            has_token: share.has_token,
            tokens: share.tokens,
            recalls: share.recalls,
            p99_overshoot_us: share.overshoot.quantile_ns(0.99) as f64 / 1e3,
        })
        .collect()
    }

    fn latencies(&self, principal: &Principal) -> Vec<Latency<'_>> {
        let seen = self.latencies.iter().filter(|latencies| principal.sees(&latencies.key.tenant));
        seen.map(|FunctionLatencies { key, class, distribution }| Latency {
            tenant: &key.tenant,
            function: &key.name,
            class: *class,
            sum_s: seconds(distribution.sum_ns),
            counts: &distribution.counts,
        })
        .collect()
    }

    /// The events that the principal may see.
    fn recent<'a>(&'a self, principal: &Principal) -> Vec<EventView<'a>> {
        let recent = match principal.sees_all_tenants {
            true => Some(&self.events.all),
            false => self.events.of_tenants.get(principal.tenant.as_str()),
        };
        recent.into_iter().flat_map(|recent| recent.events.iter()).map(|event| self.event(event, principal)).collect()
    }

    /// An event, without names that the principal may not see.
    fn event<'a>(&self, event: &'a Event, principal: &Principal) -> EventView<'a> {
        let sees_all = principal.sees_all_tenants;
        let sees = |function: &FunctionName| sees_all || function.tenant == principal.tenant.as_str();
        let function = event.function.as_deref();
        let by = event.by.as_deref().filter(|by| sees(by));
        let ago = self.monotonic_ns.saturating_sub(event.at_ns);
        EventView {
            number: if sees_all { event.number } else { event.own_number },
            at_s: seconds(self.at_ns.saturating_sub(ago)),
            device: &event.device,
            kind: event.kind.label(),
            tenant: function.map(|function| function.tenant.as_str()),
            function: function.map(|function| function.name.as_str()),
            class: function.map(|function| function.class),
            by_tenant: by.map(|by| by.tenant.as_str()),
            by_function: by.map(|by| by.name.as_str()),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Limits the length of a list, and counts the rows that are left out.
fn cut<T>(list: &mut Vec<T>, left_out: &mut usize) {
    *left_out += list.len().saturating_sub(DASHBOARD_ROWS_MAX);
    list.truncate(DASHBOARD_ROWS_MAX);
}

#[cfg(test)]
mod tests {
    use super::super::events::Kind;
    use super::*;
    use atoll_engine::{DeviceStatistics, FunctionStatistics, LaneId, LaneStatistics};
    use serde_json::Value;

    fn snapshot() -> Snapshot {
        let key = |tenant: &str| FunctionKey { tenant: tenant.parse().unwrap(), name: format!("{tenant}-function") };
        let function = |tenant: &str| FunctionStatistics { key: key(tenant), ..FunctionStatistics::default() };
        let name = |tenant: &str| {
            let (name, class) = (format!("{tenant}-function"), Class::RealTime);
            Some(Arc::new(FunctionName { tenant: tenant.into(), name, class, nodes: Vec::new() }))
        };
        let mut events = Events::default();
        for (of, by) in [("a", "b"), ("b", "a")] {
            let (device, kind, at_ns) = ("host:0".into(), Kind::Preempted, 3_000_000_000);
            events.push(Event { number: 0, own_number: 0, at_ns, device, kind, function: name(of), by: name(by) });
        }
        let distribution = || Distribution { sum_ns: 1_500_000_000, counts: vec![(3, 2)] };
        let latencies =
            |tenant| FunctionLatencies { key: key(tenant), class: Class::RealTime, distribution: distribution() };
        let lane = LaneStatistics {
            lane: LaneId(0),
            units: vec![0, 1],
            invocations: 1,
            queue_depths: vec![2, 0],
            is_closing: false,
        };
        let engine = EngineStatistics {
            functions: vec![function("a"), function("b")],
            device: DeviceStatistics { name: "host:0".into(), lanes: vec![lane], ..DeviceStatistics::default() },
            ..EngineStatistics::default()
        };
        Snapshot {
            at_ns: 100_000_000_000,
            monotonic_ns: 5_000_000_000,
            statistics: vec![engine],
            fleet: FleetStatus::default(),
            prices: Prices::default(),
            latencies: vec![latencies("a"), latencies("b")],
            events,
            events_lost: 7,
            views: Views::default(),
        }
    }

    fn view(snapshot: &Snapshot, principal: &Principal) -> Value {
        serde_json::from_slice(&snapshot.json(principal)).unwrap()
    }

    #[test]
    fn a_tenant_sees_its_own_and_no_name_of_others() {
        let (snapshot, mut principal) = (snapshot(), Principal::of_test("b"));
        let seen = view(&snapshot, &principal);
        assert!(!seen.to_string().contains("a-function"), "{seen}");
        let lists = ["/status/functions", "/processes/functions", "/latencies", "/events"];
        let lengths = |view: &Value| lists.map(|list| view.pointer(list).unwrap().as_array().unwrap().len());
        assert_eq!(lengths(&seen), [1; 4]);
        assert_eq!((&seen["events"][0]["number"], &seen["events_lost"]), (&0.into(), &1.into()), "no counts of others");
        assert_eq!((seen["lanes"].as_array().map(Vec::len), &seen["pool"]), (Some(0), &Value::Null));
        principal.sees_all_tenants = true;
        let seen = view(&snapshot, &principal);
        assert_eq!(lengths(&seen), [2; 4]);
        assert_eq!(seen["lanes"][0]["queue_depths"], serde_json::json!([2, 0]));
        assert_eq!(
            (&seen["events"][1]["by_function"], &seen["events"][1]["at_s"]),
            (&"a-function".into(), &98.0.into())
        );
    }

    #[tokio::test]
    async fn a_view_is_made_once_for_each_viewer_that_sees_something_else() {
        let (snapshot, mut principal) = (Arc::new(snapshot()), Principal::of_test("b"));
        let own = snapshot.view(&principal).await.unwrap();
        assert_eq!(snapshot.view(&principal).await.unwrap().as_ptr(), own.as_ptr());
        for (tenant, sees_all) in [("b", true), ("a", true), ("a", false)] {
            principal = Principal::of_test(tenant);
            principal.sees_all_tenants = sees_all;
            let seen: Value = serde_json::from_slice(&snapshot.view(&principal).await.unwrap()).unwrap();
            assert_eq!(seen["viewer"], serde_json::json!({ "tenant": tenant, "sees_all_tenants": sees_all }));
        }
    }

    #[test]
    fn long_lists_are_cut_and_the_view_says_so() {
        let mut snapshot = snapshot();
        let engine = &mut snapshot.statistics[0];
        engine.functions = vec![engine.functions[0].clone(); DASHBOARD_ROWS_MAX + 3];
        let mut principal = Principal::of_test("a");
        principal.sees_all_tenants = true;
        let seen = view(&snapshot, &principal);
        assert_eq!(seen["status"]["functions"].as_array().map(Vec::len), Some(DASHBOARD_ROWS_MAX));
        // Both the list of functions and that of processes.
        assert_eq!(seen["left_out"], 6);
    }
}
