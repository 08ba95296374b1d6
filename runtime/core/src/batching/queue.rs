//! The requests of one function and class that wait for a batch.

use super::cost::Cost;
use super::{BATCHES_MAX, BatchSpec, SKIPPED_MAX, WINDOW_NS_MAX};
use crate::ids::{Nanos, TaskId};
use std::collections::{BTreeMap, VecDeque};

/// The properties that all requests of a batch have in common besides function and class.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Priority within the class: a lower number is more urgent.
    pub priority: u32,
    /// All sizes except the number of rows.
    pub shape: Box<[i64]>,
}

/// A waiting request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) task: TaskId,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) deadline: Option<Nanos>,
    pub(super) arrived: Nanos,
    /// Its place in the order of arrivals.
    pub(super) number: u64,
}

/// The time after a batch in which its clients are expected to send their next requests.
#[derive(Debug)]
struct Window {
    group: Group,
    until: Nanos,
    /// Rows that waited when it was opened.
    had: u64,
    /// The number of waiting rows at which it ends early.
    target: u64,
}

/// The first requests of a group that fit one batch.
struct Prefix {
    count: usize,
    rows: u64,
    /// Whether it has the largest allowed or preferred size, so that waiting gains nothing.
    is_full: bool,
    /// Whether it has a preferred size.
    is_preferred: bool,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Groups that have waiting requests.
    groups: BTreeMap<Group, VecDeque<Waiting>>,
    /// Batches that are closed and have not ended.
    running: u32,
    cost: Cost,
    window: Option<Window>,
    /// Number of windows to skip.
    skip: u32,
    /// Number of windows that were skipped after the last failed one; doubles with each failure.
    skip_next: u32,
    /// When to decide again.
    pub(super) wakeup: Option<Nanos>,
}

impl Queue {
    pub(super) fn push(&mut self, group: Group, request: Waiting) {
        let is_over = |window: &mut Window| window.until <= request.arrived && !self.groups.contains_key(&window.group);
        if self.window.take_if(is_over).is_some() {
            // No client came back in time.
            self.judge(0, 1);
        }
        self.groups.entry(group).or_default().push_back(request);
    }

    pub(super) fn remove(&mut self, group: &Group, task: TaskId) {
        let Some(waiting) = self.groups.get_mut(group) else { return };
        waiting.retain(|request| request.task != task);
        if waiting.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Whether nothing waits or runs.
    pub(super) fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.running == 0
    }

    /// Takes the first `count` requests of a group as a batch that starts now.
    pub(super) fn close(&mut self, group: &Group, count: usize) -> Vec<Waiting> {
        let waiting = self.groups.get_mut(group).expect("a group that is due has requests");
        let members: Vec<Waiting> = waiting.drain(..count).collect();
        if waiting.is_empty() {
            self.groups.remove(group);
        }
        self.running += 1;
        if self.window.as_ref().is_some_and(|window| window.group == *group) {
            self.close_window(&members);
        }
        members
    }

    /// Notes the end of a batch. `answered` are the rows that are answered now; `ran` are the rows
    /// and the time in nanoseconds of its run. Opens a window if that is expected to save time.
    pub(super) fn end(&mut self, now: Nanos, spec: &BatchSpec, group: &Group, answered: u64, ran: Option<(u64, u64)>) {
        self.running -= 1;
        if let Some((rows, ns)) = ran {
            self.cost.note(rows, ns);
        }
        if spec.max_delay_ns.is_some() || self.running > 0 {
            return;
        }
        let had: u64 = self.groups.get(group).into_iter().flatten().map(|request| request.rows).sum();
        let target = had.saturating_add(answered).min(spec.max_rows.into());
        let ns = self.cost.fixed_ns().min(WINDOW_NS_MAX);
        if target <= had.max(1) || ns == 0 {
            return;
        }
        match self.skip {
            0 => {
                let until = Nanos(now.0.saturating_add(ns));
                self.window = Some(Window { group: group.clone(), until, had, target });
            }
            _ => self.skip -= 1,
        }
    }

    /// Closes the window, and judges it by the rows that came while it was open.
    fn close_window(&mut self, members: &[Waiting]) {
        let Some(window) = self.window.take() else { return };
        let rows: u64 = members.iter().map(|member| member.rows).sum();
        self.judge(rows.saturating_sub(window.had), window.target - window.had);
    }

    /// Skips the next windows if less than half of the expected rows came: twice as many after each
    /// failed window, up to [`SKIPPED_MAX`].
    fn judge(&mut self, came: u64, expected: u64) {
        if came * 2 >= expected {
            (self.skip, self.skip_next) = (0, 0);
        } else {
            self.skip_next = (self.skip_next * 2).clamp(1, SKIPPED_MAX);
            self.skip = self.skip_next;
        }
    }

