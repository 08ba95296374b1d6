//! A workload on a device, in real time.

use super::watch::Watch;
use super::{Settings, plots};
use crate::commands::load::Workload as Caller;
use crate::device_name::DeviceName;
use crate::drawing::Gantt;
use crate::engine::bench_engine;
use anyhow::Result;
use atoll_core::{Class, PolicyEntry};
use atoll_engine::{EngineHandle, EngineStatistics, Histogram, InvokeError};
use atoll_kgraph::Bundle;
use atoll_sim::{Arrivals, ClientReport, Distribution, FaultCounts, Load, PreemptionReport, Report, Workload};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// A call that was made: whose, and when it was due.
type Tag = (usize, Instant);

/// How long modules for padding may be made before what they are for begins without them.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);

/// A client, what it calls, and what became of its calls.
struct Client {
    caller: Caller,
    class: Class,
    is_closed_loop: bool,
    arrivals: Arrivals,
    /// Whether a call is out, and whether another one is due (as DISB measures).
    is_busy: bool,
    is_late: bool,
    outstanding: u64,
    scheduled: u64,
    dropped: u64,
    latencies: Vec<u64>,
}

/// Everything while it runs.
struct Run {
    clients: Vec<Client>,
    as_disb: bool,
    begin: Instant,
    end: Instant,
    /// The next call of each client.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    answers: mpsc::Sender<(Tag, Instant, Result<(), InvokeError>)>,
}

/// Runs a workload under a policy; the models by the names that the workload uses.
pub(super) fn run(
    device: DeviceName,
    workload: &Workload,
    policy: &'static PolicyEntry,
    bundles: &BTreeMap<String, Arc<Bundle>>,
    settings: &Settings,
    drawn: Option<&Option<Range<u64>>>,
) -> Result<(Report, Option<Gantt>)> {
    let engine = bench_engine(device, settings.compute_units, policy.name, settings.capacity)?;
    let handle = engine.handle();
    let mut clients = Vec::new();
    for (number, client) in workload.clients.iter().enumerate() {
        let bundle = &bundles[&client.model];
        let seed = settings.seed.wrapping_add(number as u64);
        let caller = Caller::load(&handle, &client.id, bundle, client.class, seed)?;
        match caller.ask() {
            // A policy may take no such calls, which is for the report.
            Ok(_) => {}
            Err(error)
                if error.is::<InvokeError>() && matches!(error.downcast_ref(), Some(InvokeError::ClassRefused(_))) => {}
            Err(error) => return Err(error),
        }
        clients.push(Client {
            caller,
            class: client.class,
            is_closed_loop: client.load == Load::Continuous,
            arrivals: Arrivals::new(&client.load, seed),
            is_busy: false,
            is_late: false,
            outstanding: 0,
            scheduled: 0,
            dropped: 0,
            latencies: Vec::new(),
        });
    }
    settle(&handle);
    let before = handle.statistics();
    let (answers, answered) = mpsc::channel();
    let watch = drawn.map(|window| Watch::start(handle.clone(), window.clone()));
    let begin = Instant::now();
    let end = begin + Duration::from_nanos(workload.duration_ns);
    let mut run = Run { clients, as_disb: settings.as_disb, begin, end, due: BinaryHeap::new(), answers };
    (0..run.clients.len()).for_each(|client| run.schedule(client));
    run.pace(&answered);
    let after = handle.statistics();
    let seen = watch.and_then(Watch::end);
    drop(engine);
    let report = run.report(workload, policy, &before, &after, settings.as_disb);
    let gantt = seen.map(|seen| plots::of_records(&seen, &report));
    Ok((report, gantt))
}

