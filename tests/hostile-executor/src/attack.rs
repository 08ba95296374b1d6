//! The attacks of `hostile.c`, and the inputs that select them.

use crate::Layout;
use std::ops::Range;
use std::time::Duration;

/// Elements of the input `how`, of type u64.
pub const HOW_WORDS: usize = 10;

/// The executor's descriptor of the bell that wakes the engine: after the standard ones, the
/// channel, and the rings.
pub const CHANNEL_BELL: u64 = 5;

/// What the native code does in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Returns at once.
    Nothing,
    /// Makes a system call; `out[0]` is its result.
    Call {
        /// Number of the system call on x86-64.
        number: u64,
        /// Its arguments.
        arguments: [u64; 6],
    },
    /// Touches device memory that was not granted, in small windows that it unmaps again, so that
    /// its resident memory stays small. `out[0]` is the number of bytes.
    Windows {
        /// Bytes of a window.
        window: u64,
        /// Bytes in all.
        bytes: u64,
    },
    /// Maps private memory in parts of this many bytes until the system refuses: `out[0]` bytes,
    /// with the error number `out[1]`.
    Hoard {
        /// Bytes of a part.
        part: u64,
    },
    /// Sends a message to the daemon this many times; `out[0]` is the number of sent messages.
    Send {
        /// How often.
        times: u64,
        /// The message.
        text: String,
    },
    /// Sends a message with a descriptor.
    SendFile {
        /// The message.
        text: String,
    },
    /// Writes random words into control words and rings.
    Scribble {
        /// Seed of the words and their places.
        seed: u64,
        /// Number of words.
        words: u64,
        /// The bytes between which they lie.
        range: Range<u64>,
    },
    /// Writes one word into control words and rings.
    Store {
        /// Its offset in bytes.
        at: u64,
        /// The word.
        value: u64,
    },
    /// Completes its own launch, with no time to bill, and keeps computing.
    Forge {
        /// How long it computes.
        time: Duration,
    },
    /// Reads the daemon's messages in place of the executor, as many as it gets before the executor
    /// does, and throws them away. No signal reaches the thread.
    Steal {
        /// For how long.
        time: Duration,
    },
    /// Computes, and no signal reaches the thread.
    Spin {
        /// For how long.
        time: Duration,
    },
    /// Sends a signal to its own process.
    Signal {
        /// Its number.
        number: u64,
    },
    /// Rings the bell for completions although there is none.
    Ring {
        /// How often.
        times: u64,
    },
}

impl Attack {
    /// The input `how`. Places in the shared memory come from the layout.
    pub fn how(&self, layout: &Layout) -> [u64; HOW_WORDS] {
        let ns = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let words = match self {
            Attack::Nothing => vec![0],
            Attack::Call { number, arguments } => [&[1, *number], arguments.as_slice()].concat(),
            Attack::Windows { window, bytes } => vec![2, *window, *bytes],
            Attack::Hoard { part } => vec![3, *part],
            Attack::Send { times, text } => vec![4, *times, text.len() as u64],
            Attack::SendFile { text } => vec![5, 1, text.len() as u64, CHANNEL_BELL],
            Attack::Scribble { seed, words, range } => vec![6, *seed, *words, range.start, range.end],
            Attack::Store { at, value } => vec![7, *at, *value],
            Attack::Forge { time } => {
                let Layout { commands, completions, stride, stop_words_at, slots, .. } = layout;
                let rings = [commands.index_at, commands.slot_at, completions.index_at, completions.slot_at];
                [&[8], rings.as_slice(), &[*stride, *stop_words_at, *slots, ns(time), CHANNEL_BELL]].concat()
            }
            Attack::Steal { time } => vec![9, ns(time)],
            Attack::Spin { time } => vec![10, ns(time)],
            Attack::Signal { number } => vec![12, *number],
            Attack::Ring { times } => vec![11, *times, CHANNEL_BELL],
        };
        std::array::from_fn(|index| words.get(index).copied().unwrap_or(0))
    }

    /// The input `text`, which has at least one byte.
    pub fn text(&self) -> Vec<u8> {
        match self {
            Attack::Send { text, .. } | Attack::SendFile { text } if !text.is_empty() => text.clone().into_bytes(),
            _ => vec![0],
        }
    }
}
