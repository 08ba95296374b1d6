//! The loop of the autoscaler.

use super::basis::Basis;
use super::instances::Group;
use super::placing;
use super::state::{Kind, Scaled};
use crate::app::App;
use crate::graphs::Functions;
use crate::inference::blocking;
use crate::limits::{SCALING_DRAIN_EVERY, SCALING_IDLE_EVERY, SCALING_RETRY};
use crate::model::Model;
use atoll_core::Nanos;
use atoll_core::scaling::{Change, Decision, Point, Profile, ScaleError, Why};
use atoll_engine::FunctionKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Autoscales models until the future is dropped.
pub(crate) async fn follow(app: &Arc<App>) {
    loop {
        let ticked = app.clone();
        // The panic hook has reported a panic.
        let next = blocking(move || tick(&ticked)).await.unwrap_or(SCALING_IDLE_EVERY);
        let _ = tokio::time::timeout(next, app.scaler.wake.notified()).await;
    }
}

/// Decides about all models that are due. Returns the time until the next call. Blocks.
fn tick(app: &App) -> Duration {
    if app.has_loaded() {
        app.scaler.names_checked.call_once(|| check_names(app));
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
        scaled.status.decisions[Kind::Move as usize] = app.scaler.moves_of(&model.key);
        statuses.insert(model.key.clone(), scaled.status.clone());
    }
    app.scaler.publish(statuses);
    // Wakes waiting requests after the decisions, so that they see the new instances.
    app.scaler.wake_waiting(|function| is_over(app, function));
    let removal = remove(app);
    if removal.has_removed {
        app.scaler.may_free.store(true, Ordering::Relaxed);
    }
    // An instance that waits for room would lose it to the instances that moved away for it.
    let waits = functions.values().any(|scaled| scaled.awaits_room);
    if !removal.are_left && !waits && app.scaler.may_free.swap(false, Ordering::Relaxed) {
        // Other devices may have room for the instances of a device now. They stay there for the
        // shortest cool-down at least.
        let cool_down_ms = |model: &Arc<Model>| model.scaled.as_ref().map(|meter| meter.settings.cool_down_ms);
        let cool_down_ms = models.iter().filter_map(cool_down_ms).min().unwrap_or(0);
        placing::free_a_device(app, waits, cool_down_ms.saturating_mul(1_000_000));
    }
    match removal.are_left {
        true => next.min(SCALING_DRAIN_EVERY),
        false => next,
    }
}

/// Logs the `[scaling.NAME]` sections of the configuration without a function, once.
fn check_names(app: &App) {
    for function in app.unknown_scaled() {
        tracing::warn!(
            function,
            "[scaling.NAME] in the configuration names a function that is not deployed; it applies once it is. A model \
             of the repository has `[scaling]` in its own settings"
        );
    }
}

fn begin(app: &App, model: &Model, now: Nanos) -> Scaled {
    let meter = model.scaled.clone().expect("only models that are scaled get here");
    Group::of(app, model).set_target(app, meter.settings.latency_ms);
    let basis = Basis::of(model, app.scaler.profiles.as_deref(), &app.engine.statistics());
    tracing::info!(model = model.name, basis = basis.label(), "the model is autoscaled");
    Scaled::new(meter, basis, now)
}

