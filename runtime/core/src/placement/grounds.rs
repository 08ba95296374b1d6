//! Why a request was given to its device, for traces and reports.

use crate::ids::Nanos;

/// Why a request was given to its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is real-time, and expected to finish there first.
    RealTime,
    /// It was on another device before, which was lost or refused it.
    Again,
    /// Its function runs on no other device.
    Only,
    /// The constants of its function are there.
    Holder,
    /// Constants are loaded there, since no device has them.
    Load,
    /// Constants are loaded there although another device has them: those that do are busy, or the
    /// policy does not look at constants.
    Replica,
    /// The pool was not asked: the admission of a graph has reserved the device.
    Reserved,
    /// The pool was not asked: a stage of a graph is measured there.
    Measured,
    /// The pool was not asked: another device has had the request for long.
    Hedged,
}

impl Why {
    /// All of them, as traces number them.
    pub const ALL: [Why; 9] = [
        Why::RealTime,
        Why::Again,
        Why::Only,
        Why::Holder,
        Why::Load,
        Why::Replica,
        Why::Reserved,
        Why::Measured,
        Why::Hedged,
    ];

    /// In words, for traces.
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
        }
    }
}

/// The grounds of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// Why this device.
    pub why: Why,
    /// Expected time to load the constants of its function there; 0 if they are there, or if
    /// nothing is known.
    pub reload: Nanos,
    /// Expected time on the device without loading; 0 if nothing is known.
    pub service: Nanos,
    /// When it arrived.
    pub arrived: Nanos,
    /// Best-effort requests that went on waiting.
    pub waiting: usize,
}
