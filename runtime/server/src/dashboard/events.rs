//! Recent preemptions, aborts, hangs and lost devices, read from the trace of each device.

use crate::limits::{DASHBOARD_EVENT_TENANTS_MAX, DASHBOARD_EVENTS_MAX, DASHBOARD_TRACE_BATCHES_MAX};
use atoll_engine::{Class, DeviceId, FunctionName, TraceBatch};
use atoll_trace::{EventKind, Raise, Record};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Something that happened to a task or to a device.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Its number among the events of this producer, from 0.
    pub(crate) number: u64,
    /// Its number among the events of its tenant. A tenant sees only this number, so that it cannot
    /// count the events of others.
    pub(crate) own_number: u64,
    /// When it happened, in nanoseconds of the monotonic clock.
    pub(crate) at_ns: u64,
    pub(crate) device: Arc<str>,
    pub(crate) kind: Kind,
    /// The function of the task; `None` for an event of the device.
    pub(crate) function: Option<Arc<FunctionName>>,
    /// For a preemption, the function of the real-time request that arrived last before it.
    pub(crate) by: Option<Arc<FunctionName>>,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A task was evicted in favour of another.
    Preempted,
    /// A launch that could not be evicted was aborted.
    Aborted,
    /// A launch did not end although it was aborted.
    Hung,
    /// The device was lost.
    DeviceLost,
}

impl Kind {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Kind::Preempted => "preempted",
            Kind::Aborted => "aborted",
            Kind::Hung => "hung",
            Kind::DeviceLost => "device-lost",
        }
    }

    fn of(kind: &EventKind) -> Option<Kind> {
        match kind {
            EventKind::Raised { why: Raise::Preempted, .. } => Some(Kind::Preempted),
            EventKind::Aborting { .. } => Some(Kind::Aborted),
            EventKind::Hung { .. } => Some(Kind::Hung),
            EventKind::DeviceLost => Some(Kind::DeviceLost),
            _ => None,
        }
    }
}

/// The last events, the oldest first. Clones share the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    pub(crate) events: Arc<VecDeque<Arc<Event>>>,
    next: u64,
}

impl Recent {
    fn push(&mut self, event: &Arc<Event>) {
        let events = Arc::make_mut(&mut self.events);
        events.push_back(event.clone());
        if events.len() > DASHBOARD_EVENTS_MAX {
            events.pop_front();
        }
        self.next += 1;
    }

    /// The time of the last event, in nanoseconds of the monotonic clock; 0 if there is none.
    fn last_ns(&self) -> u64 {
        self.events.back().map_or(0, |event| event.at_ns)
    }
}

/// The last events of all tenants together, and separate lists for each tenant. A busy tenant does
/// not push events out of another tenant's list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    pub(crate) all: Recent,
    pub(crate) of_tenants: BTreeMap<String, Recent>,
}

impl Events {
    pub(super) fn push(&mut self, mut event: Event) {
        event.number = self.all.next;
        let Some(function) = event.function.clone() else { return self.all.push(&Arc::new(event)) };
        let tenants = &mut self.of_tenants;
        if tenants.len() >= DASHBOARD_EVENT_TENANTS_MAX && !tenants.contains_key(&function.tenant) {
            let oldest = tenants.iter().min_by_key(|(_, recent)| recent.last_ns()).map(|(tenant, _)| tenant.clone());
            oldest.and_then(|oldest| tenants.remove(&oldest));
        }
        let own = tenants.entry(function.tenant.clone()).or_default();
        event.own_number = own.next;
        let event = Arc::new(event);
        own.push(&event);
        self.all.push(&event);
    }
}

/// Follows the traces of all devices.
#[derive(Default)]
pub(crate) struct Follower {
    devices: Vec<Position>,
    recent: Events,
    /// Records that were not read in time.
    pub(crate) lost: u64,
}

/// The position up to which the trace of a device was read.
#[derive(Clone, Default)]
struct Position {
    next: Option<u64>,
    last_arrival: Option<Arc<FunctionName>>,
}

impl Follower {
    /// Reads the records since the last call. The first call only sets the position to the present
    /// end. `read` returns a batch of a device's records, starting at a position, or at the end for
    /// `None`.
    pub(crate) fn follow(
        &mut self,
        devices: usize,
        mut read: impl FnMut(DeviceId, Option<u64>) -> Option<TraceBatch>,
    ) -> Events {
        self.devices.resize(devices, Position::default());
        for at in 0..devices {
            for batch in 0.. {
                let from = self.devices[at].next;
                // If the device records faster than this, the rest is skipped and counted as lost.
                let skips = batch == DASHBOARD_TRACE_BATCHES_MAX;
                let Some(read) = read(DeviceId(at as u16), from.filter(|_| !skips)) else { break };
                self.lost += if skips { read.next.saturating_sub(from.unwrap_or(read.next)) } else { read.lost };
                self.devices[at].next = Some(read.next);
                self.take(at, &read);
                if !read.more || skips {
                    break;
                }
            }
        }
        self.recent.clone()
    }

