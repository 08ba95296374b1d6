//! Builds tracks from records.

use super::{FunctionName, Group, Mark, PLACEMENT, Slice, TO_DEVICE, Timeline, Track, Value, lanes};
use crate::record::{ChunkOutcome, EventKind, Raise, Record};
use atoll_core::placement::PLACEMENTS;
use atoll_core::{Class, LaunchEnd, LaunchId, Nanos, Outcome, QueueId, TaskId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub(super) fn timeline(
    records: &[Record],
    functions: &BTreeMap<u64, FunctionName>,
    separate: bool,
    from: Option<Nanos>,
) -> Timeline {
    let begin = from.or_else(|| records.iter().map(|record| record.at).min()).unwrap_or_default();
    let mut builder = Builder::new(begin, functions, separate);
    records.iter().for_each(|record| builder.take(record));
    builder.finish()
}

/// A request that has not ended yet.
#[derive(Debug)]
struct Open {
    function: u64,
    class: Class,
    /// When it arrived; `None` if that was before the timeline begins.
    arrived: Option<Nanos>,
    /// Whether its constants and state are resident.
    is_ready: bool,
    preparing: Option<Nanos>,
    prepared: Option<Nanos>,
    /// When its first block started and when its last block ended.
    ran: Option<(Nanos, Nanos)>,
    copying: Option<(Nanos, u32)>,
    copies: Vec<Slice>,
    launches: u64,
}

struct Builder<'a> {
    functions: &'a BTreeMap<u64, FunctionName>,
    separate: bool,
    /// The beginning of the timeline.
    begin: Nanos,
    /// The latest time in the records so far.
    end: Nanos,
    open: HashMap<TaskId, Open>,
    issued: HashMap<LaunchId, Nanos>,
    requests: BTreeMap<(String, u64), Vec<Slice>>,
    units: BTreeMap<(String, u32), Vec<Slice>>,
    queues: BTreeMap<(u32, String), Vec<Slice>>,
    depths: BTreeMap<u32, (u64, Vec<(Nanos, u64)>)>,
    decisions: Vec<Mark>,
    /// Slices of requests from their arrival until they were placed on a device, by device.
    placed: BTreeMap<u32, Vec<Slice>>,
    /// The number of ready real-time tasks.
    urgent: u64,
    /// The time since which there are ready real-time tasks.
    urgent_since: Nanos,
    modes: Vec<Slice>,
    /// The names of nodes, shared by slices.
    names: HashMap<(u64, u32), Arc<str>>,
    /// The titles of functions, shared by slices.
    titles: HashMap<u64, Arc<str>>,
}

