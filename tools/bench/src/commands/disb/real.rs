//! Runs a workload on a device in real time.

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

/// A call: its client, and when it was due.
type Tag = (usize, Instant);

/// Longest wait for padding modules; after that, the run starts without them.
const SETTLED_WITHIN: Duration = Duration::from_secs(300);

/// A client, its function, and the results of its calls.
struct Client {
    caller: Caller,
    class: Class,
    is_closed_loop: bool,
    arrivals: Arrivals,
    /// Whether a call is outstanding, and whether another one is due (when measuring as DISB does).
    is_busy: bool,
    is_late: bool,
    outstanding: u64,
    scheduled: u64,
    dropped: u64,
    latencies: Vec<u64>,
}

/// State of a run.
struct Run {
    clients: Vec<Client>,
    as_disb: bool,
    begin: Instant,
    end: Instant,
    /// The next call of each client.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    answers: mpsc::Sender<(Tag, Instant, Result<(), InvokeError>)>,
}

/// Runs a workload under a policy. `bundles` has the models by the names in the workload.
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
            // A policy may refuse the class of these calls, which the report shows.
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

/// Waits until padding modules are ready, if there will be any, since their compilation is not
/// measured.
fn settle(handle: &EngineHandle) {
    let begun = Instant::now();
    while handle.statistics().padding_pending && begun.elapsed() < SETTLED_WITHIN {
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Run {
    /// Makes calls when they are due and processes answers, until the end.
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

    /// Schedules the next call of a client.
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
        // A refused client does not retry immediately, which would loop forever.
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
            // The warm-up calls ran one at a time and preempted nothing.
            preemption: PreemptionReport {
                count: preemptions,
                total_us: distribution(&after.preemption_latency),
                flag_us: median(&after.flag_latency),
                drain_us: distribution(&after.drain_latency),
                interrupt_us: median(&after.interrupt_latency),
                restore_us: Some((after.discarded_ns - before.discarded_ns) as f64 / 1e3 / preemptions.max(1) as f64),
                reexecuted_blocks: after.reexecuted_blocks - before.reexecuted_blocks,
            },
            first_block_us: None,
            padded_launches: after.padded_launches - before.padded_launches,
            padding_blocks: after.padding_blocks - before.padding_blocks,
            padding_delays_ns: Vec::new(),
            faults: FaultCounts::default(),
            utilisation: busy_ns as f64 / capacity_ns,
        }
    }
}

/// Median in microseconds; `None` if there are no samples.
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
