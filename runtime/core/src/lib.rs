//! The scheduling and memory decisions of a device, as pure functions of (state, event, time). The
//! daemon, the simulator and the tests drive the same code.
//!
//! Not here: threads, clocks, locks, logs and device access. The crate depends on no other crate of
//! the workspace. Start reading at [`Event`] and [`Action`], then [`DeviceScheduler`],
//! `scheduler.rs` and `dispatch.rs`; for memory, start at [`memory`]; for batches of requests, at
//! [`batching`].
//!
//! A task that arrives enters the *host queue* of its class. When a *device queue* has room, the
//! task is bound to that queue and prepared: memory is bound and inputs are written. Then its
//! launches are issued in order, as many at a time as the device queue holds. A task whose
//! constants are still loading keeps its position in the host queue without blocking others. A
//! [`Policy`] decides which class may issue and which class is evicted. To evict a task, the
//! scheduler raises the task's epoch: launches in flight exit at the next block boundary (lazy
//! eviction, REEF §4). Once all of them have ended, the task waits at its first incomplete launch.
//!
//! Within a class tasks have ranks. A more urgent real-time task evicts less urgent real-time tasks
//! just as it evicts best-effort tasks. Best-effort tasks can have a bound on how long they may go
//! without progress.
//!
//! Clients may have shares of a lane: a part of its compute units, and quotas of time
//! ([`tokens`]).
//!
//! A device has one or more *lanes*: groups of device queues bound to compute units. Each lane has
//! its own scheduler ([`DeviceScheduler`] holds them all). A lane that closes moves its tasks to
//! the default lane.
//!
//! # Invariants
//!
//! They are asserted in release builds too, because a scheduler that violates them produces wrong
//! results.
//!
//! - Every task that arrived is finished exactly once, and only when none of its launches is in
//!   flight.
//! - All launches of a task that are in flight are in one device queue; inside a [`Fork`], those of
//!   each branch are in one queue. They run in order, and never on inputs that an evicted launch
//!   had yet to write (`task.rs` has the argument).
//! - A launch counts as complete only if the device reports it as complete and the report is
//!   consistent with the reports before it. Launches that were evicted, or may have been, are
//!   issued again under a newer epoch, after all launches of the old epoch have ended.
//! - Only preemptible launches are issued behind a preemptible launch in flight.
//! - No device queue is overfilled, and nothing grows without a bound from [`limits`].

pub mod batching;
pub mod calendar;
mod counters;
mod device_queue;
mod device_scheduler;
mod dispatch;
mod event;
mod fork;
mod fork_plan;
pub mod graphs;
mod host_queue;
pub mod ids;
pub mod limits;
pub mod memory;
mod moving;
pub mod packing;
pub mod padding;
pub mod perturb;
pub mod placement;
pub mod policy;
pub mod residency;
pub mod rng;
pub mod routing;
pub mod scaling;
mod scheduler;
mod shares;
mod starvation;
mod task;
mod tenant;
pub mod tokens;

pub use counters::Counters;
pub use device_scheduler::{DeviceScheduler, LaneConfig, LaneError, LaneState};
pub use event::{Action, Event, LaunchEnd, Outcome, Step, TaskSpec};
pub use fork::Fork;
pub use fork_plan::{StepCost, plan_forks};
pub use ids::*;
pub use padding::{LaunchProfile, PadShape, PaddingOptions};
pub use policy::{POLICIES, POLICY_DEFAULT, Policy, PolicyEntry, View, policy_by_name, real_time_queues};
pub use scheduler::SchedulerConfig;
pub use starvation::{BEST_EFFORT_SLICE_DIVISOR, Slice};
pub use tenant::{BadTenant, TENANT_BYTES_MAX, Tenant, is_plain_name};
