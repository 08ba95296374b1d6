//! The client of a daemon's control socket: deploy functions, call them, keep objects.
//!
//! Blocking, with one connection for a [`Client`]; a program with many threads opens one each. The
//! daemon takes what runs back when its client goes away.
//!
//! ```no_run
//! use atoll_client::{Call, Client, Tensor};
//!
//! # fn main() -> Result<(), atoll_client::ClientError> {
//! let mut client = Client::connect(&atoll_client::default_socket())?;
//! client.deploy(std::path::Path::new("gemm.kg"), &atoll_client::Deploy::default())?;
//!
//! // b is kept by the daemon: later calls name it, and its bytes are not sent again.
//! let b = client.put(&Tensor::f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), None)?;
//! let x = Tensor::f32(&[2, 2], &[1.0, 0.0, 0.0, 1.0]);
//! let answer = client.invoke(Call::of("gemm").input("x", x).input("b", b))?;
//! println!("{:?}", answer.tensor("y")?.shape);
//!
//! // What the first function gives is passed to the second one without leaving the device.
//! let x = Tensor::f32(&[2, 2], &[1.0, 0.0, 0.0, 1.0]);
//! let chain = Call::of("gemm").input("x", x).input("b", b).then("gemm").take("x", "y").input("b", b).keep("y");
//! println!("{}", client.invoke(chain)?.object("y")?);
//! # Ok(())
//! # }
//! ```

mod call;
mod client;
mod error;
mod trace;

pub use atoll_control::{
    DeviceEntry, DeviceStatus, DeviceUsage, ExecutorEntry, FunctionCounts, FunctionStatus, FunctionSummary,
    LatencyStatus, MemoryEntry, ObjectSummary, ProcessEntry, ProcessReport, Refusal, RefusalKind, Residency,
    Statistics, StatusReport, Timing, UnitStatus, UsageEntry, UsageReport, WholeStatus, default_socket,
};
pub use atoll_core::{Class, Tenant};
pub use atoll_protocol::{DataType, TensorMetadata};
pub use atoll_sealed::{Digest, Sealed};
pub use call::{Answer, Call, Content, Plan, Tensor, Value};
pub use client::{Client, Deploy, Description};
pub use error::ClientError;
pub use trace::Trace;
