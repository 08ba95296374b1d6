//! The report of a launch: why it failed, and what it printed.
//!
//! Reports are for people. A report is made after its launch ended and kept by the device until it
//! is taken ([`Launching::report`](crate::Launching::report)). If there are too many, the oldest is
//! dropped.

use crate::PRINTED_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use atoll_kgraph::host_abi::{Access, AccessKind, AccessSpace};

/// Addresses below this are a null pointer plus an index.
const NULL_BYTES: u64 = 64 << 10;

/// The report of a launch that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchReport {
    /// Why it failed, if it did.
    pub fault: Option<Fault>,
    /// What its kernel printed.
    pub printed: String,
    /// Bytes that it printed beyond the limit; they were dropped.
    pub printed_lost_bytes: u64,
}

impl LaunchReport {
    /// Appends a text as a whole, or drops it as a whole if it does not fit. After the first loss,
    /// all further texts are dropped. Returns whether it was appended.
    pub fn print(&mut self, text: &str) -> bool {
        let fits = self.printed.len() + text.len() <= PRINTED_BYTES_MAX && self.printed_lost_bytes == 0;
        if fits {
            self.printed.push_str(text);
        } else {
            self.printed_lost_bytes += text.len() as u64;
        }
        fits
    }
}

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The kernel; empty if the launch names none.
    pub kernel: String,
    /// The block index.
    pub block: Option<[u32; 3]>,
    /// The thread index in its block; the first one if several threads faulted.
    pub thread: Option<[u32; 3]>,
    /// Line in the kernel's PTX.
    pub line: Option<u32>,
    /// The memory access that faulted.
    #[serde(with = "access_bits")]
    pub access: Option<Access>,
    /// The address of that access.
    pub address: Option<u64>,
    /// That address in relation to the buffers that the kernel may access.
    pub place: Option<String>,
}

/// What happened to a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// It executed `trap`.
    Trap,
    /// An assertion failed. On the host device, its message is in [`LaunchReport::printed`].
    Assert,
    /// It reached code that the compiler considered unreachable.
    Unreachable,
    /// Its threads wait for each other, and none can continue.
    Deadlock,
    /// An access to an address that is not a multiple of its size.
    Misaligned,
    /// An access outside the buffers that the kernel may access, found by a bounds check.
    OutOfBounds,
    /// An access to unmapped or read-only memory, found by the processor.
    BadAddress {
        /// The signal that the processor raised.
        signal: i32,
    },
    /// An instruction that the processor could not execute.
    BadInstruction {
        /// The signal that the processor raised.
        signal: i32,
    },
    /// It ran longer than its time limit.
    TimeLimit {
        /// The limit in nanoseconds.
        limit_ns: u64,
    },
    /// It was not started.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The device ended while it ran.
    Ended,
    /// It ended the device: it was the only one there, or the other launches in flight belong to
    /// the same task.
    Fatal {
        /// How the device was lost.
        cause: String,
    },
    /// The device was lost while it was in flight.
    Lost {
        /// How the device was lost.
        cause: String,
        /// It was the oldest of its device queue, so it may have been running.
        may_have_run: bool,
    },
}

impl Fault {
    /// A fault of which only the kernel is known.
    pub fn of_kernel(kind: FaultKind, kernel: &str) -> Fault {
        Fault {
            kind,
            kernel: kernel.to_owned(),
            block: None,
            thread: None,
            line: None,
            access: None,
            address: None,
            place: None,
        }
    }
}

impl fmt::Display for Fault {
    /// For example: `kernel 'conv_3' faulted in block (3,0,0), thread (17,0,0), at line 212: write
    /// of 4 bytes at 0x10, through a null pointer`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kernel.is_empty() {
            return write!(f, "a launch failed: {}", Cause(self));
        }
        write!(
            f,
            "kernel '{}' {}",
            self.kernel,
            if matches!(self.kind, FaultKind::Refused { .. }) { "was not started" } else { "faulted" }
        )?;
        let places =
            [("block", self.block), ("thread", self.thread)].into_iter().filter_map(|(name, at)| Some((name, at?)));
        for ((name, [x, y, z]), before) in places.zip([" in", ","]) {
            write!(f, "{before} {name} ({x},{y},{z})")?;
        }
        if let Some(line) = self.line {
            write!(f, " at line {line}")?;
        }
        write!(f, ": {}", Cause(self))
    }
}

