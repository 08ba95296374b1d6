//! The byte streams of a session over the network, which can continue after a connection is lost.
//! Each side sends its bytes in segments, numbered from the beginning of the session, and keeps the
//! bytes that the other side has not acknowledged. On a new connection each side states how many
//! bytes it has received, and the other side sends from there. So each byte arrives once and in order.

use crate::field::{Field, Reader, WireError};
use crate::limits::{ACKNOWLEDGE_BYTES, SEGMENT_BYTES_MAX, WINDOW_BYTES};
use std::collections::VecDeque;

/// Size of a segment's header in bytes.
pub const SEGMENT_HEAD_BYTES: usize = 16;

/// [`Channel::fill`] stops when the buffer has this many bytes.
const FILL_BYTES: usize = 128 << 10;

/// Why the connection to the other side cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The bytes are not a segment.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Bytes were lost, or sent twice.
    #[error("byte {found} of the session came instead of byte {expected}")]
    Order {
        /// The next byte.
        expected: u64,
        /// The first byte of the segment.
        found: u64,
    },
    /// The other side has sent more than the window without waiting for acknowledgements.
    #[error("{bytes} bytes came without acknowledgement, more than the window of {WINDOW_BYTES}")]
    Overrun {
        /// Bytes that would be queued.
        bytes: u64,
    },
    /// Bytes came after the end.
    #[error("a segment came after the end of the session")]
    AfterEnd,
    /// The other side resumes at a byte that is no longer kept, or that was never sent.
    #[error("the other side has received {received} bytes, and bytes {first} to {sent} can be sent again")]
    Behind {
        /// Bytes that it says it has received.
        received: u64,
        /// The first byte that is kept.
        first: u64,
        /// Bytes that were sent.
        sent: u64,
    },
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    /// Bytes follow; `number` is the number of the first one.
    Data { number: u64, bytes: u32 },
    /// Bytes before this number were received and passed on.
    Acknowledge(u64),
    /// A keepalive probe: the receiver acknowledges at once.
    Ask,
    /// The session ends after this many bytes.
    End(u64),
}

impl Segment {
    fn write(self, to: &mut Vec<u8>) {
        let (kind, bytes, number) = match self {
            Segment::Data { number, bytes } => (0u32, bytes, number),
            Segment::Acknowledge(number) => (1, 0, number),
            Segment::Ask => (2, 0, 0),
            Segment::End(number) => (3, 0, number),
        };
        kind.write(to);
        bytes.write(to);
        number.write(to);
    }

    fn read(head: &[u8; SEGMENT_HEAD_BYTES]) -> Result<Segment, WireError> {
        let mut reader = Reader::new(head);
        let (kind, bytes, number) = (reader.get::<u32>()?, reader.get::<u32>()?, reader.get()?);
        match kind {
            0 if bytes == 0 || bytes > SEGMENT_BYTES_MAX => {
                Err(WireError::Value { what: "the size of a segment", value: bytes.into() })
            }
            0 => Ok(Segment::Data { number, bytes }),
            1 => Ok(Segment::Acknowledge(number)),
            2 => Ok(Segment::Ask),
            3 => Ok(Segment::End(number)),
            other => Err(WireError::Value { what: "the kind of a segment", value: other.into() }),
        }
    }
}

/// One side of a session over the network. It outlives its connections.
#[derive(Debug, Default)]
pub struct Channel {
    /// Bytes of this side that are not acknowledged; `first` is the number of the first one.
    kept: VecDeque<u8>,
    first: u64,
    /// The number of the next byte to send.
    next: u64,
    is_closed: bool,
    has_told_end: bool,
    /// Received bytes that were not passed on yet.
    queue: VecDeque<u8>,
    /// Bytes of the other side that have arrived.
    received: u64,
    acknowledged: u64,
    owes_acknowledgement: bool,
    asks: bool,
    is_ended: bool,
    /// Whether any segment has arrived.
    is_confirmed: bool,
    /// The part of a header that has arrived, and how many bytes of the current segment have not.
    head: [u8; SEGMENT_HEAD_BYTES],
    head_bytes: usize,
    left: usize,
}

impl Channel {
    /// A side that has sent and received nothing.
    pub fn new() -> Channel {
        Channel::default()
    }

