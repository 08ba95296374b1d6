//! The loop that scales models.

use super::basis::Basis;
use super::instances::Group;
use super::state::Scaled;
use crate::app::App;
use crate::graphs::Functions;
use crate::inference::blocking;
use crate::limits::{SCALING_DRAIN_EVERY, SCALING_IDLE_EVERY, SCALING_RETRY};
use crate::model::Model;
use atoll_core::Nanos;
use atoll_core::scaling::{Change, Decision, Point, ScaleError, Why};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Scales models until the future is dropped.
pub(crate) async fn follow(app: &Arc<App>) {
    loop {
        let ticked = app.clone();
        // The panic hook has reported a panic.
        let next = blocking(move || tick(&ticked)).await.unwrap_or(SCALING_IDLE_EVERY);
        let _ = tokio::time::timeout(next, app.scaler.wake.notified()).await;
    }
}

/// Decides for all models that it is time for. Returns when to look again. Blocks.
fn tick(app: &App) -> Duration {
    if !app.has_loaded() {
        return SCALING_DRAIN_EVERY;
    }
    let mut functions = app.scaler.functions();
    let models = app.scaled_models();
    functions.retain(|key, _| models.iter().any(|model| model.key == *key));
    let (now, mut next) = (app.scaler.now(), SCALING_IDLE_EVERY);
    let mut statuses = BTreeMap::new();
    for model in &models {
        let Some(meter) = &model.scaled else { continue };
        let scaled = functions.entry(model.key.clone()).or_insert_with(|| begin(app, model, now));
        if !Arc::ptr_eq(&scaled.meter, meter) {
            *scaled = begin(app, model, now);
        }
        next = next.min(turn(app, model, scaled, now));
        statuses.insert(model.key.clone(), scaled.status.clone());
    }
    app.scaler.publish(statuses);
    // After that, so that a client that was answered sees what was decided for it.
    models.iter().filter_map(|model| model.scaled.as_ref()).for_each(|meter| meter.started.notify_waiters());
    match remove(app) {
        true => next.min(SCALING_DRAIN_EVERY),
        false => next,
    }
}

fn begin(app: &App, model: &Model, now: Nanos) -> Scaled {
    let meter = model.scaled.clone().expect("only models that are scaled get here");
    let basis = Basis::of(model, app.scaler.profiles.as_deref(), &app.engine.statistics());
    tracing::info!(model = model.name, basis = basis.label(), "instances follow the load");
    Scaled::new(meter, basis, now)
}

/// Decides for a model if it is time. Returns when it is time again.
fn turn(app: &App, model: &Model, scaled: &mut Scaled, now: Nanos) -> Duration {
    let group = Group::of(app, model);
    scaled.learn(group.service_ns(scaled.meter.settings.sm_partition));
    let profile = scaled.points(group.devices);
    let running = group.running(profile.as_ref());
    let waiting = scaled.meter.waiting();
    if waiting > 0 && running.is_empty() && now >= scaled.may_start {
        scaled.may_start = later(now, SCALING_RETRY);
        start(app, model, scaled, &group);
    } else if now >= scaled.due {
        scaled.due = later(now, Duration::from_millis(scaled.meter.settings.interval_ms));
        let mut observed = scaled.meter.take();
        observed.queued = waiting + group.queued();
        observed.base = group.base(profile.as_ref());
        let unmeasured = scaled.unmeasured();
        let decided = scaled.autoscaler.step(now, &observed, profile.as_ref(), unmeasured, &running);
        decide(app, model, scaled, &group, decided);
    }
    scaled.status.waiting = waiting;
    let until_due = Duration::from_nanos(scaled.due.0.saturating_sub(app.scaler.now().0));
    if scaled.meter.waiting() > 0 { until_due.min(SCALING_RETRY) } else { until_due }
}

fn later(now: Nanos, by: Duration) -> Nanos {
    Nanos(now.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

/// Starts the first instance for requests that wait for one.
fn start(app: &App, model: &Model, scaled: &mut Scaled, group: &Group) {
    let profile = scaled.points(group.devices);
    let point = scaled.autoscaler.first(profile.as_ref(), scaled.unmeasured()).unwrap_or_else(|error| {
        scaled.note_problem(model, error.to_string());
        // The fastest one there is.
        let points = profile.iter().flat_map(|profile| profile.points());
        points.min_by_key(|point| point.latency_ns).copied().unwrap_or_else(|| scaled.unmeasured())
    });
    let change = Change { add: vec![point], ..Change::default() };
    let decision = Decision { change, why: Why::First, ..Decision::default() };
    app.engine.note_scaled(&model.key, &decision);
    group.apply(app, model, scaled, &decision.change, Why::First.words());
    scaled.status.instances = Group::of(app, model).running(None).len() as u64;
}

fn decide(app: &App, model: &Model, scaled: &mut Scaled, group: &Group, decided: Result<Decision, ScaleError>) {
    let decision = match decided {
        Ok(decision) => decision,
        Err(error) => return scaled.note_problem(model, error.to_string()),
    };
    let per_second = |rate: u64| rate as f64 / 1e3;
    if !decision.change.is_empty() {
        app.engine.note_scaled(&model.key, &decision);
    }
    let Decision { change, why, rate, predicted, load, capacity } = decision;
    let (load, capacity) = (per_second(load), per_second(capacity));
    scaled.status.problem = None;
    if !change.is_empty() {
        let text = format!("{why}: {load:.1} requests/s to serve, room for {capacity:.1}");
        tracing::info!(
            model = model.name,
            why = %why,
            load,
            capacity,
            add = change.add.len(),
            resize = change.resize.len(),
            remove = change.remove.len(),
            "instances are scaled"
        );
        group.apply(app, model, scaled, &change, &text);
    }
    let group = Group::of(app, model);
    let profile = scaled.points(group.devices);
    let running = group.running(profile.as_ref());
    let served: u64 = running.iter().map(|instance| instance.point.throughput).sum();
    let status = &mut scaled.status;
    status.instances = running.len() as u64;
    (status.rate, status.predicted, status.load) = (per_second(rate), per_second(predicted), load);
    status.capacity = per_second(served.saturating_add(group.base(profile.as_ref())));
}

/// Removes instances that have no requests any more, and begins to remove those whose function is
/// gone or is not scaled any more. Says whether some are left.
fn remove(app: &App) -> bool {
    let mut are_left = false;
    for (key, instance) in app.instances.all() {
        if instance.autoscaled.is_none() {
            continue;
        }
        let is_abandoned = match app.stage_model(&key.tenant, &instance.function) {
            Ok(model) => model.scaled.is_none(),
            Err(_) => !app.has_function(&key.tenant, &instance.function),
        };
        if !is_abandoned && !app.instances.is_draining(&key) {
            continue;
        }
        app.instances.set_draining(&key, true);
        let is_busy = app.instances.standing(&key, &instance).is_some_and(|standing| standing.in_flight > 0);
        if is_busy {
            are_left = true;
        } else if let Err(error) = app.instances.remove_drained(&key) {
            tracing::error!(instance = %key, %error, "an instance cannot be removed");
            are_left = true;
        }
    }
    are_left
}

impl Scaled {
    /// The point of an instance of which nothing is known.
    fn unmeasured(&self) -> Point {
        let settings = &self.meter.settings;
        Point { partition: settings.sm_partition, quota: settings.quota_request, throughput: 0, latency_ns: 0 }
    }
}
