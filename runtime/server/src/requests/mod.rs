//! What requests of the inference protocol do: HTTP (`http/`) and gRPC (`grpc/`) decode a message,
//! call a function of this module, and encode its result. Every check of a request, and every
//! error, is here.

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
pub(crate) mod terms;
