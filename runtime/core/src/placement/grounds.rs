//! Reasons for the choice of a request's device, for traces and reports.

use crate::ids::Nanos;

/// Why the device of a request was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The request is real-time, and expected to finish there first.
    RealTime,
    /// The request is dispatched again: its last device was lost, refused it, or failed.
    Again,
    /// The function runs on no other device.
    Only,
    /// The function's constants are on the device.
    Holder,
    /// The constants are loaded onto the device, since no device has them.
    Load,
    /// The constants are loaded onto the device although another one has them, because the others
    /// are busy or the policy ignores where constants are.
    Replica,
    /// Not chosen by the pool: the admission of a graph has reserved the device.
    Reserved,
    /// Not chosen by the pool: a stage of a graph is measured on the device.
    Measured,
    /// Not chosen by the pool: the request has taken long on another device.
    Hedged,
    /// Not chosen by the pool: an input of a stage of a graph is in the device's memory.
    Input,
}

impl Why {
    /// All reasons, in the order of their numbers in traces.
    pub const ALL: [Why; 10] = [
        Why::RealTime,
        Why::Again,
        Why::Only,
        Why::Holder,
        Why::Load,
        Why::Replica,
        Why::Reserved,
        Why::Measured,
        Why::Hedged,
        Why::Input,
    ];

    /// The reason as a label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Why::RealTime => "real_time",
            Why::Again => "again",
            Why::Only => "only",
            Why::Holder => "holder",
            Why::Load => "load",
            Why::Replica => "replica",
            Why::Reserved => "reserved",
            Why::Measured => "measured",
            Why::Hedged => "hedged",
            Why::Input => "input",
        }
    }

    /// The reason in words, for traces.
    pub fn words(self) -> &'static str {
        match self {
            Why::RealTime => "real-time: expected to finish there first",
            Why::Again => "another device was lost or refused it",
            Why::Only => "no other device has its function",
            Why::Holder => "its constants are there",
            Why::Load => "its constants are loaded there, and are on no other device",
            Why::Replica => "its constants are loaded there, since the devices that have them are busy",
            Why::Reserved => "reserved by the admission of a graph",
            Why::Measured => "a stage of a graph is measured there",
            Why::Hedged => "hedged: another device has had it for long",
            Why::Input => "an input of a stage of a graph is there",
        }
    }
}

/// The reason of a dispatch and the figures behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// Why this device was chosen.
    pub why: Why,
    /// Expected time to load the function's constants onto the device; 0 if they are resident, or
    /// if nothing is known.
    pub reload: Nanos,
    /// Expected time on the device without loading; 0 if nothing is known.
    pub service: Nanos,
    /// When the request arrived.
    pub arrived: Nanos,
    /// Number of best-effort requests that were still waiting.
    pub waiting: usize,
}
