//! Metadata of the server. Models describe themselves (`model.rs`).

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

/// Name, version and extensions of the server.
pub(crate) fn server() -> ServerMetadata {
    let extensions = EXTENSIONS.map(String::from).to_vec();
    ServerMetadata { name: "atoll".into(), version: env!("CARGO_PKG_VERSION").into(), extensions }
}
