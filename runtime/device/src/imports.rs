//! Device memory of other processes, which clients name by handles of CUDA IPC.

use crate::error::DeviceError;
use std::fmt;

/// Size of a handle in bytes.
pub const HANDLE_BYTES: usize = 64;

/// A handle under which a process has exported device memory. It is not printed: a process that has
/// the handle may open the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MemoryHandle(pub [u8; HANDLE_BYTES]);

/// Imported memory, by a number that is not used again while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImportId(pub u64);

/// Why imported memory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The driver refuses the handle, or a range is outside the memory.
    #[error("{0}")]
    Refused(String),
    /// The device cannot be used at the moment; another attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// Access to device memory of other processes, for any thread. All methods but `close` block, for
/// as long as the device's driver takes. If the process that had opened the memory is replaced, the
/// next use opens it again.
///
/// # Errors
/// [`ImportError`], of all methods.
pub trait Imports: fmt::Debug + Send + Sync {
    /// The number by which clients name the device.
    fn ordinal(&self) -> u32;

    /// Opens memory; returns its size in bytes.
    fn open(&self, id: ImportId, handle: &MemoryHandle) -> Result<u64, ImportError>;

    /// Copies from offset `at` of the memory.
    fn read(&self, id: ImportId, handle: &MemoryHandle, at: u64, to: &mut [u8]) -> Result<(), ImportError>;

    /// Copies to offset `at` of the memory.
    fn write(&self, id: ImportId, handle: &MemoryHandle, at: u64, from: &[u8]) -> Result<(), ImportError>;

    /// Closes memory that no call uses. Does not wait.
    fn close(&self, id: ImportId);
}

/// A device that opens the memory of other processes, in the process that has the device's context.
/// It runs on a thread of its own.
///
/// # Errors
/// [`DeviceError::OutOfRange`] for a range outside the memory, [`DeviceError::Lost`] if the device is
/// lost, otherwise the driver's error.
pub trait Importer: fmt::Debug + Send {
    /// Opens memory, unless this id is open; returns its size in bytes.
    fn open(&mut self, id: ImportId, handle: &MemoryHandle) -> Result<u64, DeviceError>;

    /// Copies from offset `at` of open memory.
    fn read(&mut self, id: ImportId, at: u64, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies to offset `at` of open memory.
    fn write(&mut self, id: ImportId, at: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// Closes memory. Ignores an id that is not open.
    fn close(&mut self, id: ImportId);
}

impl fmt::Debug for MemoryHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryHandle")
    }
}
