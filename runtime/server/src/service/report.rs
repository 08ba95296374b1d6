//! What the service manager is told, and when.

use super::ServiceManager;
use crate::app::App;
use crate::inference::blocking;
use crate::shutdown::stopped;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, timeout};

/// Interval of the check whether the status has changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// While models are loading, the service manager is asked each second to wait this much longer:
/// the first load of a model may compile it for minutes.
const START_EXTENSION: Duration = Duration::from_secs(60);

/// Most names in a status.
const NAMES_MAX: usize = 8;

/// Tells the service manager the state of a daemon.
pub(crate) struct Reporter {
    manager: ServiceManager,
    app: Arc<App>,
}

impl Reporter {
    pub(crate) fn new(manager: ServiceManager, app: Arc<App>) -> Reporter {
        Reporter { manager, app }
    }

    /// Reports that the startup is complete: each model is loaded or has failed.
    pub(crate) fn ready(&self) {
        self.manager.send(&format!("READY=1\nSTATUS={}", status(&self.app)));
    }

    /// Reports that the daemon stops.
    pub(crate) fn stopping(&self) {
        self.manager.send("STOPPING=1\nSTATUS=stopping; running requests finish");
    }

    /// Reports changes of the status and signs of life until `stop` turns true.
    pub(crate) async fn follow(&self, mut stop: watch::Receiver<bool>) {
        if !self.manager.listens() {
            return;
        }
        let reporting = async { tokio::join!(self.follow_status(), self.follow_engines()) };
        tokio::select! {
            _ = reporting => {}
            () = stopped(&mut stop) => {}
        }
    }

    async fn follow_status(&self) {
        let mut ticks = tokio::time::interval(STATUS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = String::new();
        loop {
            ticks.tick().await;
            if !self.app.has_loaded() {
                self.manager.send(&format!("EXTEND_TIMEOUT_USEC={}", START_EXTENSION.as_micros()));
            }
            let status = status(&self.app);
            if status != last {
                self.manager.send(&format!("STATUS={status}"));
                last = status;
            }
        }
    }

    /// Sends a sign of life twice in the time that the service manager allows, each after the
    /// threads of all engines have answered. Returns if it expects none.
    async fn follow_engines(&self) {
        let Some(period) = self.manager.watchdog() else { return };
        let mut ticks = tokio::time::interval(period / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let engine = self.app.engine.clone();
            let mut answered = pin!(blocking(move || drop(engine.statistics())));
            let answer = match timeout(period, answered.as_mut()).await {
                Ok(answer) => answer,
                Err(_) => {
                    tracing::error!(period_s = period.as_secs_f64(), "an engine does not answer");
                    // Asks again only after this answer, so that at most one thread waits.
                    answered.await
                }
            };
            match answer {
                Some(()) => self.manager.send("WATCHDOG=1"),
                None => tracing::error!("an engine cannot answer: the question panicked"),
            }
        }
    }
}

/// What is loaded, on one line.
fn status(app: &App) -> String {
    let models: BTreeSet<String> = app.repository.ready().iter().map(|model| model.name.clone()).collect();
    let deployed = app.deployed.iter().flat_map(|deployed| deployed.all());
    let functions: BTreeSet<String> =
        deployed.filter(|function| function.model.is_ok()).map(|function| function.key.to_string()).collect();
    let failed: BTreeSet<String> = app.repository.failed().into_iter().map(|(name, _)| name).collect();
    let verb = if app.has_loaded() { "serving" } else { "loading; so far serving" };
    describe(verb, &models, &functions, &failed)
}

fn describe(verb: &str, models: &BTreeSet<String>, functions: &BTreeSet<String>, failed: &BTreeSet<String>) -> String {
    let mut text = format!("{verb} {}", counted("model", models));
    if !functions.is_empty() {
        text += &format!(" and {}", counted("function", functions));
    }
    if !failed.is_empty() {
        text += &format!("; failed to load: {}", listed(failed));
    }
    text
}

/// As in `2 models (a, b)`.
fn counted(noun: &str, names: &BTreeSet<String>) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let names_in_brackets = if names.is_empty() { String::new() } else { format!(" ({})", listed(names)) };
    format!("{} {noun}{plural}{names_in_brackets}", names.len())
}

/// The first names, without characters that would end the line.
fn listed(names: &BTreeSet<String>) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(|name| name.escape_debug().to_string()).collect();
    let more = names.len() - shown.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    shown.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_status_names_what_is_loaded() {
        let none = BTreeSet::new();
        assert_eq!(describe("serving", &none, &none, &none), "serving 0 models");
        let text = describe("serving", &names(&["a"]), &names(&["f", "g"]), &names(&["bad"]));
        assert_eq!(text, "serving 1 model (a) and 2 functions (f, g); failed to load: bad");
    }

    #[test]
    fn a_status_is_one_line_and_short() {
        let many: BTreeSet<String> = (0..20).map(|number| format!("model-{number:02}")).collect();
        let text = describe("serving", &many, &names(&["two\nlines"]), &BTreeSet::new());
        assert!(text.contains("model-07 and 12 more)") && !text.contains("model-08"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
