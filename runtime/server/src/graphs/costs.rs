//! The measured costs of a graph, and with them the decision about its requests.

use super::desk::{Desk, Limits, Ticket};
use super::stage::StageWork;
use atoll_core::Nanos;
use atoll_core::graphs::{
    CostTable, Explanation, Graph, GraphError, GraphId, KindId, Measured, Measures, Plans, Reason, Verdict,
};
use atoll_engine::{DeviceId, InvocationTiming};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two tables of costs of a graph. Making one may take seconds.
const TABLE_EVERY: Duration = Duration::from_secs(1);

/// How often that time is doubled at most, once for each failure in a row: to four minutes.
const DOUBLED_MAX: u32 = 8;

/// How often a request that would be rejected for its limits runs nevertheless, without a
/// reservation: else an exceptional measurement would keep a graph out for good.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// The costs of a graph, as long as its functions stay the same.
pub(crate) struct Costs {
    desk: Option<Arc<Desk>>,
    tenant: String,
    state: Mutex<State>,
}

struct State {
    measures: Measures,
    /// The graph at the desk, once it is measured.
    id: Option<GraphId>,
    /// Whether its table is being made.
    is_planning: bool,
    /// When its table was made last, and for which changes of the devices (see [`Desk::look`]).
    table_at: Option<Instant>,
    changes: Option<u64>,
    /// How often in a row it could not be made.
    failures: u32,
    /// Whether each device got new requests when that was looked at last.
    open: Vec<bool>,
    /// When a request ran last although its limits forbade it.
    probed_at: Option<Instant>,
    /// Stages with devices that have run them, so that their constants are there.
    warm: Vec<(usize, DeviceId)>,
    /// The last decision about a request.
    last: Option<Explanation>,
    /// Why there is no table of costs.
    failure: Option<GraphError>,
}

/// The decision about a request.
pub(super) enum Decision {
    /// It runs without reservations.
    Free,
    /// It runs without reservations, and its stages where they are to be measured.
    Measure,
    /// Its devices are reserved.
    Planned(Ticket),
    /// It does not run.
    Rejected(Rejected),
}

/// Why a request was rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Rejected {
    /// The reason.
    pub(crate) reason: Reason,
    /// For people.
    pub(crate) message: String,
}

/// How a stage ran.
pub(super) struct Ran {
    pub(super) stage: usize,
    /// `None` for a built-in stage.
    pub(super) device: Option<DeviceId>,
    /// The device that it was given to by name.
    pub(super) given_to: Option<DeviceId>,
    /// From its start to its answer.
    pub(super) took: Duration,
    pub(super) timing: InvocationTiming,
    pub(super) cold_start: bool,
    /// Whether its device was reserved.
    pub(super) is_planned: bool,
}

/// What is known of the costs of a graph, for reports.
pub(crate) struct CostView {
    /// Stage by stage, kind by kind.
    pub(crate) measured: Vec<Vec<Option<Measured>>>,
    /// Stages and kinds that are still to be measured.
    pub(crate) missing: Vec<(usize, KindId)>,
    pub(crate) plans: Option<Plans>,
    /// The decision about a request with the limits that were asked for.
    pub(crate) asked: Option<Explanation>,
    pub(crate) last: Option<Explanation>,
    pub(crate) failure: Option<String>,
}

impl Costs {
    /// The costs of a graph with this number of stages, unmeasured.
    pub(super) fn new(desk: Option<Arc<Desk>>, tenant: &str, stages: usize) -> Costs {
        let kinds = desk.as_ref().map_or(0, |desk| desk.kinds().len());
        let state = State {
            measures: Measures::new(stages, kinds),
            id: None,
            is_planning: false,
            table_at: None,
            changes: None,
            failures: 0,
            open: Vec::new(),
            probed_at: None,
            warm: Vec::new(),
            last: None,
            failure: None,
        };
        Costs { desk, tenant: tenant.into(), state: Mutex::new(state) }
    }

