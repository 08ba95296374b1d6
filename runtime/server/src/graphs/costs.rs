//! Measures the costs of a graph's stages, and decides by them whether its requests are admitted.

use super::budget::Offer;
use super::desk::{Desk, Limits, Ticket};
use super::stage::{Callee, StageWork};
use atoll_core::Nanos;
use atoll_core::graphs::limits::ASSIGNMENTS_MAX;
use atoll_core::graphs::{
    Cost, CostTable, Explanation, Graph, GraphError, GraphId, KindId, Margin, Measured, Measures, Plans, Reason,
    Verdict,
};
use atoll_engine::{DeviceId, InvocationTiming};
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two cost tables of a graph. Making one may take seconds.
const TABLE_EVERY: Duration = Duration::from_secs(1);

/// How often [`TABLE_EVERY`] is doubled at most, once for each failure in a row: up to 256 seconds.
const DOUBLED_MAX: u32 = 8;

/// At this interval, one request runs without a reservation although it would be rejected because of
/// its deadline. Otherwise one exceptional measurement could reject all later requests of a graph.
/// Requests with a price limit never run so, since it would not be paid beyond the limit.
const PROBE_EVERY: Duration = Duration::from_secs(10);

/// The costs of a graph, valid for its present functions. A graph whose functions changed gets a
/// new value.
pub(crate) struct Costs {
    desk: Option<Arc<Desk>>,
    tenant: String,
    state: Mutex<State>,
}

struct State {
    measures: Measures,
    margin: Margin,
    /// The number of the graph at the desk; `None` until its stages are measured.
    id: Option<GraphId>,
    /// Whether its cost table is being made.
    is_planning: bool,
    /// When its table was made last, and the count of device changes then (see [`Desk::look`]).
    table_at: Option<Instant>,
    changes: Option<u64>,
    /// How many times in a row the table could not be made.
    failures: u32,
    /// Whether each device accepted new requests at the last call of [`Desk::look`].
    open: Vec<bool>,
    /// When a request last ran although its deadline would reject it.
    probed_at: Option<Instant>,
    /// Pairs of a stage and a device that has run it and so has its constants.
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
    /// It runs without reservations. Its stages run on the devices where they are still to be
    /// measured.
    Measure,
    /// It runs on reserved devices.
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
    /// The message for the client.
    pub(crate) message: String,
}

/// How a stage ran.
pub(super) struct Ran {
    pub(super) stage: usize,
    /// `None` for a built-in or CPU stage.
    pub(super) device: Option<DeviceId>,
    /// The device that the stage was bound to; `None` if any could run it.
    pub(super) given_to: Option<DeviceId>,
    /// Time from its start to its answer.
    pub(super) took: Duration,
    pub(super) timing: InvocationTiming,
    pub(super) cold_start: bool,
    /// Whether its device was reserved.
    pub(super) is_planned: bool,
}

/// The known costs of a graph, for reports.
pub(crate) struct CostView {
    /// Indexed by stage, then by kind of device.
    pub(crate) measured: Vec<Vec<Option<Measured>>>,
    /// Stages and kinds that are still to be measured.
    pub(crate) missing: Vec<(usize, KindId)>,
    pub(crate) plans: Option<Plans>,
    /// The decision about a request with the limits that were asked for.
    pub(crate) asked: Option<Explanation>,
    pub(crate) last: Option<Explanation>,
    /// The part of each deadline that is kept free.
    pub(crate) kept_free: f64,
    pub(crate) failure: Option<String>,
}

