//! Handles for the program: the session's numbers and a kind. They look like invalid addresses, so
//! that a program that dereferences one faults.

use atoll_cuda_api::types::DriverHandle;
use atoll_session::Code;

/// The upper half of each handle.
const BASE: u64 = 0x5e55_0000_0000_0000;

/// The kind of object that a handle refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 1,
    Module = 2,
    /// A kernel of a module or library. Programs pass either handle to a launch.
    Kernel = 3,
    Stream = 4,
    Event = 5,
    Library = 6,
    Graph = 7,
    Node = 8,
    Executable = 9,
    Pool = 10,
}

/// The handle of an object.
pub(crate) fn handle<H: DriverHandle>(kind: Kind, number: u32) -> H {
    H::from_bits(BASE | (kind as u64) << 40 | u64::from(number) << 4)
}

/// The number of the object that a handle from the program refers to. The object may not exist.
pub(crate) fn number(kind: Kind, handle: impl DriverHandle) -> Result<u32, Code> {
    let prefix = BASE | (kind as u64) << 40;
    let rest = handle.bits().checked_sub(prefix).filter(|rest| rest % 16 == 0).ok_or(Code::INVALID_HANDLE)?;
    u32::try_from(rest / 16).map_err(|_| Code::INVALID_HANDLE)
}

/// The number of a stream. The default stream is 0, also the per-thread default stream, which is
/// ordered like the process's default stream here.
pub(crate) fn stream_number(handle: impl DriverHandle) -> Result<u32, Code> {
    if handle.bits() <= 2 { Ok(0) } else { number(Kind::Stream, handle) }
}
