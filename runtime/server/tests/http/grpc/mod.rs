//! The gRPC port: the same protocol over another transport.

mod checks;
mod control;
mod hostile;
mod identity;
mod infer;
mod slow;
mod stop;
mod stream;
