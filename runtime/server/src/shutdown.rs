//! Waiting for a stop signal, and for the stop of the server.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Returns on SIGTERM or SIGINT. The handlers are installed at the first poll.
pub async fn terminated() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    Ok(())
}

/// Returns when `stop` turns true or its sender is dropped.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