/// Decides about a model if it is due. Returns the time until it is due again.
fn turn(app: &App, model: &Model, scaled: &mut Scaled, now: Nanos) -> Duration {
    let group = Group::of(app, model);
    scaled.learn(group.service_ns(scaled.meter.settings.sm_partition));
    let profile = scaled.points();
    let running = group.running(profile.as_ref());
    let waiting = app.scaler.waiting(&model.key);
    scaled.see_classes(now);
    let only = scaled.only_class();
    if waiting > 0 && running.is_empty() && now >= scaled.may_start {
        scaled.may_start = later(now, SCALING_RETRY);
        scaled.awaits_room = false;
        start(app, model, scaled, &group);
    } else if now >= scaled.due {
        scaled.due = later(now, Duration::from_millis(scaled.meter.settings.interval_ms));
        scaled.awaits_room = false;
        let mut observed = scaled.meter.take();
        observed.queued = waiting + group.queued(only);
        observed.base = group.base(profile.as_ref(), only);
        observed.needed = scaled.needed(now, profile.as_ref());
        group.remove_refused(app, scaled);
        let unmeasured = scaled.unmeasured();
        let decided = scaled.autoscaler.step(now, &observed, profile.as_ref(), unmeasured, &running);
        decide(app, model, scaled, &group, decided);
    } else if now >= scaled.may_add && scaled.meter.is_short() {
        add_another(app, model, scaled, &group);
    }
    cover(app, model, scaled, now);
    scaled.status.waiting = waiting;
    let until_due = Duration::from_nanos(scaled.due.0.saturating_sub(app.scaler.now().0));
    if app.scaler.waiting(&model.key) > 0 { until_due.min(SCALING_RETRY) } else { until_due }
}

