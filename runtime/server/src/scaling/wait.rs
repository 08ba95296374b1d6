//! Lets requests wait while their model has no instance.

use super::meter::{Meter, Metered};
use crate::app::App;
use crate::limits::{SCALING_HOLD_MAX, SCALING_START_MAX, SCALING_WAITING_MAX};
use crate::model::Model;
use crate::routes::Urgency;
use atoll_engine::{Class, InvokeError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Counts a request that does not wait for an instance.
pub(super) fn counted(app: &App, model: &Model, class: Class) -> Option<Metered> {
    let mut metered = model.scaled.as_ref()?.arrive(class, app.scaler.now());
    if metered.is_short() {
        app.scaler.wake.notify_one();
    }
    metered.begin();
    Some(metered)
}

/// Counts a request that names no instance, and waits until its model has an instance for this
/// class. If recent requests need more instances than there are, the request also waits for another
/// one, but at most [`SCALING_HOLD_MAX`](crate::limits::SCALING_HOLD_MAX). Returns the rest of the
/// deadline, and a guard that the caller drops when the request ends. Requests of models that are
/// not autoscaled are neither counted nor delayed.
///
/// # Errors
/// If no instance starts before the deadline, or without a deadline within
/// [`SCALING_START_MAX`](crate::limits::SCALING_START_MAX), or if too many requests wait.
pub(crate) async fn for_instance(
    app: &App,
    model: &Model,
    class: Class,
    deadline: Option<Duration>,
) -> Result<(Option<Duration>, Option<Metered>), InvokeError> {
    let Some(meter) = &model.scaled else { return Ok((deadline, None)) };
    let began = Instant::now();
    let mut metered = meter.arrive(class, app.scaler.now());
    metered.set_deadline(deadline);
    let has_one = || app.instances.has_one(&model.key, Urgency { class, priority: 0, deadline });
    if has_one() {
        if metered.is_short() {
            another(app, model, (meter, class), deadline).await;
        }
        metered.begin();
        return Ok((deadline.map(|deadline| deadline.saturating_sub(began.elapsed())), Some(metered)));
    }
    let queue = app.scaler.queue(&model.key);
    let _waiting = queue.join(class).ok_or(InvokeError::QueueFull { capacity: SCALING_WAITING_MAX })?;
    // While requests wait, the loop runs at short intervals and wakes them.
    app.scaler.wake.notify_one();
    let until_there = async {
        loop {
            let mut started = std::pin::pin!(queue.started.notified());
            // From here on, a wake-up is not missed.
            started.as_mut().enable();
            if has_one() {
                return;
            }
            started.await;
            if queue.is_over() {
                return;
            }
        }
    };
    let patience = deadline.unwrap_or(SCALING_START_MAX);
    match tokio::time::timeout(patience, until_there).await {
        Ok(()) => {
            metered.begin();
            Ok((deadline.map(|deadline| deadline.saturating_sub(began.elapsed())), Some(metered)))
        }
        Err(_) if deadline.is_some() => Err(InvokeError::DeadlineExceeded),
        Err(_) => {
            let problem = app.scaler.problem(&model.key);
            let why = problem.unwrap_or_else(|| "the daemon starts no instances at the moment".into());
            let seconds = SCALING_START_MAX.as_secs();
            Err(InvokeError::Unavailable(format!("no instance of `{}` started within {seconds} s: {why}", model.key)))
        }
    }
}

/// Checks that an instance can finish a request that names none before its deadline.
///
/// # Errors
/// If none can, by the shortest requests that the instances have served lately.
pub(crate) fn in_time(
    app: &App,
    model: &Model,
    urgency: Urgency,
    metered: &mut Option<Metered>,
) -> Result<(), InvokeError> {
    if !app.instances.is_late(&model.key, urgency) {
        return Ok(());
    }
    metered.iter_mut().for_each(Metered::refuse);
    Err(InvokeError::DeadlineExceeded)
}

/// Waits until another instance has started or cannot be added.
async fn another(app: &App, model: &Model, (meter, class): (&Arc<Meter>, Class), deadline: Option<Duration>) {
    let queue = app.scaler.queue(&model.key);
    // If too many wait already, the request is queued at an instance.
    let Some(_waiting) = queue.join(class) else { return };
    app.scaler.wake.notify_one();
    let until_there = async {
        loop {
            let mut started = std::pin::pin!(queue.started.notified());
            started.as_mut().enable();
            if !meter.is_short() || queue.is_over() {
                return;
            }
            started.await;
        }
    };
    let patience = deadline.map_or(SCALING_HOLD_MAX, |deadline| deadline.min(SCALING_HOLD_MAX));
    let _ = tokio::time::timeout(patience, until_there).await;
}
