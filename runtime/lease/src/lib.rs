//! Leases: parts of a daemon's devices, promised to holders on other machines.
//!
//! A placement engine (Ray, Kubernetes) decides where an instance should be, and the daemon decides
//! whether to grant it. A lease promises a part of a device's compute units, a quota of its time,
//! memory and real-time slots, for a limited time. Its holder renews it. A lease whose holder is
//! gone expires.
//!
//! The [`Ledger`] is pure, like the scheduler: it gets events with their times and returns actions.
//! The caller makes changes durable, creates and removes the instances, and sends the answers.
//!
//! Not here: sockets, files, engines, and the choice of the machine for an instance.
//!
//! # Invariants
//!
//! - The promises of a device never exceed its capacity: partitions × quotas fit as rectangles
//!   ([`atoll_core::packing`]), and the sums of memory and real-time slots are within its own.
//! - A request that is sent twice is granted once. The second answer names the same lease and
//!   epoch, and extends the lease like a renewal.
//! - Every grant and every takeover has a higher [`Epoch`] than all earlier ones, also after a
//!   restart. A holder with an old epoch can neither renew nor release.
//! - A grant is durable before it is answered: [`Action::Keep`] comes before the answer.
//! - A lease that is not renewed ends within its time to live; after a restart of the daemon,
//!   within its time to live from the restart. All times are of the daemon's clock.
//!
//! Start reading at [`Event`] and [`Action`], then [`Ledger`].

#![forbid(unsafe_code)]

mod action;
mod ask;
mod capacity;
mod event;
mod ids;
mod ledger;
pub mod limits;
mod refusal;

pub use action::{Action, Answer, Ending, Grant};
pub use ask::{Ask, BadAsk, Want};
pub use capacity::{Capacity, Free};
pub use event::Event;
pub use ids::{Epoch, Holder, LeaseId, RequestKey};
pub use ledger::{Kept, Ledger};
pub use refusal::Refusal;