fn later(now: Nanos, by: Duration) -> Nanos {
    Nanos(now.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

/// Starts the first instance for requests that wait for one.
fn start(app: &App, model: &Model, scaled: &mut Scaled, group: &Group) {
    let profile = scaled.points();
    let needed = scaled.needed(app.scaler.now(), profile.as_ref());
    let first = match needed {
        Some(needed) => Ok(needed.point),
        None => scaled.autoscaler.first(profile.as_ref(), scaled.unmeasured()),
    };
    let point = first.unwrap_or_else(|error| {
        scaled.note_problem(model, error.to_string());
        // No point keeps the target: uses the one with the lowest latency.
        let points = profile.iter().flat_map(Profile::points);
        points.min_by_key(|point| point.latency_ns).copied().unwrap_or_else(|| scaled.unmeasured())
    });
    let change = Change { add: vec![point], ..Change::default() };
    let change = group.apply(app, model, scaled, &change, Why::First.words());
    if !change.is_empty() {
        app.engine.note_scaled(&model.key, &Decision { change, why: Why::First, ..Decision::default() });
    }
    scaled.status.instances = Group::of(app, model).running(None).len() as u64;
}

/// Adds an instance that recent requests need, at once.
fn add_another(app: &App, model: &Model, scaled: &mut Scaled, group: &Group) {
    let (profile, now) = (scaled.points(), app.scaler.now());
    let Some(needed) = scaled.needed(now, profile.as_ref()) else { return };
    let running = group.running(profile.as_ref());
    let served: u64 = running.iter().map(|instance| instance.point.throughput).sum();
    let capacity = served.saturating_add(group.base(profile.as_ref(), scaled.only_class()));
    let Some(point) = scaled.autoscaler.another(&needed, running.len(), capacity) else { return };
    let change = Change { add: vec![point], ..Change::default() };
    let change = group.apply(app, model, scaled, &change, Why::Queue.words());
    if change.is_empty() {
        // No instance can be added now, so requests do not wait for one.
        scaled.may_add = later(now, SCALING_RETRY);
        return;
    }
    let decision = Decision { change, why: Why::Queue, load: needed.load(), capacity, ..Decision::default() };
    app.engine.note_scaled(&model.key, &decision);
}

/// Tells arriving requests which load the instances serve.
fn cover(app: &App, model: &Model, scaled: &Scaled, now: Nanos) {
    let group = Group::of(app, model);
    let profile = scaled.points();
    let running = group.running(profile.as_ref());
    let served: u64 = running.iter().map(|instance| instance.point.throughput).sum();
    let base = group.base(profile.as_ref(), scaled.only_class());
    let has_room = running.len() < scaled.meter.settings.max_instances as usize && !scaled.awaits_room;
    let may_add = has_room && !running.is_empty() && now >= scaled.may_add;
    // Updates what is needed with the same profile as the capacity: the throughput of a point
    // changes as requests are measured.
    scaled.needed(now, profile.as_ref());
    let capacity = served.saturating_add(base).saturating_sub(scaled.autoscaler.beyond());
    scaled.meter.cover(may_add.then_some(capacity));
}

fn decide(app: &App, model: &Model, scaled: &mut Scaled, group: &Group, decided: Result<Decision, ScaleError>) {
    let decision = match decided {
        Ok(decision) => decision,
        Err(error) => {
            scaled.note_problem(model, error.to_string());
            return;
        }
    };
    let per_second = |rate: u64| rate as f64 / 1e3;
    let (change, why) = (&decision.change, decision.why);
    let (load, capacity) = (per_second(decision.load), per_second(decision.capacity));
    scaled.status.problem = None;
    if let Some(problem) = decision.problem {
        scaled.note_problem(model, problem.to_string());
    }
    if !change.is_empty() {
        let text = format!("{why}: {load:.1} requests/s to serve, room for {capacity:.1}");
        let done = group.apply(app, model, scaled, change, &text);
        if !done.is_empty() {
            tracing::info!(
                model = model.name,
                why = %why,
                load,
                capacity,
                add = done.add.len(),
                resize = done.resize.len(),
                remove = done.remove.len(),
                "instances are scaled"
            );
            app.engine.note_scaled(&model.key, &Decision { change: done, ..decision.clone() });
        }
    }
    let group = Group::of(app, model);
    let profile = scaled.points();
    let running = group.running(profile.as_ref());
    let served: u64 = running.iter().map(|instance| instance.point.throughput).sum();
    let base = group.base(profile.as_ref(), scaled.only_class());
    let status = &mut scaled.status;
    status.instances = running.len() as u64;
    (status.rate, status.predicted) = (per_second(decision.rate), per_second(decision.predicted));
    (status.load, status.capacity) = (load, per_second(served.saturating_add(base)));
}

/// Whether a function was removed or is not autoscaled any more. False for one that is being
/// loaded.
fn is_over(app: &App, function: &FunctionKey) -> bool {
    match app.function_model(function) {
        Ok(model) => model.scaled.is_none(),
        Err(_) => app.has_loaded() && !app.has_function(&function.tenant, &function.name),
    }
}

/// The result of a pass over the instances that are to be removed.
#[derive(Default)]
struct Removal {
    /// Draining instances are left, since they have requests or sequences, or their removal failed.
    are_left: bool,
    has_removed: bool,
}

/// Removes draining instances without requests and sequences, and starts to drain those whose
/// function was removed or is not autoscaled any more.
fn remove(app: &App) -> Removal {
    let mut removal = Removal::default();
    for (key, instance) in app.instances.all() {
        if instance.autoscaled.is_none() {
            continue;
        }
        let function = FunctionKey { tenant: key.tenant.clone(), name: instance.function.clone() };
        let is_abandoned = is_over(app, &function);
        if !is_abandoned && !app.instances.is_draining(&key) {
            continue;
        }
        app.instances.set_draining(&key, true);
        let is_running = app.instances.standing(&key, &instance).is_some_and(|standing| standing.in_flight > 0);
        let is_busy = is_running || (!is_abandoned && app.sequences.run_under(&function, &key.name));
        if is_busy {
            removal.are_left = true;
            continue;
        }
        let removed = app.instances.remove_drained(&key);
        let is_new = app.scaler.note_removal(&key, removed.is_err());
        if let Err(error) = removed {
            if is_new {
                tracing::error!(instance = %key, %error, "an instance cannot be removed; the daemon will try again");
            }
            removal.are_left = true;
        } else {
            removal.has_removed = true;
        }
    }
    removal
}

impl Scaled {
    /// The point of an instance without any measurement.
    fn unmeasured(&self) -> Point {
        let settings = &self.meter.settings;
        Point { partition: settings.sm_partition, quota: settings.quota_request, throughput: 0, latency_ns: 0 }
    }
}
