//! Graphs of functions with deadlines and prices: which requests are admitted, and where and when
//! their stages run.
//!
//! A [`Graph`] is a checked description: stages that call functions, branches, combining stages,
//! and cascades, whose condition on a tensor decides whether a stage runs. [`Progress`] follows one
//! request through it.
//!
//! Admission has the two phases of the thesis on KaaS (§4.2). [`Plans`] is phase one: it finds,
//! once per graph, the optimal assignments of stages to kinds of devices. [`Admission`] is phase
//! two: it plans each request on arrival, and reserves devices for it or rejects it at once.
//! [`Fifo`] runs all requests in the order of arrival, as a baseline. In a daemon, [`Measures`]
//! supplies the costs, and a [`Margin`] keeps a part of each deadline free.
//!
//! Not here: contents of tensors, and device access. Start reading in `admission.rs`.

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
mod margin;
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
pub use margin::Margin;
pub use measures::{Measured, Measures};
pub use node::NodeSpec;
pub use plans::{Assignment, Plans, Qualify, evaluate};
pub use progress::{Next, Progress, StageState};
pub use room::Room;
pub use spec::{Compare, ConditionSpec, Cost, GraphSpec, Link, Prefer, SourceName, StageSpec};
pub use tensor::{Form, Size, TensorSpec};
pub use versions::{VERSIONS_MAX, WEIGHT_MAX, Weights};
