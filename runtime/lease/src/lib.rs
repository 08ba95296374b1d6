//! Leases: what a daemon has promised of its devices to engines on other machines.
//!
//! A placement engine (Ray, Kubernetes) decides where an instance should be. The daemon alone
//! grants it: a lease promises a part of a device's compute units, a quota of its time, memory and
//! real-time slots, for a limited time. Its holder renews it. A lease whose holder is
//! gone ends by itself.
//!
//! The [`Ledger`] is pure, like the scheduler: events and the time go in, actions come out. The
//! caller makes changes durable, creates and removes the instances, and sends the answers.
//!
//! What it is not: it opens no socket, writes no file and knows no engine. Which machine an instance
//! goes to is not its business.
//!
//! # Invariants
//!
//! - The promises of a device never exceed its capacity: partitions × quotas fit as rectangles
//!   ([`atoll_core::packing`]), memory and real-time slots add up.
//! - A request that is sent twice is granted once. Its second answer is the first one.
//! - Every grant and every takeover has a higher [`Epoch`] than all before, also after a restart. A
//!   holder with an old epoch can neither renew nor release.
//! - What is granted is durable before it is answered: [`Action::Keep`] comes before the answer.
//! - A lease that is not renewed ends within its time to live; after a restart of the daemon, within
//!   its time to live from the restart. Times are the daemon's own. No other clock is believed.
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
