//! The daemon over real sockets, with a scripted engine.

mod access_log;
mod config;
mod connections;
mod dashboard;
mod ensembles;
mod generate;
mod grpc;
mod hedging;
mod identity;
mod inference;
mod model_control;
mod monitoring;
mod otlp;
mod predict;
mod repository;
mod responses;
mod routes;
mod running;
mod scaling;
mod service_manager;
mod shared_memory;
mod stop;
mod strings;
mod support;
mod tls;
mod versions;
