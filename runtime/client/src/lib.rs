//! The client of the control socket: deploy functions, call them, keep objects.
//!
//! Calls block. Each [`Client`] has one connection, so a program with several threads opens one
//! client per thread. If a client disconnects, the daemon cancels its running call; an
//! [`Interrupter`] does so from another thread.
//!
//! Not here: inference over HTTP, for which any KServe client works, and the messages on the wire
//! (`atoll_control`).
//!
//! Start reading at [`Client`], then [`Call`]; for the fastest requests at [`Ring`].
//!
//! ```no_run
//! use atoll_client::{Call, Client, Tensor};
//!
//! # fn main() -> Result<(), atoll_client::ClientError> {
//! let mut client = Client::connect(&atoll_client::default_socket())?;
//! client.deploy(std::path::Path::new("gemm.kg"), &atoll_client::Deploy::default())?;
//!
//! // The daemon keeps b: later calls refer to it without sending its bytes.
//! let b = client.put(&Tensor::f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), None)?;
//! let x = Tensor::f32(&[2, 2], &[1.0, 0.0, 0.0, 1.0]);
//! let answer = client.invoke(Call::of("gemm").input("x", x).input("b", b))?;
//! println!("{:?}", answer.tensor("y")?.shape);
//!
//! // The result of the first function goes to the second one without leaving the device.
//! let x = Tensor::f32(&[2, 2], &[1.0, 0.0, 0.0, 1.0]);
//! let chain = Call::of("gemm").input("x", x).input("b", b).then("gemm").take("x", "y").input("b", b).keep("y");
//! println!("{}", client.invoke(chain)?.object("y")?);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Ring`] passes inference requests and their tensors through shared memory, for programs to
//! which microseconds matter:
//!
//! ```no_run
//! use atoll_client::{Client, RingCall, RingOptions, Tensor};
//!
//! # fn main() -> Result<(), atoll_client::ClientError> {
//! let mut ring = Client::connect(&atoll_client::default_socket())?.open_ring(&RingOptions::default())?;
//! let x = Tensor::f32(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
//! let answer = ring.infer(&RingCall::of("classifier").input("x", &x))?;
//! println!("{:?}", answer.tensor("scores")?.to_f32());
//! # Ok(())
//! # }
//! ```
//!
//! # Invariants
//!
//! - A connection has at most one request in flight, and acts for the tenant that the daemon named
//!   when it was opened.
//! - Nothing is sent twice: a failed request is not repeated, and a lost connection is not opened
//!   again.
//! - An answer of another kind than requested is an error ([`ClientError::WrongAnswer`]).
//! - Bytes that do not fit into a message go to the daemon in sealed memory files, which neither
//!   side can change afterwards.

mod call;
mod client;
mod error;
mod figures;
mod futures;
mod graphs;
mod ring;
mod trace;
mod waiting;

pub use atoll_control::{
    AdmissionReport, AssignmentEntry, BilledBy, CapacityReport, CompileStage, CostEntry, CudaSessionReport,
    CudaSessionState, DecisionEntry, DeviceCapacity, DeviceCondition, DeviceEntry, DeviceReport, DeviceStatus,
    DeviceUsage, DeviceWork, DevicesReport, ExecutorEntry, ExecutorMemory, ExecutorUsage, FreeShare, FunctionCounts,
    FunctionStatus, FunctionSummary, FutureOutput, FutureReport, FutureState, GraphReport, GraphStage, InstanceReport,
    InstanceResize, InstanceSpec, KindEntry, LEASE_TTL_S, LatencyStatus, LeaseHold, LeaseReport, LeaseSpec,
    MemoryEntry, MissingEntry, ObjectSummary, PlacedEntry, ProcessEntry, ProcessReport, QuotaEntry, Refusal,
    RefusalKind, Residency, ShareArea, ShareEntry, Statistics, StatusReport, Timing, TriedEntry, UnitStatus,
    UsageEntry, UsageReport, VersionEntry, WholeStatus, default_socket,
};
pub use atoll_core::{Class, Tenant};
pub use atoll_protocol::{DataType, Parameters, TensorMetadata};
pub use atoll_sealed::{Digest, Sealed};
pub use call::{Answer, Call, Content, Plan, Tensor, Value};
pub use client::{Client, Deploy, Description, Reloaded};
pub use error::ClientError;
pub use figures::{AskedShare, FiguresError, GivenShare, ShareFigures};
pub use graphs::GraphCall;
pub use ring::{Ring, RingAnswer, RingCall, RingInput, RingOptions, RingTicket};
pub use trace::Trace;
pub use waiting::Interrupter;
