//! The scheduler as a pure function of (state, event, now): ids, units, limits, queues, policies
//! (design D3).
//!
//! No thread, clock, lock, log or device, and no crate of ours: the daemon, the simulator and the
//! tests drive the same code.
//!
//! A task arrives and lines up in the *host queue* of its class. When a *device queue* opens for
//! it, it is bound to that queue and prepared (memory, inputs); then its launches are issued one
//! after the other, as many as the device queue holds. A task whose constants are still on their
//! way keeps its place and stands in nobody's way. A [`Policy`] says which class may issue and
//! which has to leave. A task that has to leave has its epoch raised: the launches in flight leave
//! by themselves (lazy eviction, design D5), and once the last of them has ended the task stands at
//! its first incomplete launch and waits to go on.
//!
//! Within a class tasks have ranks, and a more urgent real-time task makes less urgent ones leave
//! as it does best-effort ones. Best-effort tasks can be given a bound on how long they get
//! nowhere.
//!
//! A device has one or more *lanes*, groups of device queues that are bound to compute units. Each
//! has a scheduler of its own ([`DeviceScheduler`]); a lane that closes gives its tasks to the
//! default lane.
//!
//! # Invariants
//!
//! They are asserted in every build, because a scheduler that is wrong about them hands out wrong
//! answers.
//!
//! - Every task that arrived is finished exactly once, and only when nothing of it is in flight.
//! - The launches of a task that are in flight are in one device queue, or each line of a part that
//!   runs in two lines in one of two. They run in order, and never on inputs that an evicted launch
//!   had yet to write (the argument stands in `task.rs`).
//! - A launch counts as complete only if the device said so, and if it could have known; whatever
//!   was evicted, or may have been, is issued again under a newer epoch, after everything of the
//!   old epoch has ended.
//! - Behind a launch that can leave stand only launches that can leave (design D5 b).
//! - No device queue is overfilled, and nothing grows without a bound from [`limits`].

mod device_queue;
mod device_scheduler;
mod dispatch;
mod event;
mod fork;
mod fork_plan;
mod host_queue;
pub mod ids;
pub mod limits;
pub mod memory;
mod moving;
pub mod padding;
pub mod perturb;
pub mod placement;
pub mod policy;
pub mod residency;
pub mod rng;
mod scheduler;
mod starvation;
mod task;
mod tenant;
mod tokens;

pub use device_scheduler::{DeviceScheduler, LaneConfig, LaneError, LaneState};
pub use event::{Action, Event, LaunchEnd, Outcome, Step, TaskSpec};
pub use fork::Fork;
pub use fork_plan::{StepCost, plan_forks};
pub use ids::*;
pub use padding::{LaunchProfile, PadShape};
pub use policy::{POLICIES, POLICY_DEFAULT, Policy, PolicyEntry, View, policy_by_name};
pub use scheduler::{Counters, SchedulerConfig};
pub use starvation::{BEST_EFFORT_SLICE_DIVISOR, Slice};
pub use tenant::{BadTenant, TENANT_BYTES_MAX, Tenant, is_plain_name};
