//! The transfer of a request and of its answer, and whether the request waits for its client.
//!
//! A client can keep a request open: it sends the body slowly, sends no message on a stream, or does
//! not read the answer. Such a request is stalled. Under pressure, a connection
//! whose requests are all stalled makes room for another one ([`crate::places`]). A request that
//! the server works on is never stalled.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A part counts as slow only after this time: most parts have arrived by then.
const GRACE: Duration = Duration::from_secs(1);

/// Lowest average speed of a part that is not slow, in bytes per second: that of a modem.
const BYTES_PER_S_MIN: u128 = 4096;

/// The progress of one request, shared by its connection's place, its body and its answer.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The part of the request that is arriving: its body, or one message of a stream.
    arriving: Option<Part>,
    /// The part of the answer that the client has to read before the next one is produced.
    leaving: Option<Part>,
    /// For a stream of messages or events. `None` for a request with one body and one answer.
    stream: Option<Stream>,
}

/// A part in transit.
#[derive(Clone, Copy, Debug)]
struct Part {
    since: Instant,
    bytes: u64,
}

/// A stream of messages.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Messages that are being answered.
    running: usize,
    /// When the last message had arrived or was answered.
    since: Instant,
}

/// Why a request makes no progress, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// Its body arrives too slowly.
    SlowBody(Duration),
    /// The client reads its answer too slowly.
    Unread(Duration),
    /// It is a stream, and the client sends no message.
    Silent(Duration),
}

impl Stall {
    pub(crate) fn since(self) -> Duration {
        match self {
            Stall::SlowBody(since) | Stall::Unread(since) | Stall::Silent(since) => since,
        }
    }
}

impl Part {
    fn new(bytes: usize) -> Part {
        Part { since: Instant::now(), bytes: bytes as u64 }
    }

