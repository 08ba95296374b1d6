//! Watches the capacity of the daemon.

use crate::capacity::Capacity;
use atoll_client::CapacityReport;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Pause between two requests to the daemon.
const PAUSE: Duration = Duration::from_secs(1);

/// A daemon that does not answer for this long counts as unreachable.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Watches the devices of the daemon, which `ask` asks. The list is empty before the first answer, and
/// its devices are unhealthy while the daemon does not answer. Runs in the current runtime; `ask` runs
/// in a thread of its own.
///
/// # Errors
/// Fails if the system has no room for a thread.
pub fn watch(
    mut ask: impl FnMut() -> Result<CapacityReport, String> + Send + 'static,
) -> io::Result<watch::Receiver<Arc<Capacity>>> {
    let (answers, answered) = mpsc::channel(1);
    std::thread::Builder::new().name("capacity".into()).spawn(move || {
        // Until the receiver of the answers is dropped.
        while answers.blocking_send(ask().map(|report| Capacity::of(&report))).is_ok() {
            std::thread::sleep(PAUSE);
        }
    })?;
    let (sender, receiver) = watch::channel(Arc::default());
    tokio::spawn(publish(answered, sender, SILENCE_MAX));
    Ok(receiver)
}

/// Publishes an answer if it differs from the previous one. If no answer arrives in `silence_max`,
/// publishes the devices as unhealthy.
async fn publish(
    mut answers: mpsc::Receiver<Result<Capacity, String>>,
    sender: watch::Sender<Arc<Capacity>>,
    silence_max: Duration,
) {
    let mut problem = None;
    loop {
        let (capacity, why) = match tokio::time::timeout(silence_max, answers.recv()).await {
            Ok(None) => return,
            Ok(Some(Ok(capacity))) => (capacity, None),
            Ok(Some(Err(error))) => (sender.borrow().unreachable(), Some(error)),
            Err(_) => {
                let why = format!("the daemon has not answered for {} s", silence_max.as_secs());
                (sender.borrow().unreachable(), Some(why))
            }
        };
        if why != problem {
            match &why {
                Some(why) => tracing::warn!("no device of this node is healthy: {why}"),
                None => tracing::info!("the daemon answers again"),
            }
            problem = why;
        }
        sender.send_if_modified(|held| {
            let is_new = **held != capacity;
            if is_new {
                tracing::info!(?capacity, "the capacity of the daemon has changed");
                *held = Arc::new(capacity);
            }
            is_new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Device;

    fn capacity(is_healthy: bool) -> Capacity {
        Capacity { devices: vec![Device { name: "host:0".into(), is_healthy, memory_bytes: 1, real_time_slots: 1 }] }
    }

    #[tokio::test]
    async fn units_are_healthy_only_while_the_daemon_answers() {
        let (answers, answered) = mpsc::channel(1);
        let (sender, mut receiver) = watch::channel(Arc::default());
        let published = tokio::spawn(publish(answered, sender, Duration::from_secs(600)));
        for (answer, is_healthy) in [
            (Ok(capacity(true)), true),
            (Err("it hung up".to_owned()), false),
            (Ok(capacity(true)), true),
            (Err("it refused".to_owned()), false),
        ] {
            answers.send(answer).await.unwrap();
            receiver.changed().await.unwrap();
            assert_eq!(**receiver.borrow_and_update(), capacity(is_healthy));
        }
        drop(answers);
        published.await.unwrap();
    }

    #[tokio::test]
    async fn a_daemon_that_hangs_is_not_reachable() {
        let (answers, answered) = mpsc::channel(1);
        let (sender, mut receiver) = watch::channel(Arc::new(capacity(true)));
        let published = tokio::spawn(publish(answered, sender, Duration::from_millis(1)));
        receiver.changed().await.unwrap();
        assert_eq!(**receiver.borrow_and_update(), capacity(false));
        drop(answers);
        published.await.unwrap();
    }
}