    /// The desk; `None` without admission.
    pub(crate) fn desk(&self) -> Option<&Arc<Desk>> {
        self.desk.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a request.
    pub(super) fn decide(&self, graph: &Graph, works: &[StageWork], limits: Limits) -> Decision {
        let Some(desk) = &self.desk else { return Decision::Free };
        let is_bound = limits.price_max.is_some();
        let limits = limits.over(graph);
        if limits.is_none() {
            desk.counts.unlimited.fetch_add(1, Ordering::Relaxed);
            return Decision::Free;
        }
        let mut state = self.lock();
        let Some(id) = state.id.filter(|_| state.is_measured(desk, works)) else {
            // A price limit of the request is kept, or the request is not run.
            if let Some(failure) = state.failure.as_ref().filter(|_| is_bound && state.is_measured(desk, works)) {
                desk.counts.reject(&Reason::Unplanned);
                let name = graph.name();
                let message = format!(
                    "graph `{name}`: no price limit can be kept, since the graph cannot be planned: {failure}; call \
                     it without one"
                );
                return Decision::Rejected(Rejected { reason: Reason::Unplanned, message });
            }
            desk.counts.measured.fetch_add(1, Ordering::Relaxed);
            return Decision::Measure;
        };
        let (explanation, ticket) = desk.arrive(id, limits);
        let verdict = explanation.verdict.clone();
        let at = explanation.at;
        state.last = Some(explanation);
        if let Some(ticket) = ticket {
            desk.counts.admitted.fetch_add(1, Ordering::Relaxed);
            return Decision::Planned(ticket);
        }
        let Verdict::Rejected(reason) = verdict else { return Decision::Free };
        let is_due = state.probed_at.is_none_or(|last| last.elapsed() >= PROBE_EVERY);
        if is_due && reason.is_of_limits() && reason != Reason::DeadlinePast {
            // The first rejection is one: its measurements are fresh.
            let is_first = state.probed_at.replace(Instant::now()).is_none();
            if !is_first {
                desk.counts.measured.fetch_add(1, Ordering::Relaxed);
                return Decision::Measure;
            }
        }
        desk.counts.reject(&reason);
        let message = rejection(&reason, graph, at);
        Decision::Rejected(Rejected { reason, message })
    }

    /// Looks at the devices, and whether the table of costs has to be made, for the first time or
    /// anew. If so, the caller has to call [`Costs::make_table`]; no other caller has to meanwhile.
    pub(super) fn is_due(&self, works: &[StageWork]) -> bool {
        let Some(desk) = &self.desk else { return false };
        let (open, changes) = desk.look();
        let mut state = self.lock();
        state.open = open;
        if state.is_planning || !state.is_measured(desk, works) {
            return false;
        }
        let every = TABLE_EVERY * (1 << state.failures.min(DOUBLED_MAX));
        let is_old = || state.table_at.is_none_or(|last| last.elapsed() >= every) && state.measures.has_moved();
        let is_due = state.changes != Some(changes) || is_old();
        if is_due {
            (state.is_planning, state.changes) = (true, Some(changes));
        }
        is_due
    }

    /// Gives the desk the costs as they are measured now. Blocks, for seconds if the graph has many
    /// stages; requests are decided about meanwhile.
    pub(super) fn make_table(&self, graph: &Graph, works: &[StageWork]) {
        let Some(desk) = &self.desk else { return };
        let _planning = Planning(self);
        let bytes = |stage: usize, kind: KindId| -> Option<u64> {
            let is_here = kinds_of(desk, &works[stage], &[]).contains(&kind);
            is_here.then(|| match &works[stage] {
                StageWork::Function(callee) => callee.constant_bytes(),
                StageWork::Builtin(_) => 0,
            })
        };
        let (table, id) = {
            let mut state = self.lock();
            (state.measures.table(graph, desk.kinds(), bytes), state.id)
        };
        let plan = |table: CostTable| {
            // Tenants may have functions of one name.
            let graph = graph.clone().with_functions(|name| format!("{}/{name}", self.tenant));
            desk.plan(id, &graph, &table)
        };
        let planned = table.and_then(plan);
        let mut state = self.lock();
        state.table_at = Some(Instant::now());
        match planned {
            Ok(id) => {
                (state.id, state.failure, state.failures) = (Some(id), None, 0);
                for (stage, device) in std::mem::take(&mut state.warm) {
                    desk.resident(id, stage, device);
                }
            }
            Err(failure) => (state.failure, state.failures) = (Some(failure), state.failures.saturating_add(1)),
        }
    }

    /// Counts an admitted request that was not answered before its deadline.
    pub(super) fn note_late(&self) {
        if let Some(desk) = &self.desk {
            desk.counts.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Where a stage is to be measured; `None` for anywhere.
    pub(super) fn place_to_measure(&self, stage: usize, work: &StageWork) -> Option<DeviceId> {
        let desk = self.desk.as_ref()?;
        let mut state = self.lock();
        let kind = state.measures.next(stage, kinds_of(desk, work, &state.open))?;
        let device = match work {
            StageWork::Builtin(_) => None,
            // Without a device it is no try.
            StageWork::Function(callee) => {
                let is_it = |device: &DeviceId| desk.kind(Some(*device)) == kind && is_open(&state.open, *device);
                Some(callee.devices().into_iter().find(is_it)?)
            }
        };
        state.measures.try_on(stage, kind);
        device
    }

    /// Notes a run of a stage.
    pub(super) fn note(&self, ran: &Ran) {
        let Some(desk) = &self.desk else { return };
        let (stage, kind) = (ran.stage, desk.kind(ran.device));
        let mut state = self.lock();
        state.measures.note_run(stage, kind, ran.exec());
        if ran.cold_start {
            state.measures.note_load(stage, kind, Nanos(ran.timing.queue_ns));
        }
        let Some(device) = ran.device else { return };
        match state.id {
            Some(id) => desk.resident(id, stage, device),
            None if !state.warm.contains(&(stage, device)) => state.warm.push((stage, device)),
            None => {}
        }
    }

    /// What is known, and the decision about a request with these limits.
    pub(crate) fn view(&self, graph: &Graph, works: &[StageWork], limits: Limits) -> Option<CostView> {
        let desk = self.desk.as_ref()?;
        let state = self.lock();
        let id = state.id.filter(|_| state.is_measured(desk, works));
        let kinds = || (0..desk.kinds().len()).map(|kind| KindId(kind as u8));
        let measured = (0..works.len()).map(|stage| kinds().map(|kind| state.measures.get(stage, kind)).collect());
        Some(CostView {
            measured: measured.collect(),
            missing: state.missing(desk, works).collect(),
            plans: id.and_then(|id| desk.plans(id)),
            asked: id.map(|id| desk.consider(id, limits.over(graph))),
            last: state.last.clone(),
            failure: state.failure.as_ref().map(GraphError::to_string),
        })
    }
}

/// A table that is being made; dropped when that has ended, be it by a panic.
struct Planning<'a>(&'a Costs);

impl Drop for Planning<'_> {
    fn drop(&mut self) {
        self.0.lock().is_planning = false;
    }
}

impl Drop for Costs {
    fn drop(&mut self) {
        let id = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).id;
        if let (Some(desk), Some(id)) = (&self.desk, id) {
            desk.remove(id);
        }
    }
}