impl<'a> Builder<'a> {
    fn new(begin: Nanos, functions: &'a BTreeMap<u64, FunctionName>, separate: bool) -> Builder<'a> {
        Builder {
            functions,
            separate,
            begin,
            end: Nanos(0),
            open: HashMap::new(),
            issued: HashMap::new(),
            requests: BTreeMap::new(),
            units: BTreeMap::new(),
            queues: BTreeMap::new(),
            depths: BTreeMap::new(),
            decisions: Vec::new(),
            placed: BTreeMap::new(),
            urgent: 0,
            urgent_since: Nanos(0),
            modes: Vec::new(),
            names: HashMap::new(),
            titles: HashMap::new(),
        }
    }

    fn take(&mut self, record: &Record) {
        let Record { at, task, function, kind } = *record;
        self.end = self.end.max(at);
        match kind {
            EventKind::Chunk { unit, launch, first_block, blocks, ended, end } => {
                let facts = vec![
                    ("launch", Value::Number(launch.0)),
                    ("task", Value::Number(task.0)),
                    ("first block", Value::Number(first_block)),
                    ("blocks", Value::Number(blocks.into())),
                    ("end", Value::Word(chunk_outcome_word(end))),
                ];
                let slice = Slice {
                    begin: at,
                    end: ended,
                    name: self.title(function),
                    flow: None,
                    facts,
                    children: Vec::new(),
                };
                self.end = self.end.max(ended);
                self.units.entry((self.owner(function), unit)).or_default().push(slice);
            }
            EventKind::Arrived { class, ready } => {
                self.finish_task(task, at, "lost");
                self.open.insert(task, Open::new(function, class, Some(at)));
                self.set_ready(task, ready, at);
            }
            EventKind::Ready => self.set_ready(task, true, at),
            EventKind::Unready => self.set_ready(task, false, at),
            EventKind::Preparing => self.open(record).preparing = Some(at),
            EventKind::Prepared => self.open(record).prepared = Some(at),
            EventKind::Issued { launch, queue, .. } => {
                self.issued.insert(launch, at);
                self.open(record).launches += 1;
                self.change_depth(queue, at, 1);
            }
            EventKind::Ended { launch, node, queue, started, ended, end } => {
                self.launch_ended(record, (launch, node, queue), (started, ended), end)
            }
            EventKind::HostStep { step } => self.open(record).copying = Some((at, step)),
            EventKind::HostStepDone => {
                let open = self.open(record);
                if let Some((begin, step)) = open.copying.take() {
                    open.copies.push(Slice {
                        facts: vec![("step", Value::Number(step.into()))],
                        ..Slice::plain(begin, at, "copies")
                    });
                }
            }
            EventKind::Finished { outcome, preemptions } => {
                self.open(record);
                if outcome != Outcome::Complete {
                    self.mark(record, outcome_word(outcome), Vec::new());
                }
                let facts = vec![
                    ("outcome", Value::Word(outcome_word(outcome))),
                    ("preemptions", Value::Number(preemptions.into())),
                ];
                self.finish_task_with(task, at, facts);
            }
            EventKind::Raised { epoch, why } => {
                let name = if why == Raise::Preempted { "preempt" } else { "evict ended task" };
                self.mark(record, name, vec![("epoch", Value::Number(epoch.0.into()))]);
            }
            EventKind::Padded { step, first, blocks } => {
                let facts = [("step", step), ("first block", first), ("blocks", blocks)];
                self.mark(record, "pad", facts.map(|(name, value)| (name, Value::Number(value.into()))).into());
            }
            EventKind::Aborting { launch, .. } => self.mark(record, "abort", vec![("launch", Value::Number(launch.0))]),
            EventKind::Hung { launch } => self.mark(record, "hung", vec![("launch", Value::Number(launch.0))]),
            EventKind::Batched { batch, requests, rows } => {
                let facts = [("batch", batch.0), ("requests", requests.into()), ("rows", rows)];
                self.mark(record, "batched", facts.map(|(name, value)| (name, Value::Number(value))).into());
            }
            EventKind::Placed { device, policy, why, arrived, reload, service, waiting } => {
                let policy = PLACEMENTS.get(usize::from(policy)).map_or("unknown", |entry| entry.name);
                let facts = vec![
                    ("why", Value::Word(why.words())),
                    ("policy", Value::Word(policy)),
                    ("reload expected ns", Value::Number(reload.0)),
                    ("run expected ns", Value::Number(service.0)),
                    ("others waiting", Value::Number(waiting)),
                    ("task", Value::Number(task.0)),
                ];
                let (begin, name) = (arrived.min(at), self.title(function));
                let slice = Slice { begin, end: at, name, flow: None, facts, children: Vec::new() };
                self.placed.entry(device).or_default().push(slice);
            }
            EventKind::Scaled { why, added, resized, removed, load, capacity } => {
                let facts = [
                    ("why", Value::Word(why.words())),
                    ("function", Value::Text(self.title(function))),
                    ("instances added", Value::Number(added.into())),
                    ("instances resized", Value::Number(resized.into())),
                    ("instances removed", Value::Number(removed.into())),
                    ("load per 1000 s", Value::Number(load)),
                    ("capacity per 1000 s", Value::Number(capacity)),
                ];
                self.mark(record, "scale", facts.into());
            }
            EventKind::Cancelled => self.mark(record, "cancel", Vec::new()),
            EventKind::Failed => self.mark(record, "fail", Vec::new()),
            EventKind::DeviceLost => self.mark(record, "device lost", Vec::new()),
        }
    }

    fn launch_ended(
        &mut self,
        record: &Record,
        launch: (LaunchId, u32, QueueId),
        (started, ended): (Nanos, Nanos),
        end: LaunchEnd,
    ) {
        let (launch, node, queue) = launch;
        // Without device timestamps, the time of the completion event is used.
        let ended = if ended.0 == 0 { record.at } else { ended };
        let started = if started.0 == 0 { ended } else { started };
        let issued = self.issued.remove(&launch);
        if issued.is_some() {
            self.change_depth(queue, record.at, -1);
        }
        let open = self.open(record);
        let class = open.class;
        open.ran = Some(open.ran.map_or((started, ended), |(first, last)| (first.min(started), last.max(ended))));
        let mut facts = vec![
            ("function", Value::Text(self.title(record.function))),
            ("class", Value::Word(class_word(class))),
            ("launch", Value::Number(launch.0)),
            ("task", Value::Number(record.task.0)),
            ("end", Value::Word(end_word(end))),
        ];
        facts.extend(issued.map(|at| ("queued ns", Value::Number(started.0.saturating_sub(at.0)))));
        facts.push(("notified after ns", Value::Number(record.at.0.saturating_sub(ended.0))));
        let name = self.node(record.function, node);
        let slice = Slice { begin: started, end: ended, name, flow: Some(record.task.0), facts, children: Vec::new() };
        self.queues.entry((queue.0, self.owner(record.function))).or_default().push(slice);
    }

    /// The request that a record belongs to. A request whose arrival was not recorded is drawn from
    /// the beginning of the timeline.
    fn open(&mut self, record: &Record) -> &mut Open {
        let begin = self.begin;
        if !self.open.contains_key(&record.task) {
            let class = self.functions.get(&record.function).map_or(Class::BestEffort, |function| function.class);
            self.open.insert(record.task, Open::new(record.function, class, None));
            self.set_ready(record.task, true, begin);
        }
        self.open.get_mut(&record.task).expect("it was just made")
    }

    fn set_ready(&mut self, task: TaskId, ready: bool, at: Nanos) {
        let Some(open) = self.open.get_mut(&task) else { return };
        let was_ready = std::mem::replace(&mut open.is_ready, ready);
        if open.class != Class::RealTime || was_ready == ready {
            return;
        }
        if ready {
            self.urgent_since = if self.urgent == 0 { at } else { self.urgent_since };
            self.urgent += 1;
        } else {
            self.urgent -= 1;
            if self.urgent == 0 {
                self.modes.push(Slice::plain(self.urgent_since, at, "real-time mode"));
            }
        }
    }

    fn finish_task(&mut self, task: TaskId, at: Nanos, outcome: &'static str) {
        self.finish_task_with(task, at, vec![("outcome", Value::Word(outcome))]);
    }

    fn finish_task_with(&mut self, task: TaskId, at: Nanos, mut facts: Vec<(&'static str, Value)>) {
        self.set_ready(task, false, at);
        let Some(open) = self.open.remove(&task) else { return };
        facts.extend([("task", Value::Number(task.0)), ("class", Value::Word(class_word(open.class)))]);
        facts.push(("launches", Value::Number(open.launches)));
        let title = self.title(open.function);
        let phase = |name, begin: Option<Nanos>, end: Option<Nanos>| Some(Slice::plain(begin?, end?, name));
        let begin = open.arrived.unwrap_or(self.begin);
        // A request that arrived before the beginning of the timeline is drawn as waiting only if
        // its preparation was recorded.
        let waited_until = match open.arrived {
            Some(_) => Some(open.preparing.or(open.ran.map(|ran| ran.0)).unwrap_or(at)),
            None => open.preparing,
        };
        let waited = phase("waits", Some(begin), waited_until);
        let preparing = open.preparing.or(open.prepared.map(|_| begin));
        let prepared = phase("prepares", preparing, open.prepared.or(Some(at)));
        let mut ran = open.ran.map(|(first, last)| Slice::plain(first, last, "runs"));
        match &mut ran {
            Some(ran) => ran.children = open.copies,
            None => ran = open.copies.into_iter().next(),
        }
        let children = [waited, prepared, ran].into_iter().flatten().collect();
        let slice = Slice { begin, end: at, name: title.clone(), flow: Some(task.0), facts, children };
        self.requests.entry((title.to_string(), open.function)).or_default().push(slice);
    }

    fn change_depth(&mut self, queue: QueueId, at: Nanos, by: i64) {
        let (depth, changes) = self.depths.entry(queue.0).or_default();
        *depth = depth.saturating_add_signed(by);
        changes.push((at, *depth));
    }

    fn mark(&mut self, record: &Record, name: &'static str, mut facts: Vec<(&'static str, Value)>) {
        if record.task != Record::NO_TASK {
            let function = Value::Text(self.title(record.function));
            facts.extend([("task", Value::Number(record.task.0)), ("function", function)]);
        }
        self.decisions.push(Mark { at: record.at, name, facts });
    }

    /// A function's name for display, prefixed with its tenant unless that is `local`.
    fn title(&mut self, function: u64) -> Arc<str> {
        let title = || match self.functions.get(&function) {
            Some(FunctionName { tenant, name, .. }) if tenant == "local" => name.as_str().into(),
            Some(FunctionName { tenant, name, .. }) => format!("{tenant}/{name}").into(),
            None => format!("function {function}").into(),
        };
        self.titles.entry(function).or_insert_with(title).clone()
    }

    fn node(&mut self, function: u64, node: u32) -> Arc<str> {
        let known = self.functions.get(&function).and_then(|function| function.nodes.get(node as usize));
        self.names
            .entry((function, node))
            .or_insert_with(|| known.map_or_else(|| format!("node {node}").into(), |name| name.as_str().into()))
            .clone()
    }

    /// The tenant whose tracks show a function's work; empty if all tenants share tracks.
    fn owner(&self, function: u64) -> String {
        let tenant = self.functions.get(&function).filter(|_| self.separate).map(|function| function.tenant.clone());
        tenant.unwrap_or_default()
    }

    fn finish(mut self) -> Timeline {
        let end = self.end;
        let mut left: Vec<TaskId> = self.open.keys().copied().collect();
        left.sort_unstable();
        left.into_iter().for_each(|task| self.finish_task(task, end, "not finished"));
        let of = |name: String, owner: &str| if owner.is_empty() { name } else { format!("{name} of {owner}") };
        let units = self
            .units
            .into_iter()
            .map(|((owner, unit), slices)| Track { slices, ..Track::new(of(format!("compute unit {unit}"), &owner)) });
        let mut queues: Vec<Track> = Vec::new();
        for (queue, (_, counter)) in self.depths {
            queues.push(Track { counter, ..Track::new(format!("launches in queue {queue}")) });
        }
        for ((queue, owner), slices) in self.queues {
            queues.push(Track { slices, ..Track::new(of(format!("queue {queue}"), &owner)) });
        }
        queues.sort_by_key(|track| !track.counter.is_empty());
        let requests = self.requests.into_iter().flat_map(|((title, _), slices)| {
            let lanes = lanes(slices).into_iter().enumerate();
            lanes.map(move |(lane, slices)| Track {
                slices,
                ..Track::new(if lane == 0 { title.clone() } else { format!("{title} ({})", lane + 1) })
            })
        });
        let placed = self.placed.into_iter().flat_map(|(device, slices)| {
            lanes(slices).into_iter().map(move |slices| Track { slices, ..Track::new(format!("{TO_DEVICE}{device}")) })
        });
        let placed = placed.collect();
        let decisions = vec![
            Track { slices: self.modes, ..Track::new("mode") },
            Track { marks: self.decisions, ..Track::new("decisions") },
        ];
        let group = |name: &str, tracks: Vec<Track>| Group {
            name: name.into(),
            tracks: tracks.into_iter().map(|track| track.settle(self.begin)).collect(),
        };
        let groups = [
            group(PLACEMENT, placed),
            group("scheduler", decisions),
            group("device queues", queues),
            group("compute units", units.collect()),
            group("requests", requests.collect()),
        ];
        Timeline { groups: groups.into_iter().filter(|group| !group.tracks.is_empty()).collect() }
    }
}

impl Open {
    fn new(function: u64, class: Class, arrived: Option<Nanos>) -> Open {
        Open {
            function,
            class,
            arrived,
            is_ready: false,
            preparing: None,
            prepared: None,
            ran: None,
            copying: None,
            copies: Vec::new(),
            launches: 0,
        }
    }
}

impl Slice {
    fn plain(begin: Nanos, end: Nanos, name: &str) -> Slice {
        Slice { begin, end, name: name.into(), flow: None, facts: Vec::new(), children: Vec::new() }
    }
}

fn class_word(class: Class) -> &'static str {
    match class {
        Class::RealTime => "real-time",
        Class::BestEffort => "best-effort",
    }
}

fn end_word(end: LaunchEnd) -> &'static str {
    match end {
        LaunchEnd::Complete => "complete",
        LaunchEnd::Evicted => "evicted",
        LaunchEnd::Failed => "failed",
        LaunchEnd::Aborted => "aborted",
    }
}

fn chunk_outcome_word(end: ChunkOutcome) -> &'static str {
    match end {
        ChunkOutcome::Finished => "finished",
        ChunkOutcome::Stopped => "stopped",
        ChunkOutcome::Failed => "failed",
        ChunkOutcome::Aborted => "aborted",
        ChunkOutcome::Interrupted => "interrupted",
    }
}

fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Complete => "complete",
        Outcome::Failed => "failed",
        Outcome::Cancelled => "cancelled",
        Outcome::DeadlineExceeded => "deadline exceeded",
        Outcome::QueueFull => "queue full",
        Outcome::Refused => "refused",
        Outcome::DeviceLost => "device lost",
    }
}