    fn take(&mut self, device: usize, batch: &TraceBatch) {
        let name: Arc<str> = batch.device.as_str().into();
        for record in &batch.records {
            if let EventKind::Arrived { class: Class::RealTime, .. } = record.kind {
                self.devices[device].last_arrival = function(batch, record);
            }
            let Some(kind) = Kind::of(&record.kind) else { continue };
            let by = self.devices[device].last_arrival.clone().filter(|_| kind == Kind::Preempted);
            self.recent.push(Event {
                number: 0,
                own_number: 0,
                at_ns: record.at.0,
                device: name.clone(),
                kind,
                function: function(batch, record),
                by,
            });
        }
    }
}

/// The function of a record, if it is still known.
fn function(batch: &TraceBatch, record: &Record) -> Option<Arc<FunctionName>> {
    batch.functions.iter().find(|(number, _)| *number == record.function).map(|(_, name)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::{Epoch, Nanos, TaskId};

    fn batch(records: Vec<(u64, EventKind)>, next: u64, more: bool) -> TraceBatch {
        let record = |(function, kind)| Record { at: Nanos(7), task: TaskId(1), function, kind };
        let name = |name: &str| {
            let (tenant, name) = ("local".into(), name.into());
            Arc::new(FunctionName { tenant, name, class: Class::RealTime, nodes: Vec::new() })
        };
        TraceBatch {
            records: records.into_iter().map(record).collect(),
            next,
            more,
            lost: 1,
            chunks_lost: 0,
            functions: vec![(1, name("urgent")), (2, name("patient"))],
            separate: false,
            device: "host:0".into(),
            compute_units: 1,
        }
    }

    fn preempted() -> (u64, EventKind) {
        (2, EventKind::Raised { epoch: Epoch(1), why: Raise::Preempted })
    }

    #[test]
    fn preemptions_are_named_with_the_request_that_came_before_them() {
        let arrived = (1, EventKind::Arrived { class: Class::RealTime, ready: true });
        let over = (1, EventKind::Raised { epoch: Epoch(2), why: Raise::Over });
        let mut follower = Follower::default();
        let mut asked = Vec::new();
        let mut batches =
            vec![batch(vec![preempted(), over], 9, false), batch(vec![arrived, (2, EventKind::Ready)], 7, true)];
        let mut read = |device: DeviceId, from| {
            asked.push((device.0, from));
            batches.pop()
        };
        let events = follower.follow(1, &mut read);
        let names = |event: &Event| {
            let name = |function: &Option<Arc<FunctionName>>| function.as_ref().map(|function| function.name.clone());
            (event.number, event.kind.label(), name(&event.function), name(&event.by))
        };
        let expected = (0, "preempted", Some("patient".into()), Some("urgent".into()));
        assert_eq!(events.all.events.iter().map(|event| names(event)).collect::<Vec<_>>(), [expected]);
        assert_eq!(follower.lost, 2);
        assert_eq!(follower.follow(1, &mut read).all.events.len(), 1, "recent events stay");
        assert_eq!(asked, [(0, None), (0, Some(7)), (0, Some(9))]);
    }

    #[test]
    fn a_device_that_writes_too_fast_is_read_in_part() {
        let (mut follower, mut end) = (Follower::default(), 0);
        let mut read = |_, from: Option<u64>| {
            end += 1000;
            Some(match from {
                None => batch(vec![], end, false),
                Some(from) => batch(vec![preempted()], from + 10, true),
            })
        };
        assert!(follower.follow(1, &mut read).all.events.is_empty(), "what happened before is not told");
        let events = follower.follow(1, &mut read);
        assert_eq!(events.all.events.len(), DASHBOARD_TRACE_BATCHES_MAX);
        assert!(follower.lost > 1000, "the rest is counted as lost");
        let mut most = 0;
        for _ in 0..DASHBOARD_EVENTS_MAX {
            most = most.max(follower.follow(1, &mut read).all.events.len());
        }
        assert_eq!(most, DASHBOARD_EVENTS_MAX, "few events are kept");
    }

    #[test]
    fn events_of_a_busy_tenant_leave_those_of_others_and_their_numbers_alone() {
        let mut events = Events::default();
        let push = |events: &mut Events, at_ns, tenant: &str| {
            let (tenant, name) = (tenant.into(), "f".into());
            let function = FunctionName { tenant, name, class: Class::BestEffort, nodes: Vec::new() };
            let (kind, function) = (Kind::Preempted, Some(Arc::new(function)));
            events.push(Event { number: 0, own_number: 0, at_ns, device: "host:0".into(), kind, function, by: None });
        };
        push(&mut events, 0, "patient");
        (1..=DASHBOARD_EVENTS_MAX as u64).for_each(|at| push(&mut events, at, "busy"));
        push(&mut events, 100, "patient");
        let numbers = |recent: &Recent| {
            let numbers = recent.events.iter().map(|event| (event.number, event.own_number));
            numbers.collect::<Vec<_>>()
        };
        let last = DASHBOARD_EVENTS_MAX as u64 + 1;
        assert_eq!(numbers(&events.of_tenants["patient"]), [(0, 0), (last, 1)]);
        assert_eq!(numbers(&events.all).first(), Some(&(2, 1)));
        (200..200 + DASHBOARD_EVENT_TENANTS_MAX as u64).for_each(|at| push(&mut events, at, &format!("t{at}")));
        assert_eq!(events.of_tenants.len(), DASHBOARD_EVENT_TENANTS_MAX);
        assert!(!events.of_tenants.contains_key("busy") && !events.of_tenants.contains_key("patient"));
    }
}
