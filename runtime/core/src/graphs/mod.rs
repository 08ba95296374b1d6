//! Graphs of functions with deadlines and prices: which requests are admitted, and where and when
//! their stages run.
//!
//! A [`Graph`] is a checked description: stages that call functions, branches, combining stages,
//! and cascades, whose condition on a tensor decides whether a stage runs. [`Progress`] follows one
//! request through it.
//!
//! [`Plans`] are phase one of the admission of §4.2 of the thesis on KaaS: once per graph, the
//! optimal assignments of stages to kinds of devices. [`Admission`] is phase two: it plans each
//! request when it arrives, reserves the devices for it, or rejects it at once. [`Fifo`] runs
//! everything in the order of arrival, for comparison. [`Measures`] are where its costs come from
//! in a daemon.
//!
//! Not here: tensors' contents, and the devices. Start reading in `admission.rs`.

mod admission;
mod check;
mod costs;
mod decide;
mod error;
mod event;
mod explain;
mod fifo;
mod graph;
pub mod limits;
mod measures;
mod node;
mod planner;
mod plans;
mod progress;
mod room;
mod spec;
mod tensor;
mod timeline;
mod versions;
mod width;

pub use admission::{Admission, AdmissionConfig};
pub use costs::{CostTable, Kind, KindId, StageCost};
pub use decide::deadline_at;
pub use error::GraphError;
pub use event::{Action, Arrival, Event, FunctionId, GraphId, NodeId, RequestId};
pub use explain::{Explanation, Obstacle, PlannedStage, Reason, Tried, Verdict};
pub use fifo::Fifo;
pub use graph::{Condition, Graph, GraphOutput, NotANumber, Source, Stage};
pub use measures::{Measured, Measures};
pub use node::NodeSpec;
pub use plans::{Assignment, Plans, Qualify, evaluate};
pub use progress::{Next, Progress, StageState};
pub use room::Room;
pub use spec::{Compare, ConditionSpec, Cost, GraphSpec, Link, Prefer, SourceName, StageSpec};
pub use tensor::{Form, Size, TensorSpec};
pub use versions::{VERSIONS_MAX, WEIGHT_MAX, Weights};
