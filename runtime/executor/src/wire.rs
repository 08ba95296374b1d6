//! The messages between a daemon and its executors. Launches and completions are not messages: they
//! cross the rings.
//!
//! A message is one packet of JSON of at most [`MESSAGE_BYTES_MAX`] bytes. Code, and the facts of
//! its kernels, are sent in a memory file with it.

use atoll_core::LaunchId;
use atoll_device::report::{Fault, LaunchReport};
use atoll_device::{DeviceError, DeviceFacts};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Version of the messages, rings and control words. Both sides are the same program, so a mismatch
/// only occurs if the program was replaced while the daemon ran.
pub(crate) const PROTOCOL_VERSION: u32 = 7;

/// Longest message in bytes; less than a socket's default buffer.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Most descriptors in one message; the system allows 253.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// Most ranges in one message without descriptors.
pub(crate) const RANGES_MAX: usize = 1024;

/// Most bytes of a module's code, and of the facts of its kernels.
pub(crate) const CODE_BYTES_MAX: u64 = 1 << 30;
pub(crate) const FACTS_BYTES_MAX: u64 = 64 << 20;

/// Bytes of printed text in one message; as JSON it may be six times as long.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Largest number of messages of one report: 1 MiB of printed text, split at character boundaries.
pub(crate) const REPORT_MESSAGES_MAX: u64 = (1 << 20) / (TEXT_BYTES_MAX as u64 - 3) + 1;

/// Longest name and description of a place in a report, in bytes.
const NAME_BYTES_MAX: usize = 2 << 10;

/// Messages from the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Order {
    /// The first message. Its descriptors: control words and rings; device memory, or memory for
    /// transfers; the completion eventfd; and, for a device with memory of its own, the eventfd
    /// that wakes the executor.
    Hello {
        version: u32,
        /// The daemon's process id.
        daemon: i32,
        /// The kind of device to run, and its configuration.
        device: String,
        config: String,
        /// Bytes of memory to reserve, if it replaces another executor.
        memory_bytes: Option<u64>,
        /// Increase of its nice value, as for nice(2).
        nice: i32,
    },
    /// Loads a module. Its descriptor contains the code, then the PTX it was made from if any, then
    /// the facts, with these sizes.
    Load { module: u32, target: String, code_bytes: u64, ptx_bytes: u64, facts_bytes: u64 },
    /// Unloads a module that no launch in flight uses.
    Unload { module: u32 },
    /// Maps constants read-only; there is a descriptor for each.
    Show { constants: Vec<ConstantRange> },
    /// Raises an epoch word that no launch has carried yet, on a device with memory of its own.
    Raise { word: u64, epoch: u32 },
    /// Stops running blocks of an evicted launch, on a device with memory of its own that can.
    Interrupt { queue: u32, launch: u64 },
    /// Opens a lane on a device with memory of its own: its queues, whether half of them are paired
    /// queues, and its compute units.
    OpenLane { lane: u32, queues: Range<u32>, paired_queues: bool, units: Range<u32> },
    /// Closes a lane whose queues are empty.
    CloseLane { queues: Range<u32> },
    /// Unmaps constants that no launch in flight reads.
    Hide { constants: Vec<ConstantRange> },
    /// Opens memory of another process under its handle, unless it is open, and copies. Its
    /// descriptor is the buffer for copies. `order` numbers these messages.
    Import { order: u64, import: u64, handle: Vec<u8>, work: ImportWork },
    /// Closes such memory; has no answer.
    CloseImport { import: u64 },
}

/// What to do with memory of another process, once it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum ImportWork {
    Open,
    /// Copies from an offset of the memory to the beginning of the buffer.
    Read {
        at: u64,
        bytes: u64,
    },
    /// Copies from the beginning of the buffer to an offset of the memory.
    Write {
        at: u64,
        bytes: u64,
    },
}

/// The address range of a constant, relative to the beginning of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConstantRange {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Messages from an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Answer {
    /// It runs; `missing` lists what its jail lacks.
    Ready { version: u32, missing: Vec<String> },
    /// The facts of its device, if only the executor knows them, and a handle of its memory for a
    /// second executor; sent before `Ready`.
    Device { facts: DeviceFacts, memory: Option<Vec<u8>> },
    /// It cannot run or cannot continue.
    Refused { reason: String },
    /// A module was loaded, or refused with a reason.
    Loaded { module: u32, refusal: Option<String> },
    /// The constants of one [`Order::Show`] are mapped.
    Shown,
    /// An [`Order::Import`] was carried out on memory of this size, or failed with a reason.
    /// `may_retry` if the cause is not the memory, so another attempt may succeed.
    Imported { order: u64, bytes: u64, refusal: Option<String>, may_retry: bool },
    /// A part of a launch's report; sent before the completion.
    Report { launch: u64, fault: Option<Fault>, printed: String, printed_lost_bytes: u64, is_last: bool },
}

impl Answer {
    /// The answer to an [`Order::Import`]. Shortens a long reason.
    pub(crate) fn of_import(order: u64, done: Result<u64, DeviceError>) -> Answer {
        let may_retry = matches!(done, Err(DeviceError::Lost(_) | DeviceError::Os { .. }));
        let bytes = done.as_ref().copied().unwrap_or(0);
        let refusal = done.err().map(|error| {
            let mut reason = error.to_string();
            reason.truncate(floor_char_boundary(&reason, NAME_BYTES_MAX));
            reason
        });
        Answer::Imported { order, bytes, refusal, may_retry }
    }

    /// Splits a report into as many messages as needed.
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

/// Truncates the names in a fault to their limit.
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

/// The last position at or before `at` where `text` can be split.
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
    fn the_answer_to_an_import_says_whether_another_attempt_may_succeed() {
        let done = Answer::Imported { order: 3, bytes: 8, refusal: None, may_retry: false };
        assert_eq!(Answer::of_import(3, Ok(8)), done);
        for (error, expected) in [
            (DeviceError::Driver("é".repeat(NAME_BYTES_MAX)), false),
            (DeviceError::OutOfRange { at: 1, bytes: 2, memory_bytes: 2 }, false),
            (DeviceError::Lost("a kernel faulted".to_owned()), true),
        ] {
            let Answer::Imported { order: 3, bytes: 0, refusal: Some(reason), may_retry } =
                Answer::of_import(3, Err(error))
            else {
                panic!("another answer")
            };
            assert!(!reason.is_empty() && reason.len() <= NAME_BYTES_MAX, "{reason}");
            assert_eq!(may_retry, expected, "{reason}");
        }
    }

    #[test]
    fn a_long_report_is_split_into_messages_that_fit() {
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