    /// The most urgent group that may close a batch now, and the number of its requests. If there
    /// is none, sets the time at which there may be one. `by_deadline` is for real-time requests that
    /// wait only as far as their deadlines allow, whatever runs.
    pub(super) fn due(&mut self, now: Nanos, spec: &BatchSpec, by_deadline: bool) -> Option<(Group, usize)> {
        if self.running >= BATCHES_MAX && !by_deadline {
            return None;
        }
        let (mut best, mut wakeup) = (None, None);
        // While a batch runs, the next one is closed only if some group is full. Then any group may
        // be chosen. Otherwise a group that never fills would starve behind one that always does.
        let mut is_due = self.running == 0 || by_deadline;
        for (group, waiting) in &self.groups {
            let prefix = prefix(waiting, spec);
            is_due |= prefix.is_full;
            if !prefix.is_full {
                let until = match by_deadline {
                    true => self.slack(spec, group, waiting, &prefix),
                    false => self.hold(spec, group, waiting, &prefix),
                };
                if until > now {
                    wakeup = [wakeup, Some(until)].into_iter().flatten().min();
                    continue;
                }
            }
            let place = (group.priority, waiting[0].number);
            if best.as_ref().is_none_or(|(other, _, _)| place < *other) {
                best = Some((place, group.clone(), prefix.count));
            }
        }
        if !is_due {
            return None;
        }
        if best.is_none() {
            self.wakeup = wakeup;
        }
        best.map(|(_, group, count)| (group, count))
    }

    /// The time until which a group waits for more rows.
    fn hold(&self, spec: &BatchSpec, group: &Group, waiting: &VecDeque<Waiting>, prefix: &Prefix) -> Nanos {
        let until = match spec.max_delay_ns {
            Some(_) if prefix.is_preferred => Nanos(0),
            Some(delay) => Nanos(waiting[0].arrived.0.saturating_add(delay)),
            None => match &self.window {
                Some(window) if window.group == *group && prefix.rows < window.target => window.until,
                _ => Nanos(0),
            },
        };
        let ns = self.cost.expected_ns(prefix.rows);
        // A quarter of the run time as a margin.
        let start_by = |deadline: Nanos| Nanos(deadline.0.saturating_sub(ns + ns / 4));
        waiting.iter().take(prefix.count).filter_map(|request| request.deadline).map(start_by).fold(until, Nanos::min)
    }

    /// The time until which a group of real-time requests waits: for the end of the batch that runs,
    /// or as other groups do, but no longer than each of its requests can wait and then run twice.
    /// Not at all if one of them has no deadline, or while the run time is unknown.
    fn slack(&self, spec: &BatchSpec, group: &Group, waiting: &VecDeque<Waiting>, prefix: &Prefix) -> Nanos {
        let is_running = self.running > 0;
        let until = if is_running { Nanos(u64::MAX) } else { self.hold(spec, group, waiting, prefix) };
        let ns = self.cost.expected_ns(prefix.rows);
        if ns == 0 {
            return Nanos(0);
        }
        // The batch that runs may take as long as one of the largest size from now on.
        let before = if is_running { self.cost.expected_ns(spec.max_rows.into()) } else { 0 };
        let needed = before.saturating_add(ns.saturating_mul(2));
        let start_by = |deadline: Option<Nanos>| Nanos(deadline.map_or(0, |at| at.0.saturating_sub(needed)));
        waiting.iter().take(prefix.count).map(|request| start_by(request.deadline)).fold(until, Nanos::min)
    }
}

/// The first requests of a group that fit one batch. If their number of rows can have a preferred
/// size, they are cut at the largest one.
fn prefix(waiting: &VecDeque<Waiting>, spec: &BatchSpec) -> Prefix {
    let (mut count, mut rows, mut bytes) = (0, 0_u64, 0_u64);
    let mut preferred = None;
    for request in waiting {
        let (more_rows, more_bytes) = (rows.saturating_add(request.rows), bytes.saturating_add(request.bytes));
        if count > 0 && (more_rows > spec.max_rows.into() || more_bytes > spec.max_bytes) {
            break;
        }
        (count, rows, bytes) = (count + 1, more_rows, more_bytes);
        if u32::try_from(rows).is_ok_and(|rows| spec.preferred.binary_search(&rows).is_ok()) {
            preferred = Some((count, rows));
        }
    }
    let cannot_grow = count < waiting.len() || rows >= spec.max_rows.into() || bytes >= spec.max_bytes;
    match preferred {
        Some((count, rows)) => {
            let is_largest = spec.preferred.last().is_some_and(|largest| rows >= u64::from(*largest));
            Prefix { count, rows, is_full: cannot_grow || is_largest, is_preferred: true }
        }
        None => Prefix { count, rows, is_full: cannot_grow, is_preferred: false },
    }
}
