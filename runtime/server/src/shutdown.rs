//! Waiting for a stop signal.

use tokio::signal::unix::{SignalKind, signal};

/// Returns on SIGTERM or SIGINT. The handlers are installed at the first poll.
pub async fn terminated() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    Ok(())
}
