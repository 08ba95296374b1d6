//! The daemon over real sockets, with a scripted engine.

mod connections;
mod inference;
mod repository;
mod routes;
mod stop;
mod support;