impl State {
    /// Stages and kinds that are still to be measured: for each stage the next one.
    fn missing(&self, desk: &Arc<Desk>, works: &[StageWork]) -> impl Iterator<Item = (usize, KindId)> {
        works.iter().enumerate().filter_map(|(stage, work)| {
            let kind = self.measures.next(stage, kinds_of(desk, work, &self.open))?;
            Some((stage, kind))
        })
    }

    fn is_measured(&self, desk: &Arc<Desk>, works: &[StageWork]) -> bool {
        self.missing(desk, works).next().is_none()
    }
}

impl Ran {
    /// The time that a run like this one takes where it is planned.
    fn exec(&self) -> Nanos {
        let InvocationTiming { queue_ns, input_ns, compute_ns, output_ns, .. } = self.timing;
        if self.is_planned && self.given_to == self.device {
            // It waits for what nothing is planned for, which is part of its time; not for its
            // constants, which are a cost of their own.
            let took = u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX);
            return Nanos(took.saturating_sub(if self.cold_start { queue_ns } else { 0 }));
        }
        // Others wait for each other, in front of the devices and on them.
        Nanos(input_ns.saturating_add(compute_ns).saturating_add(output_ns))
    }
}

/// Whether a device gets new requests; also if nothing is known of it.
fn is_open(open: &[bool], device: DeviceId) -> bool {
    open.get(usize::from(device.0)).is_none_or(|is_open| *is_open)
}

/// The kinds of open devices on which a stage can run.
fn kinds_of(desk: &Desk, work: &StageWork, open: &[bool]) -> Vec<KindId> {
    let StageWork::Function(callee) = work else { return vec![desk.kind(None)] };
    let devices = callee.devices().into_iter().filter(|device| is_open(open, *device));
    let mut kinds: Vec<KindId> = devices.map(|device| desk.kind(Some(device))).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// A rejection for people: with the names of stages, and times since the arrival at `at`.
pub(crate) fn rejection(reason: &Reason, graph: &Graph, at: Nanos) -> String {
    let stage = |stage: usize| graph.stages().get(stage).map_or("?", |stage| stage.name.as_str());
    let name = graph.name();
    match reason {
        Reason::NoDevices { stage: of } => {
            format!("graph `{name}`: no device is left that can run stage `{}`", stage(*of))
        }
        Reason::TooLarge { stage: of, bytes } => format!(
            "graph `{name}`: the constants of stage `{}` have {bytes} bytes, more than every device that can run it",
            stage(*of)
        ),
        Reason::Busy { end } => format!(
            "graph `{name}`: the devices are busy, so that a stage would end {:.3} ms after the arrival of the \
             request, which is too late; try again later, or state a later deadline",
            end.0.saturating_sub(at.0) as f64 / 1e6
        ),
        Reason::Full(_) => format!("graph `{name}`: too many requests wait for a device; try again later"),
        other => format!("graph `{name}`: {other}"),
    }
}

#[cfg(test)]
mod tests;