    /// Bytes that [`Channel::push`] may add: 0 until the other side acknowledges earlier ones.
    pub fn room(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.kept.len())
    }

    /// Adds bytes to send, at most [`Channel::room`].
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// Ends this side's bytes after those that were pushed. [`Channel::fill`] then adds an end segment.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Like [`Channel::close`], but drops bytes that were not sent yet, because the other side has ended.
    pub fn abandon(&mut self) {
        self.kept.truncate((self.next - self.first) as usize);
        self.is_closed = true;
    }

    /// Whether [`Channel::close`] or [`Channel::abandon`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether [`Channel::fill`] has added the end segment on this connection.
    pub fn has_told_end(&self) -> bool {
        self.has_told_end
    }

    /// Adds a keepalive probe to the next segments.
    pub fn ask(&mut self) {
        self.asks = true;
    }

    /// Adds an acknowledgement to the next segments, even if few bytes were passed on.
    pub fn acknowledge(&mut self) {
        self.owes_acknowledgement = true;
    }

    /// Adds the next segments to a buffer: as many as can be sent now, up to a limit. Adds nothing
    /// after the end segment.
    pub fn fill(&mut self, to: &mut Vec<u8>) {
        if self.has_told_end {
            return;
        }
        let passed_on = self.received - self.queue.len() as u64;
        if self.owes_acknowledgement || passed_on - self.acknowledged >= ACKNOWLEDGE_BYTES {
            Segment::Acknowledge(passed_on).write(to);
            (self.owes_acknowledgement, self.acknowledged) = (false, passed_on);
        }
        if std::mem::take(&mut self.asks) {
            Segment::Ask.write(to);
        }
        while to.len() < FILL_BYTES && self.next < self.end() {
            let part = self.part((self.next - self.first) as usize);
            Segment::Data { number: self.next, bytes: part.len() as u32 }.write(to);
            to.extend_from_slice(part);
            let count = part.len() as u64;
            self.next += count;
        }
        if self.is_closed && self.next == self.end() {
            Segment::End(self.next).write(to);
            self.has_told_end = true;
        }
    }

    /// The number after the last byte that was pushed.
    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Kept bytes for one segment.
    fn part(&self, from: usize) -> &[u8] {
        let (front, back) = self.kept.as_slices();
        let part = if from < front.len() { &front[from..] } else { &back[from - front.len()..] };
        &part[..part.len().min(SEGMENT_BYTES_MAX as usize)]
    }

    /// Reads bytes that have arrived on the connection. After an error, the session cannot continue.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), ChannelError> {
        while !bytes.is_empty() {
            let is_data = self.left > 0;
            let wanted = if is_data { self.left } else { SEGMENT_HEAD_BYTES - self.head_bytes };
            let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if is_data {
                self.queue.extend(part);
                self.received += part.len() as u64;
                self.left -= part.len();
                continue;
            }
            self.head[self.head_bytes..][..part.len()].copy_from_slice(part);
            self.head_bytes += part.len();
            if self.head_bytes == SEGMENT_HEAD_BYTES {
                self.head_bytes = 0;
                self.begin(Segment::read(&self.head)?)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, segment: Segment) -> Result<(), ChannelError> {
        self.is_confirmed = true;
        if self.is_ended {
            return Err(ChannelError::AfterEnd);
        }
        match segment {
            Segment::Data { number, .. } | Segment::End(number) if number != self.received => {
                Err(ChannelError::Order { expected: self.received, found: number })
            }
            Segment::Data { bytes, .. } => {
                let queued = self.queue.len() as u64 + u64::from(bytes);
                if queued > WINDOW_BYTES as u64 {
                    return Err(ChannelError::Overrun { bytes: queued });
                }
                self.left = bytes as usize;
                Ok(())
            }
            Segment::Acknowledge(number) if number < self.first || number > self.next => {
                Err(WireError::Value { what: "the number of an acknowledgement", value: number }.into())
            }
            Segment::Acknowledge(number) => {
                self.kept.drain(..(number - self.first) as usize);
                self.first = number;
                Ok(())
            }
            Segment::Ask => {
                self.owes_acknowledgement = true;
                Ok(())
            }
            Segment::End(_) => {
                self.is_ended = true;
                Ok(())
            }
        }
    }

    /// Received bytes that can be passed on. More may follow once these are consumed.
    pub fn ready(&self) -> &[u8] {
        self.queue.as_slices().0
    }

    /// Removes bytes of [`Channel::ready`] that were passed on.
    pub fn consume(&mut self, count: usize) {
        self.queue.drain(..count.min(self.queue.len()));
    }

    /// Bytes of the other side that have arrived, for [`crate::Pass`] and [`crate::Resume`].
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether the other side has ended the session.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether any segment has arrived. Before the first one, the client may not have its ticket.
    pub fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Continues on a new connection. `received` is the number of bytes that the other side states
    /// it has received.
    ///
    /// # Errors
    /// [`ChannelError::Behind`] if the next bytes are not kept. The channel is then unchanged.
    pub fn resume(&mut self, received: u64) -> Result<(), ChannelError> {
        if received < self.first || received > self.next {
            return Err(ChannelError::Behind { received, first: self.first, sent: self.next });
        }
        self.next = received;
        self.has_told_end = false;
        // Earlier acknowledgements may be lost.
        self.owes_acknowledgement = true;
        (self.head_bytes, self.left) = (0, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

    /// Small random numbers.
    struct Random(SplitMix64);

    impl Random {
        fn below(&mut self, most: usize) -> usize {
            self.0.next_u64() as usize % most.max(1)
        }
    }

    /// Bytes of one side, by their numbers.
    fn byte(side: usize, number: usize) -> u8 {
        (number * 7 + number / 251 + side * 101) as u8
    }

    #[test]
    fn each_byte_arrives_once_over_connections_that_break_anywhere() {
        const BYTES: usize = 3 * WINDOW_BYTES;
        for seed in 0..20 {
            let mut random = Random(SplitMix64::seed_from_u64(seed));
            let mut sides = [Channel::new(), Channel::new()];
            let (mut pushed, mut found) = ([0; 2], [Vec::new(), Vec::new()]);
            let mut wires = [Vec::new(), Vec::new()];
            let mut cuts = 0;
            while !sides.iter().any(Channel::is_ended) {
                let from = random.below(2);
                let to = 1 - from;
                let count = random.below(100_000).min(sides[from].room()).min(BYTES - pushed[from]);
                let bytes: Vec<u8> = (pushed[from]..pushed[from] + count).map(|at| byte(from, at)).collect();
                sides[from].push(&bytes);
                pushed[from] += count;
                if pushed[from] == BYTES && found[from].len() == BYTES {
                    sides[from].close();
                }
                if wires[from].is_empty() {
                    sides[from].fill(&mut wires[from]);
                }
                let arriving = random.below(wires[from].len() + 1);
                let part: Vec<u8> = wires[from].drain(..arriving).collect();
                sides[to].take(&part).expect("segments");
                let passed_on = random.below(sides[to].ready().len() + 1);
                found[to].extend_from_slice(&sides[to].ready()[..passed_on]);
                sides[to].consume(passed_on);
                // What is on its way is lost, also in the middle of a segment.
                if random.below(20) == 0 && !sides.iter().any(Channel::is_ended) {
                    cuts += 1;
                    wires.iter_mut().for_each(Vec::clear);
                    let received = [sides[0].received(), sides[1].received()];
                    sides[0].resume(received[1]).expect("bytes that are kept");
                    sides[1].resume(received[0]).expect("bytes that are kept");
                }
            }
            for (side, other) in [(0, 1), (1, 0)] {
                found[side].extend(sides[side].queue.iter().copied());
                let is_right = found[side].iter().enumerate().all(|(at, found)| *found == byte(other, at));
                assert!(is_right, "seed {seed}: side {side} after {cuts} cuts");
                assert_eq!(found[side].len(), BYTES, "seed {seed}: the end came after all bytes");
            }
            assert!(cuts > 0, "seed {seed}");
        }
    }

    /// What a side sends now.
    fn sent(side: &mut Channel) -> Vec<u8> {
        let mut bytes = Vec::new();
        side.fill(&mut bytes);
        bytes
    }

    #[test]
    fn a_side_waits_for_acknowledgements() {
        let (mut near, mut far) = (Channel::new(), Channel::new());
        near.push(&vec![1; WINDOW_BYTES]);
        assert_eq!(near.room(), 0);
        loop {
            let bytes = sent(&mut near);
            if bytes.is_empty() {
                break;
            }
            far.take(&bytes).expect("a window");
        }
        assert_eq!(sent(&mut far), [], "nothing was passed on");
        let count = ACKNOWLEDGE_BYTES as usize;
        far.consume(count - 1);
        assert_eq!(sent(&mut far), []);
        far.consume(1);
        near.take(&sent(&mut far)).expect("an acknowledgement");
        assert_eq!(near.room(), count);
        // An answer to a question comes at once, and shows how far the other side is.
        near.ask();
        far.consume(3);
        far.take(&sent(&mut near)).expect("a question");
        near.take(&sent(&mut far)).expect("an acknowledgement");
        assert_eq!(near.room(), count + 3);
    }

    fn segment(segment: Segment) -> Vec<u8> {
        let mut bytes = Vec::new();
        segment.write(&mut bytes);
        bytes
    }

    fn data(number: u64, count: usize) -> Vec<u8> {
        let mut bytes = segment(Segment::Data { number, bytes: count as u32 });
        bytes.resize(bytes.len() + count, 0);
        bytes
    }

    #[test]
    fn a_side_that_breaks_the_rules_is_refused() {
        let taken = |parts: &[Vec<u8>]| {
            let mut side = Channel::new();
            side.push(&[0; 10]);
            side.fill(&mut Vec::new());
            side.take(&parts.concat())
        };
        assert_eq!(taken(&[data(0, 5), data(4, 1)]), Err(ChannelError::Order { expected: 5, found: 4 }), "twice");
        assert_eq!(taken(&[data(0, 5), data(6, 1)]), Err(ChannelError::Order { expected: 5, found: 6 }), "lost");
        assert_eq!(taken(&[segment(Segment::End(1))]), Err(ChannelError::Order { expected: 0, found: 1 }));
        assert_eq!(taken(&[segment(Segment::End(0)), segment(Segment::Ask)]), Err(ChannelError::AfterEnd));
        let part = SEGMENT_BYTES_MAX as usize;
        let window: Vec<Vec<u8>> = (0..WINDOW_BYTES / part).map(|at| data((at * part) as u64, part)).collect();
        assert_eq!(taken(&window), Ok(()));
        let over = [window.concat(), data(WINDOW_BYTES as u64, 1)];
        assert_eq!(taken(&over), Err(ChannelError::Overrun { bytes: WINDOW_BYTES as u64 + 1 }));
        assert_eq!(taken(&[segment(Segment::Acknowledge(10))]), Ok(()));
        for wrong in [
            segment(Segment::Acknowledge(11)),
            segment(Segment::Data { number: 0, bytes: 0 }),
            segment(Segment::Data { number: 0, bytes: SEGMENT_BYTES_MAX + 1 }),
            vec![4; SEGMENT_HEAD_BYTES],
        ] {
            assert!(matches!(taken(std::slice::from_ref(&wrong)), Err(ChannelError::Wire(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_side_continues_only_from_bytes_that_it_keeps() {
        let mut side = Channel::new();
        side.push(&[1; 100]);
        side.fill(&mut Vec::new());
        side.take(&segment(Segment::Acknowledge(40))).expect("an acknowledgement");
        for received in [39, 101] {
            let behind = ChannelError::Behind { received, first: 40, sent: 100 };
            assert_eq!(side.resume(received), Err(behind.clone()));
            assert!(behind.to_string().contains(&format!("has received {received} bytes")), "{behind}");
        }
        assert!(side.is_confirmed() && !Channel::new().is_confirmed());
        side.resume(70).expect("kept");
        let first = segment(Segment::Acknowledge(0));
        assert_eq!(sent(&mut side).len(), first.len() + SEGMENT_HEAD_BYTES + 30);
        assert_eq!(sent(&mut side), []);
        side.close();
        assert_eq!(sent(&mut side), segment(Segment::End(100)));
        side.resume(100).expect("all of it");
        let end = [first, segment(Segment::End(100))].concat();
        assert_eq!(sent(&mut side), end, "the end is told on each connection");
        side.acknowledge();
        assert_eq!(sent(&mut side), [], "nothing comes after the end");
    }

    #[test]
    fn bytes_for_a_side_that_has_ended_are_dropped() {
        let (mut near, mut far) = (Channel::new(), Channel::new());
        near.push(&[1; 10]);
        far.take(&sent(&mut near)).expect("segments");
        near.push(&[2; 10]);
        near.abandon();
        assert_eq!(sent(&mut near), segment(Segment::End(10)));
        assert!(near.is_closed() && near.has_told_end());
        far.take(&segment(Segment::End(10))).expect("the end of what was sent");
        assert!(far.is_ended());
    }
}
