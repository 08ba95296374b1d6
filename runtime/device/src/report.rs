//! What a launch left behind beyond its effect on memory: why it failed, and what it printed.
//!
//! A report is for people. It is made after the launch ended, stays with the device until somebody
//! takes it ([`Launching::report`](crate::Launching::report)), and is dropped unread where too many
//! pile up.

use serde::{Deserialize, Serialize};
use std::fmt;

pub use atoll_kgraph::host_abi::{Access, AccessKind, AccessSpace};

/// Addresses below this are a null pointer plus an index.
const NULL_BYTES: u64 = 64 << 10;

/// What is known about a launch that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchReport {
    /// Why it failed, where it did.
    pub fault: Option<Fault>,
    /// What its kernel printed.
    pub printed: String,
    /// Bytes that it printed beyond what is kept.
    pub printed_lost_bytes: u64,
}

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The kernel; empty where the launch names none.
    pub kernel: String,
    /// The block.
    pub block: Option<[u32; 3]>,
    /// The thread in its block; of several that did the same, the first.
    pub thread: Option<[u32; 3]>,
    /// Line of the kernel's PTX.
    pub line: Option<u32>,
    /// The access it is about.
    #[serde(with = "access_bits")]
    pub access: Option<Access>,
    /// Where that access went.
    pub address: Option<u64>,
    /// Where that is, as seen from the memory the kernel may touch.
    pub place: Option<String>,
}

/// What happened to a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// It executed `trap`.
    Trap,
    /// An assertion did not hold; what it said is in [`LaunchReport::printed`].
    Assert,
    /// It ran into code that the compiler took to be unreachable.
    Unreachable,
    /// Its threads wait for each other and none can go on.
    Deadlock,
    /// An access at an address that is no multiple of its size.
    Misaligned,
    /// An access outside the memory that the kernel may touch, found by a check.
    OutOfBounds,
    /// An access where there is no memory, or none of the kind, found by the processor.
    BadAddress {
        /// The signal it raised.
        signal: i32,
    },
    /// An instruction that the processor could not execute.
    BadInstruction {
        /// The signal it raised.
        signal: i32,
    },
    /// It ran for longer than it may.
    TimeLimit {
        /// How long that is.
        limit_ns: u64,
    },
    /// It could not be started.
    Refused {
        /// Why.
        reason: String,
    },
    /// The device ended while it ran.
    Ended,
    /// It did what ended the device, since nothing else ran there; or a launch of the same task did
    /// that was in flight with it.
    Fatal {
        /// How the device was lost.
        cause: String,
    },
    /// The device was lost before it ended.
    Lost {
        /// How the device was lost.
        cause: String,
        /// It was the next of its device queue, so that it may have been running.
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
    /// `kernel 'conv_3' faulted in block (3,0,0), thread (17,0,0), at line 212: write of 4 bytes at
    /// 0x10, through a null pointer`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kernel.is_empty() {
            return write!(f, "a launch failed: {}", What(self));
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
        write!(f, ": {}", What(self))
    }
}

/// An access as the number that native code makes of it.
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

/// What happened, without where.
struct What<'a>(&'a Fault);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = self.0;
        match &fault.kind {
            FaultKind::Trap => f.write_str("it executed `trap`"),
            FaultKind::Assert => f.write_str("an assertion failed"),
            FaultKind::Unreachable => f.write_str("it ran into code that cannot be reached"),
            FaultKind::Deadlock => f.write_str("its threads wait for each other and none can go on"),
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

/// An access and where it went.
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
            None => f.write_str(" at an address that no memory can have")?,
        }
        if let Some(place) = &fault.place {
            return write!(f, ", {place}");
        }
        if fault.address.is_some_and(|a| a < NULL_BYTES) && !matches!(fault.kind, FaultKind::Misaligned) {
            f.write_str(", through a null pointer,")?;
        }
        Ok(())
    }
}

/// A duration in seconds or what is below.
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
    fn a_fault_says_what_happened_where() {
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
            "kernel 'conv_3' faulted in block (3,0,0), thread (1,2,0) at line 212: misaligned read of 16 bytes at 0x7f0000001000"
        );
        let place = Some("8 bytes behind the end of 'out' (1024 bytes)".to_owned());
        let outside = Fault { kind: FaultKind::OutOfBounds, place, ..misaligned };
        assert!(
            outside
                .to_string()
                .ends_with("read of 16 bytes at 0x7f0000001000, 8 bytes behind the end of 'out' (1024 bytes)")
        );
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
