//! The daemon: KServe v2 over HTTP and gRPC, a model repository, a control socket, and metrics.
//!
//! A request acts for a tenant, which a token, a client certificate or the peer's user id
//! determines (`identity/`). The server decodes requests with [`atoll_protocol`], checks them
//! against the model, passes them to the engine, and encodes the results. Models come from a
//! folder. An ONNX file is compiled when it is first loaded, by the [`CompilerService`] that the
//! program supplies; the result is kept in a cache.
//!
//! Not here: scheduling, devices, compilers, and the command line. The server accesses devices only
//! through [`atoll_fleet::Inference`], so tests run without devices.
//!
//! Start reading in `server.rs` (startup and shutdown), then in `requests/infer.rs` (the path of a
//! request). `http/infer.rs` and `grpc/infer.rs` call the latter.
//!
//! # Invariants
//!
//! - A response is one write, on a connection with `TCP_NODELAY`.
//! - The routes of the protocol answer errors as JSON. The HTTP status or the gRPC code tells
//!   whether the client or the server caused an error. Bodies, connections and bytes in flight are
//!   bounded by [`limits`].
//! - An invocation is cancelled if its client disconnects, unless the client deferred it
//!   (`control/futures.rs`).
//! - Apart from the store of the control socket and the access log, the daemon keeps only caches of
//!   compiled models and code on disk. Their files appear complete or not at all. Copies of served
//!   bundles have no names and vanish with the process. A killed daemon leaves nothing to clean up
//!   but the temporary folders of CUDA sessions (`cuda/code.rs`).
//! - A served model does not change if its file changes.
//! - Shared memory that clients register is copied, never mapped. The memory of rings is mapped: the
//!   daemon creates it, and its size is sealed.

mod access_log;
mod app;
mod arriving;
mod bodies;
mod bytes;
mod cache_counts;
mod callers;
mod code;
mod compiler;
mod config;
mod control;
mod cuda;
mod dashboard;
mod deployed;
mod generation;
mod graphs;
mod grpc;
mod hedging;
mod http;
mod identity;
mod inference;
mod instances;
mod latency;
mod leases;
pub mod limits;
mod listen;
mod log_control;
mod metrics;
mod model;
mod names;
mod otlp;
mod places;
mod prices;
mod progress;
mod repository;
mod requests;
mod reshape;
mod response_cache;
mod rings;
mod routes;
mod running;
mod scaling;
mod sequences;
mod server;
mod service;
mod shared_memory;
mod shutdown;
mod tensors;
mod threads;
mod tls;
mod watched;

pub use access_log::{AccessLogConfig, AccessLogFormat};
pub use bytes::parse_bytes;
pub use code::{BadKey, BadSignature, TrustedKeys};
pub use compiler::{
    CompileFailure, CompileLimits, CompileProgress, CompilerService, LaunchShape, LaunchSource, ModuleContents,
    ModuleKernel, ModuleVariable,
};
pub use config::{ControlConfig, ModelControl, ServerConfig, SessionsConfig};
pub use cuda::{Carried, Duplex, Steer, carry, keep_alive};
pub use http::{RouteDescription, RoutePort, routes};
pub use identity::{
    Access, AccessError, GateError, IdentityConfig, KeyError, KeyFile, KeyRecord, KeyState, Keys, TOKEN_PREFIX,
    TenantLimits, Token,
};
pub use log_control::LogControl;
pub use otlp::OtlpConfig;
pub use places::ConnectionLimits;
pub use repository::scaling::ScalingSettings;
pub use repository::triton::config_fields;
pub use server::{Reloader, ServeError, Server};
pub use service::{ServiceManager, SocketError, Sockets};
pub use shutdown::terminated;
pub use tensors::{dtype_of, tensor_metadata};
pub use tls::{SESSION_ALPN, TlsError, TlsFiles};
