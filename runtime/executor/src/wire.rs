//! The messages between a daemon and its executors. Launches and completions are none: they cross
//! the rings.
//!
//! Each is one packet of JSON, at most [`MESSAGE_BYTES_MAX`] long; code and the facts of its
//! kernels travel in a memory file beside it.

use atoll_core::LaunchId;
use atoll_device::DeviceFacts;
use atoll_device::report::{Fault, LaunchReport};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Version of all of this, rings and control words included. Both sides are one program, so it only
/// guards against one that was replaced while it ran.
pub(crate) const PROTOCOL_VERSION: u32 = 6;

/// Longest message. Less than what a socket holds by default.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Most descriptors in one message; the system takes 253.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// Most ranges in one message without descriptors.
pub(crate) const RANGES_MAX: usize = 1024;

/// Most code of a module, and most bytes of facts about its kernels.
pub(crate) const CODE_BYTES_MAX: u64 = 1 << 30;
pub(crate) const FACTS_BYTES_MAX: u64 = 64 << 20;

/// Printed text in one message; as JSON it may be six times as long.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Longest name and place in a report.
const NAME_BYTES_MAX: usize = 2 << 10;

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Order {
    /// The first message. Its descriptors: control words and rings, memory of the device or for
    /// transfers to it, the completion eventfd, and for a device with memory of its own the one
    /// that wakes the executor.
    Hello {
        version: u32,
        /// The daemon's process.
        daemon: i32,
        /// The kind of device that it runs, and its configuration.
        device: String,
        config: String,
        /// Memory to reserve, where it takes the place of another executor.
        memory_bytes: Option<u64>,
        /// How much less urgent than others it is, as for nice(2).
        nice: i32,
    },
    /// Its descriptor holds so many bytes of code, then so many of the PTX that it was made from if
    /// there are any, then so many of facts.
    Load { module: u32, target: String, code_bytes: u64, ptx_bytes: u64, facts_bytes: u64 },
    /// No launch in flight uses it.
    Unload { module: u32 },
    /// Where constants are to be mapped, each with a descriptor of its memory, for reading.
    Show { constants: Vec<ConstantRange> },
    /// An epoch word in memory of the device's own is raised that no launch was given yet.
    Raise { word: u64, epoch: u32 },
    /// A lane of a device with memory of its own: its queues, whether half of them are paired queues, and
    /// its compute units.
    OpenLane { lane: u32, queues: Range<u32>, paired_queues: bool, units: Range<u32> },
    /// Nothing is in the queues of a lane.
    CloseLane { queues: Range<u32> },
    /// Constants that are not to be mapped any more; no launch in flight reads them.
    Hide { constants: Vec<ConstantRange> },
}

/// Addresses of a constant, counted from where constants begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConstantRange {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// From an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Answer {
    /// It runs, and this is what its jail lacks.
    Ready { version: u32, missing: Vec<String> },
    /// What its device is, where only the executor can say that; sent before it runs.
    Device { facts: DeviceFacts },
    /// It cannot run, or not any more.
    Refused { reason: String },
    /// A module is loaded, or cannot be.
    Loaded { module: u32, refusal: Option<String> },
    /// The constants of one [`Order::Show`] are mapped.
    Shown,
    /// A piece of what there is to tell about a launch; sent before its completion.
    Report { launch: u64, fault: Option<Fault>, printed: String, printed_lost_bytes: u64, is_last: bool },
}

impl Answer {
    /// A report in as many messages as it takes.
    pub(crate) fn of_report(launch: LaunchId, report: LaunchReport) -> Vec<Answer> {
        let mut fault = report.fault.map(short);
        let mut pieces = Vec::new();
        let mut rest = report.printed.as_str();
        loop {
            let (piece, behind) = rest.split_at(floor_char_boundary(rest, TEXT_BYTES_MAX));
            rest = behind;
            let is_last = rest.is_empty();
            let printed_lost_bytes = if is_last { report.printed_lost_bytes } else { 0 };
            pieces.push(Answer::Report {
                launch: launch.0,
                fault: fault.take(),
                printed: piece.to_owned(),
                printed_lost_bytes,
                is_last,
            });
            if is_last {
                return pieces;
            }
        }
    }
}

/// Cuts the names in a fault to what a message takes.
fn short(mut fault: Fault) -> Fault {
    let cut = |text: &mut String| text.truncate(floor_char_boundary(text, NAME_BYTES_MAX));
    cut(&mut fault.kernel);
    if let Some(place) = &mut fault.place {
        cut(place);
    }
    if let atoll_device::FaultKind::Refused { reason } = &mut fault.kind {
        cut(reason);
    }
    fault
}

/// The last place at or before `at` where `text` can be cut.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_device::report::{Access, AccessKind, AccessSpace, FaultKind};

    fn fault() -> Fault {
        Fault {
            kind: FaultKind::BadAddress { signal: 11 },
            kernel: "k".repeat(10_000),
            block: Some([1, 2, 3]),
            thread: None,
            line: Some(7),
            access: Some(Access { kind: AccessKind::Write, space: AccessSpace::Global, bytes: 4 }),
            address: Some(u64::MAX),
            place: None,
        }
    }

    #[test]
    fn a_long_report_crosses_in_pieces_that_fit() {
        let printed = "\u{1}é".repeat(50_000);
        let report = LaunchReport { fault: Some(fault()), printed: printed.clone(), printed_lost_bytes: 9 };
        let (mut text, mut faults, mut lost, mut ends) = (String::new(), Vec::new(), 0, 0);
        for piece in Answer::of_report(LaunchId(3), report) {
            let bytes = serde_json::to_vec(&piece).unwrap();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{}", bytes.len());
            let Answer::Report { launch: 3, fault, printed, printed_lost_bytes, is_last } =
                serde_json::from_slice(&bytes).unwrap()
            else {
                panic!("another message")
            };
            text.push_str(&printed);
            faults.extend(fault);
            lost += printed_lost_bytes;
            ends += u32::from(is_last);
        }
        assert_eq!((text == printed, faults.len(), lost, ends), (true, 1, 9, 1));
        assert_eq!(faults[0], Fault { kernel: "k".repeat(NAME_BYTES_MAX), ..fault() });
        let nothing = LaunchReport { fault: None, printed: String::new(), printed_lost_bytes: 1 };
        assert_eq!(Answer::of_report(LaunchId(3), nothing).len(), 1);
    }
}
