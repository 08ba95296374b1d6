//! OpenTelemetry: a span for each sampled inference request, with its phases as child spans and the
//! decisions of the scheduler as events, sent to a collector by OTLP over HTTP.
//!
//! A request only fills in a record and puts it into a bounded queue. A separate thread reads the
//! traces of the devices ([`follow`]), encodes messages ([`encode`]) and sends them ([`export`]).
//! Spans for which the queue has no room, or that the collector does not accept, are dropped and
//! counted.

mod config;
mod context;
mod encode;
mod export;
mod follow;
mod message;
mod record;
mod span;

pub(crate) use config::Counts;
pub use config::OtlpConfig;
pub(crate) use context::{Arrival, Context};
pub(crate) use span::{Asked, Sampling, Span, Tracer};