impl Costs {
    /// The costs of a graph with this number of stages, unmeasured.
    pub(super) fn new(desk: Option<Arc<Desk>>, tenant: &str, stages: usize) -> Costs {
        let kinds = desk.as_ref().map_or(0, |desk| desk.kinds().len());
        let state = State {
            measures: Measures::new(stages, kinds),
            margin: Margin::default(),
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

    /// Checks that a graph which states limits can be planned on the present devices.
    ///
    /// # Errors
    /// If its stages have too many assignments to kinds of devices.
    pub(super) fn check(&self, graph: &Graph, works: &[StageWork]) -> Result<(), GraphError> {
        let Some(desk) = self.desk.as_ref().filter(|_| !Limits::default().over(graph).is_none()) else {
            return Ok(());
        };
        let kinds: Vec<usize> = works.iter().map(|work| kinds_of(desk, work, &[]).len()).collect();
        let assignments = kinds.iter().fold(1_u64, |product, &kinds| product.saturating_mul(kinds as u64));
        let most = kinds.iter().copied().max().unwrap_or(0);
        match assignments <= ASSIGNMENTS_MAX {
            true => Ok(()),
            false => Err(GraphError::TooManyAssignments { stages: works.len(), kinds: most }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a request.
    pub(super) fn decide(&self, graph: &Graph, works: &[StageWork], limits: Limits) -> Decision {
        let Some(desk) = &self.desk else { return Decision::Free };
        let limits = limits.over(graph);
        let is_bound = limits.price_max.is_some();
        if limits.is_none() {
            desk.counts.unlimited.fetch_add(1, Ordering::Relaxed);
            return Decision::Free;
        }
        let mut state = self.lock();
        let Some(id) = state.id.filter(|_| state.is_measured(desk, works)) else {
            // Once everything is measured, a request with a price limit runs only with a plan that
            // keeps the limit.
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
        let (explanation, ticket) = desk.arrive(id, limits.planned_with(state.margin));
        let verdict = explanation.verdict.clone();
        let at = explanation.at;
        state.last = Some(explanation);
        if let Some(ticket) = ticket {
            desk.counts.admitted.fetch_add(1, Ordering::Relaxed);
            return Decision::Planned(ticket);
        }
        let Verdict::Rejected(reason) = verdict else { return Decision::Free };
        let is_due = state.probed_at.is_none_or(|last| last.elapsed() >= PROBE_EVERY);
        // A probe may cost more than the request may.
        if is_due && !is_bound && reason.is_of_limits() && reason != Reason::DeadlinePast {
            // The first rejection is a real one, since its measurements are recent.
            let is_first = state.probed_at.replace(Instant::now()).is_none();
            if !is_first {
                desk.counts.measured.fetch_add(1, Ordering::Relaxed);
                return Decision::Measure;
            }
        }
        desk.counts.reject(&reason);
        let mut message = rejection(&reason, graph, at);
        if state.margin != Margin::default() && matches!(reason, Reason::Busy { .. }) {
            let percent = state.margin.part() * 100.0;
            let _ = write!(message, "; {percent:.1} % of each deadline is kept free, since requests were late");
        }
        Decision::Rejected(Rejected { reason, message })
    }

    /// Looks at the devices. Returns whether the cost table has to be made, for the first time or
    /// again. If so, the caller has to call [`Costs::make_table`]; until then other callers get
    /// false.
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

    /// Makes a table of the costs measured so far and passes it to the desk. Blocks, for seconds if
    /// the graph has many stages. Requests are still decided meanwhile.
    pub(super) fn make_table(&self, graph: &Graph, works: &[StageWork]) {
        let Some(desk) = &self.desk else { return };
        let _planning = Planning(self);
        let bytes = |stage: usize, kind: KindId| -> Option<u64> {
            let is_here = kinds_of(desk, &works[stage], &[]).contains(&kind);
            is_here.then(|| match &works[stage] {
                StageWork::Function(callee) => callee.constant_bytes(),
                StageWork::Builtin(_) | StageWork::Program(_) => 0,
            })
        };
        let (table, id) = {
            let mut state = self.lock();
            (state.measures.table(graph, desk.kinds(), bytes), state.id)
        };
        let plan = |table: CostTable| {
            // Functions of different tenants may have the same name.
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

    /// Notes an admitted request that has ended: whether its deadline passed first.
    pub(super) fn note_end(&self, is_late: bool) {
        let Some(desk) = &self.desk else { return };
        desk.counts.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
        self.lock().margin.note(is_late);
    }

    /// The device on which a stage is to be measured next; `None` if any device will do.
    pub(super) fn place_to_measure(&self, stage: usize, work: &StageWork) -> Option<DeviceId> {
        let desk = self.desk.as_ref()?;
        let mut state = self.lock();
        let kind = state.measures.next(stage, kinds_of(desk, work, &state.open))?;
        let device = match work {
            StageWork::Builtin(_) | StageWork::Program(_) => None,
            // Without a device this does not count as a try.
            StageWork::Function(callee) => {
                let is_it = |device: &DeviceId| desk.kind(*device) == kind && is_open(&state.open, *device);
                Some(callee.devices().into_iter().find(is_it)?)
            }
        };
        state.measures.try_on(stage, kind);
        device
    }

    /// The kinds of open devices on which a stage was measured.
    pub(super) fn offers(&self, stage: usize, work: &StageWork) -> Vec<Offer> {
        let Some(desk) = &self.desk else { return Vec::new() };
        let (open, _) = desk.look();
        let state = self.lock();
        let offer = |kind: KindId| {
            let took = state.measures.get(stage, kind)?.exec;
            Some(Offer { kind, took, price: price(desk, kind, took) })
        };
        kinds_of(desk, work, &open).into_iter().filter_map(offer).collect()
    }

    /// An open device of a kind that has a function.
    pub(super) fn device_of(&self, kind: KindId, callee: &Callee) -> Option<DeviceId> {
        let desk = self.desk.as_ref()?;
        let (open, _) = desk.look();
        callee.devices().into_iter().find(|device| desk.kind(*device) == kind && is_open(&open, *device))
    }

    /// The price of a run of a stage on a device, by its recent runs there; 0 without any.
    pub(super) fn expected_price(&self, stage: usize, work: &StageWork, device: Option<DeviceId>) -> Cost {
        let Some(desk) = &self.desk else { return Cost(0) };
        let kind = kind_of(desk, work, device);
        self.lock().measures.get(stage, kind).map_or(Cost(0), |measured| price(desk, kind, measured.exec))
    }

    /// The price of a run of a stage on a device; a built-in or CPU stage has none.
    pub(super) fn price_of(&self, work: &StageWork, device: Option<DeviceId>, took: Nanos) -> Cost {
        self.desk.as_ref().map_or(Cost(0), |desk| price(desk, kind_of(desk, work, device), took))
    }

    /// Notes a run of a stage.
    pub(super) fn note(&self, work: &StageWork, ran: &Ran) {
        let Some(desk) = &self.desk else { return };
        let kind = kind_of(desk, work, ran.device);
        let stage = ran.stage;
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

    /// The known costs, and the decision that a request with these limits would get now.
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
            asked: id.map(|id| desk.consider(id, limits.over(graph).planned_with(state.margin))),
            last: state.last.clone(),
            kept_free: state.margin.part(),
            failure: state.failure.as_ref().map(GraphError::to_string),
        })
    }
}

/// Resets `is_planning` when it is dropped, also after a panic.
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
    /// Pairs of stage and kind that are still to be measured: at most the next one of each stage.
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
    /// The execution time that a plan assumes for such a run.
    fn exec(&self) -> Nanos {
        let InvocationTiming { queue_ns, input_ns, compute_ns, output_ns, .. } = self.timing;
        if self.is_planned && self.given_to == self.device {
            // The time that the stage waited for unplanned work is part of its execution time. The
            // time that it waited for its constants is not: loading is a separate cost.
            let took = u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX);
            return Nanos(took.saturating_sub(if self.cold_start { queue_ns } else { 0 }));
        }
        // Runs without a reservation also wait for each other, so their waiting time does not
        // count.
        Nanos(input_ns.saturating_add(compute_ns).saturating_add(output_ns))
    }
}

/// Whether a device accepts new requests; true if its state is unknown.
fn is_open(open: &[bool], device: DeviceId) -> bool {
    open.get(usize::from(device.0)).is_none_or(|is_open| *is_open)
}

/// The kind on which a stage ran; a built-in or CPU stage has no device.
fn kind_of(desk: &Desk, work: &StageWork, device: Option<DeviceId>) -> KindId {
    match (device, work) {
        (Some(device), _) => desk.kind(device),
        (None, StageWork::Program(_)) => desk.cpu(),
        (None, StageWork::Builtin(_) | StageWork::Function(_)) => desk.daemon(),
    }
}

/// The price of a run on a kind of device.
fn price(desk: &Desk, kind: KindId, took: Nanos) -> Cost {
    let per_s = desk.kinds().get(usize::from(kind.0)).map_or(0, |kind| kind.price_per_s);
    Cost(took.0.saturating_mul(per_s))
}

/// The kinds of open devices on which a stage can run.
fn kinds_of(desk: &Desk, work: &StageWork, open: &[bool]) -> Vec<KindId> {
    let callee = match work {
        StageWork::Function(callee) => callee,
        StageWork::Builtin(_) => return vec![desk.daemon()],
        StageWork::Program(_) => return vec![desk.cpu()],
    };
    let devices = callee.devices().into_iter().filter(|device| is_open(open, *device));
    let mut kinds: Vec<KindId> = devices.map(|device| desk.kind(device)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// The message of a rejection, with the names of stages and with times relative to the arrival at
/// `at`.
pub(crate) fn rejection(reason: &Reason, graph: &Graph, at: Nanos) -> String {
    let stage = |stage: usize| graph.stages().get(stage).map_or("?", |stage| stage.name.as_str());
    let name = graph.name();
    match reason {
        Reason::NoDevices { stage: of } => {
            format!("graph `{name}`: no device is left that can run stage `{}`", stage(*of))
        }
        Reason::TooLarge { stage: of, bytes } => format!(
            "graph `{name}`: the constants of stage `{}` have {bytes} bytes, too many for every device that can run it",
            stage(*of)
        ),
        Reason::Busy { end } => format!(
            "graph `{name}`: the devices are busy, so a stage would end {:.3} ms after the arrival of the \
             request, which is too late; try again later, or state a later deadline",
            end.0.saturating_sub(at.0) as f64 / 1e6
        ),
        Reason::Full(_) => format!("graph `{name}`: too many requests wait for a device; try again later"),
        other => format!("graph `{name}`: {other}"),
    }
}

#[cfg(test)]
mod tests;
