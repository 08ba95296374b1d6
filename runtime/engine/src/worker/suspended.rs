//! Suspended sessions, and copies from and to them.

use crate::function::FunctionId;
use crate::session::SessionId;
use crate::suspension::{HostRoom, SuspendError, SuspendedSession};
use atoll_core::TaskId;
use atoll_core::memory::Place;
use crossbeam_channel::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Suspended sessions, and copies from and to them.
pub(super) struct Suspended {
    /// The host memory for their contents.
    pub(super) host: Arc<HostRoom>,
    /// Contents that are in host memory and not completely on the device.
    pub(super) contents: BTreeMap<SessionId, Contents>,
    /// Sessions whose memory is being copied to host memory, one after the other.
    pub(super) leaving: Vec<Leaving>,
    /// Invocations that wait until the contents of their session are on the device.
    pub(super) returning: Vec<TaskId>,
    /// Pieces that are no longer needed. Each takes tens of microseconds to free, and a session may
    /// have thousands, so they are freed one by one.
    pub(super) unused: Vec<Box<[u8]>>,
    /// Invocations whose session came back, which have not had their turn since.
    pub(super) returned: BTreeSet<TaskId>,
    /// Who waits for the suspension of a session.
    pub(super) waiting: Vec<(SessionId, Sender<Result<(), SuspendError>>)>,
    pub(super) suspensions: u64,
    pub(super) resumptions: u64,
    pub(super) failures: u64,
}

/// The contents of a session.
pub(super) struct Contents {
    pub(super) session: SuspendedSession,
    /// The function that the session belongs to.
    pub(super) owner: FunctionId,
    /// Number of pieces that are on the device again, while the session has memory there.
    pub(super) written: usize,
}

/// A session whose memory is being copied to host memory.
pub(super) struct Leaving {
    pub(super) session: SessionId,
    pub(super) place: Place,
    /// `None` if the contents never left host memory completely.
    pub(super) copied: Option<Contents>,
}

impl Suspended {
    pub(super) fn new(host: Arc<HostRoom>) -> Suspended {
        Suspended {
            host,
            contents: BTreeMap::new(),
            leaving: Vec::new(),
            returning: Vec::new(),
            unused: Vec::new(),
            returned: BTreeSet::new(),
            waiting: Vec::new(),
            suspensions: 0,
            resumptions: 0,
            failures: 0,
        }
    }

    /// Whether a request waits for the suspension of a session.
    pub(super) fn is_asked(&self, session: SessionId) -> bool {
        self.waiting.iter().any(|(asked, _)| *asked == session)
    }

    /// Whether there is nothing to copy or to free.
    pub(super) fn is_idle(&self) -> bool {
        self.leaving.is_empty() && self.returning.is_empty() && self.unused.is_empty()
    }

    /// Drops contents. They count as host memory no longer, though their pieces are freed later.
    pub(super) fn discard(&mut self, contents: Contents) {
        self.unused.extend(contents.session.pieces.into_iter().flatten());
    }

    /// Ends the copy of a session that is closed meanwhile.
    pub(super) fn end_leaving(&mut self, session: SessionId) {
        let ended: Vec<Leaving> = self.leaving.extract_if(.., |leaving| leaving.session == session).collect();
        ended.into_iter().filter_map(|leaving| leaving.copied).for_each(|contents| self.discard(contents));
    }

    /// Answers those who wait for the suspension of a session.
    pub(super) fn answer(&mut self, session: SessionId, answer: &Result<(), SuspendError>) {
        for (_, waiting) in self.waiting.extract_if(.., |(other, _)| *other == session) {
            // The caller may be gone.
            let _ = waiting.send(answer.clone());
        }
    }
}
