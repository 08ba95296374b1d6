//! The daemon: KServe v2 over HTTP, a model repository, metrics (design D8).
//!
//! Requests come in as bytes, are decoded by [`atoll_protocol`], checked against the model, handed
//! to the engine and answered. Models come from a folder; an ONNX file is compiled on its first
//! load by a [`CompilerService`], which whoever starts the daemon plugs in, and kept in a cache.
//!
//! Not here: scheduling, devices, compilers, and the command line. The server knows the devices as
//! [`atoll_fleet::Inference`], so that it can be tested without any.
//!
//! # Invariants
//!
//! - An answer is one write, on a connection with TCP_NODELAY.
//! - Whatever a client sends, the answer is JSON with a status that says whose fault it is; bodies,
//!   connections and bytes in flight are bounded by [`limits`].
//! - A client that goes away takes its invocation with it.
//! - Nothing is kept on disk but the cache of compiled models, whose files are whole or not there,
//!   and copies of served bundles, which have no names and go with the process: a daemon that is
//!   killed leaves nothing that matters.
//! - What is served does not change, whatever happens to the file it came from.

mod app;
mod bodies;
mod bytes;
mod compiler;
mod config;
mod control;
mod deployed;
mod http;
mod inference;
pub mod limits;
mod listen;
mod metrics;
mod model;
mod places;
mod repository;
mod sequences;
mod server;
mod shutdown;

pub use bytes::parse_bytes;
pub use compiler::{CompileFailure, CompileProgress, CompilerService};
pub use config::ServerConfig;
pub use control::{Access, AccessError, ControlConfig, TenantLimits};
pub use model::{dtype_of, tensor_metadata};
pub use places::ConnectionLimits;
pub use server::{ServeError, Server};
pub use shutdown::terminated;
