//! The ledger of device time by itself: event lists of its rules, and properties of ours.

mod device;
mod events;
mod properties;
