//! Suspended sessions: their contents in host memory, and who may take how much of it.

use atoll_core::Tenant;
use atoll_core::memory::{HostLimits, HostMemory, HostRefusal, SessionId};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a session is idle before others may have its memory, unless the configuration says
/// otherwise.
pub const SUSPEND_IDLE_DEFAULT: Duration = Duration::from_secs(1);

/// Bytes of contents that are copied before the engine handles other events: about 50 µs, as for
/// constants.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Settings of the suspension of CUDA sessions.
#[derive(Clone, Debug)]
pub struct SuspensionConfig {
    /// How long a session is idle before others may have its memory; `None` if sessions are
    /// suspended only on request.
    pub idle: Option<Duration>,
    /// The host memory of suspended sessions, shared by all engines of a daemon.
    pub host: Arc<HostRoom>,
}

impl Default for SuspensionConfig {
    /// No limits of host memory.
    fn default() -> SuspensionConfig {
        SuspensionConfig { idle: Some(SUSPEND_IDLE_DEFAULT), host: HostRoom::new(HostLimits::UNLIMITED) }
    }
}

/// The host memory of the suspended sessions of all engines.
#[derive(Debug)]
pub struct HostRoom(Mutex<HostMemory>);

impl HostRoom {
    /// Unused memory with these limits.
    pub fn new(limits: HostLimits) -> Arc<HostRoom> {
        Arc::new(HostRoom(Mutex::new(HostMemory::new(limits))))
    }

    fn memory(&self) -> MutexGuard<'_, HostMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all suspended sessions.
    pub fn used(&self) -> u64 {
        self.memory().used()
    }

    /// Bytes of a tenant's suspended sessions.
    pub fn used_by(&self, tenant: &Tenant) -> u64 {
        self.memory().used_by(tenant)
    }

    pub(crate) fn take(self: &Arc<HostRoom>, tenant: &Tenant, bytes: u64) -> Result<HostBytes, HostRefusal> {
        self.memory().take(tenant, bytes)?;
        Ok(HostBytes { room: Arc::clone(self), tenant: tenant.clone(), bytes })
    }
}

/// Host memory of a session. Dropping it gives the memory back.
pub(crate) struct HostBytes {
    room: Arc<HostRoom>,
    tenant: Tenant,
    bytes: u64,
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        self.room.memory().give_back(&self.tenant, self.bytes);
    }
}

/// The contents of a suspended session.
pub struct SuspendedSession {
    /// Bytes of its memory.
    pub(crate) bytes: u64,
    /// The address of its memory, as kernels know it.
    pub(crate) address: Option<u64>,
    /// Pieces of [`PIECE_BYTES`]; `None` for one that is zero.
    pub(crate) pieces: Vec<Option<Box<[u8]>>>,
    pub(crate) host: HostBytes,
}

impl SuspendedSession {
    /// No contents yet.
    pub(crate) fn new(bytes: u64, address: Option<u64>, host: HostBytes) -> SuspendedSession {
        SuspendedSession { bytes, address, pieces: Vec::new(), host }
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The tenant whose host memory it takes.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.host.tenant
    }

    /// The offset and length of the piece that is missing next; `None` if all are here.
    pub(crate) fn missing(&self) -> Option<(u64, usize)> {
        let at = self.pieces.len() as u64 * PIECE_BYTES as u64;
        let left = self.bytes.checked_sub(at).filter(|left| *left > 0)?;
        Some((at, PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES))))
    }

    /// Adds the piece that is missing next.
    pub(crate) fn add(&mut self, piece: Vec<u8>) {
        // Without a branch for each byte, so that the compiler uses vectors.
        let is_zero = piece.chunks(4096).all(|part| part.iter().fold(0, |bits, byte| bits | byte) == 0);
        self.pieces.push((!is_zero).then(|| piece.into_boxed_slice()));
    }

    /// The first piece from a number on that is not zero: its number, offset and bytes.
    pub(crate) fn piece_from(&self, number: usize) -> Option<(usize, u64, &[u8])> {
        let pieces = self.pieces.iter().enumerate().skip(number);
        let mut full = pieces.filter_map(|(number, piece)| Some((number, piece.as_deref()?)));
        full.next().map(|(number, piece)| (number, number as u64 * PIECE_BYTES as u64, piece))
    }
}

impl fmt::Debug for SuspendedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendedSession").field("bytes", &self.bytes).field("address", &self.address).finish()
    }
}

/// Why a session is not suspended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuspendError {
    /// There is no such session, or it was closed meanwhile.
    #[error("the session does not exist, or was closed")]
    NoSession,
    /// There is no host memory for it.
    #[error("the session is not suspended: {0}")]
    HostMemory(#[from] HostRefusal),
    /// Its memory cannot be read.
    #[error("the session is not suspended: its memory cannot be read: {0}")]
    Unreadable(String),
    /// Its client uses it.
    #[error("the session is not suspended yet: its client uses it; it is suspended as soon as its work has ended")]
    Busy,
    /// It is on its device.
    #[error("the session is not suspended")]
    OnDevice,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// Where the memory of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPlace {
    /// On the device.
    Device {
        /// For how long it has had no running flush, in nanoseconds; `None` if it has one.
        idle_ns: Option<u64>,
    },
    /// On its way to host memory.
    Leaving,
    /// In host memory.
    Host,
}

/// A CUDA session with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySession {
    /// The session.
    pub session: SessionId,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Where they are.
    pub place: SessionPlace,
}

/// Counts of suspensions since the engine started, and what is suspended now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuspensionStatistics {
    /// Suspended sessions.
    pub sessions: u64,
    /// Bytes of their memory.
    pub bytes: u64,
    /// Sessions that were suspended.
    pub suspensions: u64,
    /// Sessions that came back to a device.
    pub resumptions: u64,
    /// Suspensions that failed, for lack of host memory or because memory was lost.
    pub failures: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_kept_in_pieces_of_which_zeros_take_no_memory() {
        let tenant = Tenant::default();
        let room = HostRoom::new(HostLimits { all: 1 << 20, tenant: 1 << 20 });
        let bytes = 2 * PIECE_BYTES as u64 + 5;
        let host = room.take(&tenant, bytes).expect("room");
        assert_eq!((room.used(), room.used_by(&tenant)), (bytes, bytes));
        assert!(room.take(&tenant, 1 << 20).is_err());
        let mut session = SuspendedSession::new(bytes, Some(7), host);
        let piece = PIECE_BYTES as u64;
        let expected = [(0, PIECE_BYTES), (piece, PIECE_BYTES), (2 * piece, 5)];
        for (at, byte) in [0, 0, 9].into_iter().enumerate() {
            let missing = session.missing().expect("a piece is missing");
            assert_eq!(missing, expected[at]);
            session.add(vec![byte; missing.1]);
        }
        assert_eq!((session.missing(), session.bytes(), session.tenant()), (None, bytes, &tenant));
        assert_eq!(session.piece_from(0), Some((2, 2 * piece, &[9; 5][..])), "the others are zero");
        assert_eq!(session.piece_from(3), None);
        drop(session);
        assert_eq!(room.used(), 0);
    }
}
