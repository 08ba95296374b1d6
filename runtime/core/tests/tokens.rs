//! The ledger of device time by itself: event lists of its rules, and properties of ours.

#[path = "tokens/device.rs"]
mod device;
#[path = "tokens/events.rs"]
mod events;
#[path = "tokens/properties.rs"]
mod properties;
