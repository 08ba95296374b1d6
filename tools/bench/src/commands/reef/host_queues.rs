//! Figure 14's host queues, on this machine.
//!
//! REEF's host queues hold launches in the runtime, and a preemption empties them. Here, launches
//! that were not issued are steps of a task. The scheduler's decision to evict takes the place of
//! emptying queues.

use super::runs::{MI50, Runs};
use crate::figures::Cells;
use anyhow::{Context, Result, ensure};
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Event, LaneId, Nanos, SchedulerConfig, Step, TaskId, TaskSpec,
    policy_by_name,
};
use std::sync::Arc;
use std::time::Instant;

/// The model of the best-effort clients.
const BEST_EFFORT: &str = "resnet152-imagenet";

/// Decisions of which the median counts.
const DECISIONS: usize = 101;

/// The time of a decision that evicts best-effort clients with a call each, by their number.
pub(super) fn resets(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let launches = runs.models.get(BEST_EFFORT).with_context(|| format!("there is no {BEST_EFFORT}"))?.kernels.len();
    let mut rows = Vec::new();
    for clients in [1, 2, 4, 8, 16] {
        let mut times = (0..DECISIONS).map(|_| decision_us(clients, launches)).collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        rows.push(vec![
            ("best_effort_clients", clients.into()),
            ("waiting_launches", (clients * launches as u64).into()),
            ("decision_us_p50", times[DECISIONS / 2].into()),
            ("paper", "host queues 3 µs, 17 µs without asynchronous reclaim".into()),
        ]);
    }
    Ok(rows)
}

/// The time to handle the arrival of a real-time task on a busy device, in microseconds.
fn decision_us(clients: u64, launches: usize) -> Result<f64> {
    let parameters = MI50.parameters()?;
    let mut scheduler = DeviceScheduler::new(&SchedulerConfig {
        policy: policy_by_name("reset").context("there is the policy reset")?,
        queues: parameters.queues,
        paired_queues: false,
        queue_capacity: DEVICE_QUEUE_CAPACITY_DEFAULT,
        preempt_level: parameters.preempt_level,
        can_abort: false,
        compute_units: parameters.compute_units,
        best_effort_wait_ns_max: None,
        perturb: None,
    });
    let mut actions = Vec::new();
    for client in 0..clients {
        let task = TaskId(client);
        scheduler.handle(Nanos(client), arrival(task, Class::BestEffort, launches), &mut actions);
        scheduler.handle(Nanos(client), Event::TaskPrepared { task }, &mut actions);
    }
    actions.clear();
    let real_time = arrival(TaskId(clients), Class::RealTime, 1);
    let begin = Instant::now();
    scheduler.handle(Nanos(clients), real_time, &mut actions);
    let time = begin.elapsed();
    let evicted = actions.iter().filter(|action| matches!(action, Action::RaiseEpoch { .. })).count() as u64;
    ensure!(evicted == clients, "{evicted} of {clients} tasks were evicted");
    Ok(time.as_secs_f64() * 1e6)
}

fn arrival(task: TaskId, class: Class, launches: usize) -> Event {
    Event::TaskArrived(TaskSpec {
        task,
        lane: LaneId::DEFAULT,
        client: ClientId(0),
        class,
        priority: 0,
        steps: Arc::from(vec![Step::Preemptible; launches]),
        deadline: None,
        due: None,
        profiles: None,
        forks: None,
        ready: true,
    })
}
