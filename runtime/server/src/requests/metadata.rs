//! Metadata of the server. Models describe themselves (`model.rs`).

use crate::app::App;
use atoll_protocol::ServerMetadata;

/// The implemented extensions of the protocol; clients rely on this list.
const EXTENSIONS: [&str; 12] = [
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
    "system_shared_memory",
    "trace",
];

/// The extension that is implemented if a device can open device memory of clients.
const CUDA_EXTENSION: &str = "cuda_shared_memory";

/// Name, version and extensions of the server.
pub(crate) fn server(app: &App) -> ServerMetadata {
    let mut extensions = EXTENSIONS.map(String::from).to_vec();
    if !app.engine.imports().is_empty() {
        extensions.push(CUDA_EXTENSION.into());
    }
    ServerMetadata { name: "atoll".into(), version: env!("CARGO_PKG_VERSION").into(), extensions }
}
