//! The doorbell of the engine's thread: an eventfd on which the thread waits together with the
//! device's completions.

use crate::clock::timespec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(crate) fn new() -> io::Result<Arc<Doorbell>> {
        Ok(Arc::new(Doorbell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes the thread, now or at its next wait. The only possible error is a full counter, which
    /// wakes the thread as well.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until the doorbell rings, the device (unless it is lost) has completions, or
    /// `timeout_ns` has passed. Resets the doorbell: look for new commands *after* this.
    pub(crate) fn wait(&self, completions: Option<BorrowedFd<'_>>, timeout_ns: Option<u64>) {
        let bell = self.0.as_fd();
        let mut fds = [bell, completions.unwrap_or(bell)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = timeout_ns.map(timespec);
        // An interrupted wait is a spurious wake-up; the loop finds nothing to do and waits again.
        let _ = poll(&mut fds, timeout.as_ref());
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
        }
    }
}
