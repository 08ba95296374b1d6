//! Handles for the program: numbers of the session with a kind. They look like addresses that do
//! not exist, so that a program that dereferences one faults.

use atoll_cuda_api::types::DriverHandle;
use atoll_session::Code;

/// The upper half of every handle.
const BASE: u64 = 0x5e55_0000_0000_0000;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 1,
    Module = 2,
    /// A kernel of a module or library: programs pass either handle to a launch.
    Kernel = 3,
    Stream = 4,
    Event = 5,
    Library = 6,
}

/// The handle of an object.
pub(crate) fn handle<H: DriverHandle>(kind: Kind, number: u32) -> H {
    H::from_bits(BASE | (kind as u64) << 40 | u64::from(number) << 4)
}

/// The number of the object with a handle from the program; whether it exists is not checked.
pub(crate) fn number(kind: Kind, handle: impl DriverHandle) -> Result<u32, Code> {
    let prefix = BASE | (kind as u64) << 40;
    let rest = handle.bits().checked_sub(prefix).filter(|rest| rest % 16 == 0).ok_or(Code::INVALID_HANDLE)?;
    u32::try_from(rest / 16).map_err(|_| Code::INVALID_HANDLE)
}

/// The number of a stream: 0 for the default stream, also that of the thread, which is ordered like
/// the one of the process here.
pub(crate) fn stream_number(handle: impl DriverHandle) -> Result<u32, Code> {
    if handle.bits() <= 2 { Ok(0) } else { number(Kind::Stream, handle) }
}
