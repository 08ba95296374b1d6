//! Requests of a model that has no instance wait for one.

use crate::app::App;
use crate::limits::SCALING_START_MAX;
use crate::model::Model;
use atoll_engine::{Class, InvokeError};
use std::time::{Duration, Instant};

/// Waits until a model that is scaled has an instance for a request of this class. Returns what is
/// left of the deadline. Other models do not wait.
///
/// # Errors
/// If the deadline passes first, or, without one, a time after which no instance can be expected.
pub(crate) async fn for_instance(
    app: &App,
    model: &Model,
    class: Class,
    deadline: Option<Duration>,
) -> Result<Option<Duration>, InvokeError> {
    let Some(meter) = &model.scaled else { return Ok(deadline) };
    let has_one = || app.instances.choose(&model.key, class, deadline, &[]).is_some();
    if has_one() {
        return Ok(deadline);
    }
    let began = Instant::now();
    let _waiting = meter.wait();
    // While requests wait, the loop looks often and wakes them.
    app.scaler.wake.notify_one();
    let until_there = async {
        loop {
            let mut started = std::pin::pin!(meter.started.notified());
            // What starts from here on is noticed.
            started.as_mut().enable();
            if has_one() {
                return;
            }
            started.await;
        }
    };
    let patience = deadline.unwrap_or(SCALING_START_MAX);
    match tokio::time::timeout(patience, until_there).await {
        Ok(()) => Ok(deadline.map(|deadline| deadline.saturating_sub(began.elapsed()))),
        Err(_) if deadline.is_some() => Err(InvokeError::DeadlineExceeded),
        Err(_) => {
            let problem = app.scaler.problem(&model.key);
            let why = problem.unwrap_or_else(|| "the daemon starts no instances at the moment".into());
            let seconds = SCALING_START_MAX.as_secs();
            Err(InvokeError::Unavailable(format!("no instance of `{}` started within {seconds} s: {why}", model.key)))
        }
    }
}