/// Waits until functions can pad each other, if they are ever to: what is measured is not how
/// modules for that are made.
fn settle(handle: &EngineHandle) {
    let begun = Instant::now();
    while handle.statistics().padding_pending && begun.elapsed() < SETTLED_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Run {
    /// Makes calls when they are due and takes answers when they come, until the end.
    fn pace(&mut self, answered: &mpsc::Receiver<(Tag, Instant, Result<(), InvokeError>)>) {
        loop {
            let next = self.due.peek().map_or(self.end, |Reverse((at, _))| (*at).min(self.end));
            match answered.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok((tag, at, result)) if at <= self.end => self.answer(tag, at, result),
                _ if Instant::now() >= self.end => return,
                _ => {}
            }
            while let Some(&Reverse((at, client))) = self.due.peek()
                && at <= Instant::now()
            {
                self.due.pop();
                self.schedule(client);
                self.due(client, at);
            }
        }
    }

    /// Puts the next call of a client on the calendar.
    fn schedule(&mut self, client: usize) {
        let next = self.clients[client].arrivals.next().map(|at| self.begin + Duration::from_nanos(at));
        self.due.extend(next.filter(|at| *at < self.end).map(|at| Reverse((at, client))));
    }

    fn due(&mut self, client: usize, at: Instant) {
        let caller = &mut self.clients[client];
        caller.scheduled += 1;
        if self.as_disb && caller.is_busy {
            caller.dropped += u64::from(std::mem::replace(&mut caller.is_late, true));
        } else {
            self.call(client, at);
        }
    }

    fn call(&mut self, client: usize, at: Instant) {
        let answers = self.answers.clone();
        let caller = &mut self.clients[client];
        (caller.is_busy, caller.outstanding) = (true, caller.outstanding + 1);
        caller.caller.submit((client, at), &answers);
    }

    fn answer(&mut self, (client, due): Tag, at: Instant, result: Result<(), InvokeError>) {
        let caller = &mut self.clients[client];
        caller.outstanding -= 1;
        caller.is_busy = false;
        match &result {
            Ok(()) => caller.latencies.push(at.saturating_duration_since(due).as_nanos() as u64),
            Err(_) => caller.dropped += 1,
        }
        let was_late = std::mem::take(&mut caller.is_late);
        // Who was refused does not ask again at once, and for ever.
        let asks_again = caller.is_closed_loop && result.is_ok();
        if asks_again {
            caller.scheduled += 1;
        }
        if was_late || asks_again {
            self.call(client, at);
        }
    }

    fn report(
        self,
        workload: &Workload,
        policy: &PolicyEntry,
        before: &EngineStatistics,
        after: &EngineStatistics,
        as_disb: bool,
    ) -> Report {
        let clients = self.clients.into_iter().zip(&workload.clients).map(|(client, described)| ClientReport {
            id: described.id.clone(),
            class: client.class,
            scheduled: client.scheduled,
            served: client.latencies.len() as u64,
            dropped: client.dropped + client.outstanding + u64::from(client.is_late),
            latency_us: Distribution::of(client.latencies.clone()),
            latencies_ns: client.latencies,
        });
        let clients = clients.collect();
        let busy_ns = after.device.busy_ns.unwrap_or(0) - before.device.busy_ns.unwrap_or(0);
        let preemptions = after.preemption_latency.count();
        let capacity_ns = workload.duration_ns as f64 * f64::from(after.device.compute_units);
        Report {
            variant: workload.variant(as_disb),
            policy: policy.name.to_owned(),
            device: after.device.name.clone(),
            duration_s: workload.duration_ns as f64 / 1e9,
            clients,
            // The calls that warmed it up came one after the other and evicted nobody.
            preemption: PreemptionReport {
                count: preemptions,
                total_us: distribution(&after.preemption_latency),
                flag_us: median(&after.flag_latency),
                drain_us: distribution(&after.drain_latency),
                interrupt_us: median(&after.interrupt_latency),
                restore_us: Some((after.discarded_ns - before.discarded_ns) as f64 / 1e3 / preemptions.max(1) as f64),
                reexecuted_blocks: after.reexecuted_blocks - before.reexecuted_blocks,
            },
            padded_launches: after.padded_launches - before.padded_launches,
            padding_blocks: after.padding_blocks - before.padding_blocks,
            faults: FaultCounts::default(),
            utilisation: busy_ns as f64 / capacity_ns,
        }
    }
}

/// In microseconds; nothing where nothing was measured.
fn median(histogram: &Histogram) -> Option<f64> {
    (histogram.count() > 0).then(|| histogram.quantile_ns(0.5) as f64 / 1e3)
}

fn distribution(histogram: &Histogram) -> Distribution {
    let us = |ns: u64| ns as f64 / 1e3;
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| us(histogram.quantile_ns(q)));
    Distribution {
        mean: us(histogram.sum_ns()) / histogram.count().max(1) as f64,
        p50,
        p99,
        p999,
        max: us(histogram.max_ns()),
    }
}
