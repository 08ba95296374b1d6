//! The gRPC port: the same protocol with another form.

mod checks;
mod control;
mod hostile;
mod identity;
mod infer;
mod stop;
mod stream;
