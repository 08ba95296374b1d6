//! Watches what the daemon has.

use crate::capacity::Capacity;
use atoll_client::{Client, ClientError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// A daemon that gives no answer for this long is not reachable.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The devices of the daemon, which are not healthy while it does not answer. None before its first
/// answer. Runs in the current runtime.
///
/// # Errors
/// Fails if the system has no room for a thread.
pub(crate) fn watch(socket: PathBuf) -> io::Result<watch::Receiver<Arc<Capacity>>> {
    let (answers, answered) = mpsc::channel(1);
    std::thread::Builder::new().name("capacity".into()).spawn(move || ask_forever(&socket, &answers))?;
    let (sender, receiver) = watch::channel(Arc::default());
    tokio::spawn(publish(answered, sender, SILENCE_MAX));
    Ok(receiver)
}

/// Asks until no one takes the answers.
fn ask_forever(socket: &Path, answers: &mpsc::Sender<Result<Capacity, ClientError>>) {
    let mut client = None;
    while answers.blocking_send(ask(&mut client, socket)).is_ok() {
        std::thread::sleep(PAUSE);
    }
}

/// Asks once. A connection that failed is not used again.
fn ask(client: &mut Option<Client>, socket: &Path) -> Result<Capacity, ClientError> {
    let mut connected = match client.take() {
        Some(connected) => connected,
        None => Client::connect(socket)?,
    };
    let capacity = Capacity::of(&connected.capacity()?);
    *client = Some(connected);
    Ok(capacity)
}

/// Publishes answers that differ from those before. A silence that is too long is one, too.
async fn publish(
    mut answers: mpsc::Receiver<Result<Capacity, ClientError>>,
    sender: watch::Sender<Arc<Capacity>>,
    silence_max: Duration,
) {
    let mut problem = None;
    loop {
        let (capacity, why) = match tokio::time::timeout(silence_max, answers.recv()).await {
            Ok(None) => return,
            Ok(Some(Ok(capacity))) => (capacity, None),
            Ok(Some(Err(error))) => (sender.borrow().unreachable(), Some(error.to_string())),
            Err(_) => {
                let why = format!("the daemon has not answered for {} s", silence_max.as_secs());
                (sender.borrow().unreachable(), Some(why))
            }
        };
        if why != problem {
            match &why {
                Some(why) => tracing::warn!("no unit of this node is healthy: {why}"),
                None => tracing::info!("the daemon answers again"),
            }
            problem = why;
        }
        sender.send_if_modified(|held| {
            let is_new = **held != capacity;
            if is_new {
                tracing::info!(?capacity, "what the daemon has is different now");
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
            (Err(ClientError::Closed), false),
            (Ok(capacity(true)), true),
            (Err(ClientError::WrongAnswer), false),
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

    #[test]
    fn a_socket_without_a_daemon_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut client = None;
        let error = ask(&mut client, &folder.path().join("none.sock")).unwrap_err();
        assert!(error.to_string().contains("cannot reach a daemon at"), "{error}");
        assert!(client.is_none());
    }
}
