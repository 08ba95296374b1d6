//! The ledger of device time without a scheduler: event lists of its rules, and properties of the
//! rule `atoll`.

mod device;
mod events;
mod lending;
mod properties;