    /// How long the part has been in transit, if that is too long for its size.
    fn slow(&self) -> Option<Duration> {
        let since = self.since.elapsed();
        let is_slow = u128::from(self.bytes) < since.as_millis() * BYTES_PER_S_MIN / 1000;
        (since > GRACE && is_slow).then_some(since)
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the request, or the next message of a stream, begins to arrive. `bytes` of it
    /// have arrived already.
    pub(crate) fn begin_arriving(&self, bytes: usize) {
        self.lock().arriving = Some(Part::new(bytes));
    }

    /// Notes more bytes of what is arriving.
    pub(crate) fn note_arrived(&self, bytes: usize) {
        if let Some(part) = &mut self.lock().arriving {
            part.bytes += bytes as u64;
        }
    }

    /// Notes that the request, or the message, has arrived or is given up.
    pub(crate) fn end_arriving(&self) {
        let mut state = self.lock();
        state.arriving = None;
        if let Some(stream) = &mut state.stream {
            stream.since = Instant::now();
        }
    }

    /// Marks the request as a stream. Between two messages, it waits for the client.
    pub(crate) fn set_stream(&self) {
        let mut state = self.lock();
        state.arriving = None;
        state.stream = Some(Stream { running: 0, since: Instant::now() });
    }

    /// Marks that a message of a stream is being answered, until the guard is dropped.
    pub(crate) fn answer(self: &Arc<Progress>) -> Answering {
        if let Some(stream) = &mut self.lock().stream {
            stream.running += 1;
        }
        Answering(self.clone())
    }

    /// Notes that the answer waits until the client has read this many bytes of it.
    pub(crate) fn begin_leaving(&self, bytes: usize) {
        self.lock().leaving = Some(Part::new(bytes));
    }

    /// Notes that the client has read them.
    pub(crate) fn end_leaving(&self) {
        self.lock().leaving = None;
    }

    /// Why the request is stalled; `None` if it is not. A stream is stalled once it has been silent
    /// for `stream_pause`.
    pub(crate) fn stall(&self, stream_pause: Duration) -> Option<Stall> {
        let State { arriving, leaving, stream } = &*self.lock();
        if let Some(part) = leaving {
            return part.slow().map(Stall::Unread);
        }
        if stream.is_some_and(|stream| stream.running > 0) {
            return None;
        }
        if let Some(part) = arriving {
            return part.slow().map(Stall::SlowBody);
        }
        let since = stream.map(|stream| stream.since.elapsed())?;
        (since > stream_pause).then_some(Stall::Silent(since))
    }
}

/// Marks a message of a stream that is being answered.
pub(crate) struct Answering(Arc<Progress>);

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0.lock().stream {
            stream.running = stream.running.saturating_sub(1);
            stream.since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    /// Lets all that has begun so far begin this much earlier.
    fn pass(progress: &Progress, time: Duration) {
        let earlier = |since: &mut Instant| *since = since.checked_sub(time).expect("the machine runs for a minute");
        let State { arriving, leaving, stream } = &mut *progress.lock();
        [arriving, leaving].into_iter().flatten().for_each(|part| earlier(&mut part.since));
        stream.iter_mut().for_each(|stream| earlier(&mut stream.since));
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_body_is_slow_after_a_second_below_the_lowest_speed() {
        let progress = Progress::default();
        assert_eq!(progress.stall(PAUSE), None, "the server works on it");
        progress.begin_arriving(0);
        assert_eq!(progress.stall(PAUSE), None, "it has just begun");
        pass(&progress, seconds(2));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::SlowBody(since)) if since >= seconds(2)));
        // A hundred bytes more than necessary, so that the test may take some milliseconds.
        progress.note_arrived(2 * 4096 + 100);
        assert_eq!(progress.stall(PAUSE), None, "fast enough");
        pass(&progress, seconds(1));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::SlowBody(_))), "the average counts");
        progress.end_arriving();
        pass(&progress, seconds(60));
        assert_eq!(progress.stall(PAUSE), None, "it is being answered");
    }

    #[test]
    fn a_part_of_an_answer_must_be_taken_in_the_time_of_its_bytes() {
        let progress = Progress::default();
        progress.begin_leaving(10 * 4096);
        pass(&progress, seconds(9));
        assert_eq!(progress.stall(PAUSE), None);
        pass(&progress, seconds(2));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::Unread(_))));
        progress.end_leaving();
        assert_eq!(progress.stall(PAUSE), None);
        // The head of an answer without bytes has the same second as all parts.
        progress.begin_leaving(0);
        assert_eq!(progress.stall(PAUSE), None);
        pass(&progress, seconds(2));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::Unread(_))));
    }

    #[test]
    fn a_stream_may_be_silent_between_messages_and_while_the_server_answers() {
        let progress = Arc::new(Progress::default());
        progress.begin_arriving(0);
        progress.set_stream();
        pass(&progress, seconds(9));
        assert_eq!(progress.stall(PAUSE), None, "no message has begun");
        pass(&progress, seconds(2));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::Silent(since)) if since >= seconds(11)));
        progress.begin_arriving(5);
        assert_eq!(progress.stall(PAUSE), None);
        pass(&progress, seconds(2));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::SlowBody(_))), "a message has begun");
        progress.end_arriving();
        assert_eq!(progress.stall(PAUSE), None, "its end counts");
        let (first, second) = (progress.answer(), progress.answer());
        drop(first);
        progress.begin_arriving(0);
        pass(&progress, seconds(60));
        assert_eq!(progress.stall(PAUSE), None, "the client waits for the second answer");
        progress.begin_leaving(0);
        pass(&progress, seconds(2));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::Unread(_))), "it does not take the first one");
        progress.end_leaving();
        progress.end_arriving();
        drop(second);
        assert_eq!(progress.stall(PAUSE), None, "the answer counts");
        pass(&progress, seconds(11));
        assert!(matches!(progress.stall(PAUSE), Some(Stall::Silent(_))));
    }
}