/// Serializes an access as the number that native code uses.
mod access_bits {
    use atoll_kgraph::host_abi::Access;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(access: &Option<Access>, to: S) -> Result<S::Ok, S::Error> {
        access.map(Access::to_bits).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Access>, D::Error> {
        let bits = Option::<u32>::deserialize(from)?;
        bits.map(|bits| Access::from_bits(bits).ok_or_else(|| serde::de::Error::custom("no access has these bits")))
            .transpose()
    }
}

/// The cause of a fault, without its location.
struct Cause<'a>(&'a Fault);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = self.0;
        match &fault.kind {
            FaultKind::Trap => f.write_str("it executed `trap`"),
            FaultKind::Assert => f.write_str("an assertion failed"),
            FaultKind::Unreachable => f.write_str("it reached code that the compiler considered unreachable"),
            FaultKind::Deadlock => f.write_str("deadlock: its threads wait for each other"),
            FaultKind::Misaligned => write!(f, "misaligned {}", Target(fault)),
            FaultKind::OutOfBounds if fault.place.is_none() => write!(f, "{} outside every buffer", Target(fault)),
            FaultKind::OutOfBounds => write!(f, "{}", Target(fault)),
            FaultKind::BadAddress { .. } if fault.address.is_none() || fault.place.is_some() => {
                write!(f, "{}", Target(fault))
            }
            FaultKind::BadAddress { .. } => write!(f, "{} outside device memory", Target(fault)),
            FaultKind::BadInstruction { signal } => {
                write!(f, "the processor could not execute an instruction (signal {signal})")
            }
            FaultKind::TimeLimit { limit_ns } => {
                write!(f, "it ran for longer than its limit of {}", Seconds(*limit_ns))
            }
            FaultKind::Refused { reason } => f.write_str(reason),
            FaultKind::Ended => f.write_str("the device ended while it ran"),
            FaultKind::Fatal { cause } | FaultKind::Lost { cause, .. } => f.write_str(cause),
        }
    }
}

/// An access and its address.
struct Target<'a>(&'a Fault);

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = self.0;
        match fault.access {
            None => f.write_str("access")?,
            Some(access) => {
                let (verb, of) = match access.kind {
                    AccessKind::Read => ("read", "from"),
                    AccessKind::Write => ("write", "to"),
                    AccessKind::Atomic => ("atomic update", "of"),
                };
                f.write_str(verb)?;
                if access.bytes > 0 {
                    write!(f, " of {} bytes", access.bytes)?;
                }
                if fault.address.is_some() {
                    write!(f, " {}", if access.bytes > 0 { "at" } else { of })?;
                }
            }
        }
        match fault.address {
            Some(address) => write!(f, " {address:#x}")?,
            None if matches!(fault.kind, FaultKind::BadAddress { .. }) => f.write_str(" at a non-canonical address")?,
            // A fence on a GPU reports no address.
            None => {}
        }
        match (&fault.place, fault.address) {
            (Some(place), Some(_)) => return write!(f, ", {place}"),
            (Some(place), None) => return write!(f, " {place}"),
            (None, _) => {}
        }
        if fault.address.is_some_and(|a| a < NULL_BYTES) && !matches!(fault.kind, FaultKind::Misaligned) {
            f.write_str(", through a null pointer,")?;
        }
        Ok(())
    }
}

/// A duration, in seconds or milliseconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns % 1_000_000_000 == 0 => write!(f, "{} s", ns / 1_000_000_000),
            ns => write!(f, "{} ms", ns as f64 / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_its_cause_and_its_location() {
        let fault = Fault {
            kind: FaultKind::BadAddress { signal: 11 },
            kernel: "conv_3".into(),
            block: Some([3, 0, 0]),
            thread: None,
            line: Some(212),
            access: Some(Access { kind: AccessKind::Write, space: AccessSpace::Global, bytes: 0 }),
            address: Some(0x7f00_0000_1000),
            place: None,
        };
        assert_eq!(
            fault.to_string(),
            "kernel 'conv_3' faulted in block (3,0,0) at line 212: write to 0x7f0000001000 outside device memory"
        );
        let null = Fault { address: Some(8), ..fault.clone() };
        assert!(null.to_string().ends_with("write to 0x8, through a null pointer, outside device memory"), "{null}");
        let access = Some(Access { kind: AccessKind::Read, space: AccessSpace::Global, bytes: 16 });
        let misaligned = Fault { kind: FaultKind::Misaligned, thread: Some([1, 2, 0]), access, ..fault.clone() };
        assert_eq!(
            misaligned.to_string(),
            "kernel 'conv_3' faulted in block (3,0,0), thread (1,2,0) at line 212: \
             misaligned read of 16 bytes at 0x7f0000001000"
        );
        let place = Some("8 bytes behind the end of 'out' (1024 bytes)".to_owned());
        let outside = Fault { kind: FaultKind::OutOfBounds, place, ..misaligned };
        assert!(
            outside
                .to_string()
                .ends_with("read of 16 bytes at 0x7f0000001000, 8 bytes behind the end of 'out' (1024 bytes)")
        );
        let unknown = Fault { address: None, access: None, ..outside.clone() };
        assert!(unknown.to_string().contains(": access 8 bytes behind the end of 'out'"), "{unknown}");
        let late = Fault { kind: FaultKind::TimeLimit { limit_ns: 10_000_000_000 }, ..fault.clone() };
        assert!(late.to_string().ends_with("at line 212: it ran for longer than its limit of 10 s"));
        let refused = Fault {
            kind: FaultKind::Refused { reason: "no such module is loaded".into() },
            kernel: String::new(),
            ..fault
        };
        assert_eq!(refused.to_string(), "a launch failed: no such module is loaded");
    }
}
