//! Requests of the inference protocol, independent of the transport. HTTP (`http/`) and gRPC
//! (`grpc/`) decode a message, call a function of this module, and encode its result. All checks of
//! requests and all errors are here.

pub(crate) mod answers;
pub(crate) mod error;
pub(crate) mod health;
pub(crate) mod identify;
pub(crate) mod infer;
pub(crate) mod leases;
pub(crate) mod memory;
pub(crate) mod metadata;
pub(crate) mod repository;
pub(crate) mod settings;
pub(crate) mod shared_memory;
pub(crate) mod statistics;
mod steps;
pub(crate) mod terms;
