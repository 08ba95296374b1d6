//! The daemon over real sockets, with a scripted engine.

mod connections;
mod grpc;
mod hedging;
mod identity;
mod inference;
mod model_control;
mod repository;
mod responses;
mod routes;
mod stop;
mod support;
mod tls;
