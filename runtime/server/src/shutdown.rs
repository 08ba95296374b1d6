//! When to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process is asked to end, by SIGTERM or by SIGINT.
/// The handlers stand from the first poll on.
pub async fn terminated() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    Ok(())
}
