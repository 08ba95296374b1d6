//! Operations in streams.

use crate::code::Code;
use crate::context::Context;
use crate::device::{Order, Place};
use crate::host_call::HostCall;
use crate::marker::Marker;
use crate::memory::Kind;
use crate::raw::{Pattern, Span};
use crate::stream::Stream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of checks that a stream makes without a pause when it waits for a word. After them it
/// sleeps for [`PAUSE`] between two checks.
const SPINS: u32 = 1_000;
const PAUSE: Duration = Duration::from_micros(20);

/// A number of 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Word(u32),
    Long(u64),
}

impl Number {
    /// Size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Number::Word(_) => 4,
            Number::Long(_) => 8,
        }
    }
}

/// The comparison by which a stream waits for a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// The word is at or after the number, as for cyclic counters.
    AtLeast,
    Equal,
    /// Word and number have a bit in common.
    And,
    /// There is a bit that neither has.
    Nor,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy {
        from: Span,
        to: Span,
    },
    /// Bytes that were copied from the program during the call.
    Put {
        bytes: Arc<[u8]>,
        to: Span,
    },
    Fill {
        span: Span,
        pattern: Pattern,
    },
    Store {
        span: Span,
        number: Number,
    },
    /// Waits until a word passes a test.
    Await {
        span: Span,
        number: Number,
        test: Test,
    },
    Launch {
        code: Arc<Code>,
        order: Order,
    },
    /// Calls a function of the program.
    Call(HostCall),
    /// Frees device memory, in stream order.
    Free {
        at: u64,
    },
    Record(Arc<Marker>),
    /// Waits for a marker of another stream.
    After(Arc<Marker>),
    /// Waits until another stream has completed that many operations.
    Behind {
        stream: Arc<Stream>,
        count: u64,
    },
    /// A graph: its nodes in an order that satisfies their dependencies.
    Sequence(Arc<[Work]>),
}

impl Work {
    /// Performs the operation. In a context that has faulted, operations are skipped, but markers
    /// are still passed so that waiting threads continue.
    pub(crate) fn run(&self, context: &Context, place: &Place) {
        if let Work::Record(marker) = self {
            return marker.pass();
        }
        if context.is_over() {
            return;
        }
        match self {
            Work::Copy { from, to } => to.copy_from(*from),
            Work::Put { bytes, to } => to.write(bytes),
            Work::Fill { span, pattern } => span.fill(*pattern),
            Work::Store { span, number } => store(*span, *number),
            Work::Await { span, number, test } => wait(*span, *number, *test, context),
            Work::Launch { code, order } => {
                if let Err(status) = context.device.run(&context.fault_state, place, code.id, order) {
                    context.fail(status);
                }
            }
            Work::Call(call) => call.call(),
            Work::Free { at } => {
                // The entry point checked that it exists; a second free is the program's error.
                let _ = context.memory().give_back(*at, Kind::Device);
            }
            Work::Record(marker) => marker.pass(),
            Work::After(marker) => marker.wait(),
            Work::Behind { stream, count } => stream.wait(*count),
            Work::Sequence(works) => works.iter().for_each(|work| work.run(context, place)),
        }
    }
}

fn store(span: Span, number: Number) {
    match (number, span.word(), span.long_word()) {
        (Number::Word(value), Some(word), _) => word.store(value, Ordering::Release),
        (Number::Long(value), _, Some(word)) => word.store(value, Ordering::Release),
        // The entry points refuse unaligned words.
        _ => {}
    }
}

fn wait(span: Span, number: Number, test: Test, context: &Context) {
    let mut looks = 0u32;
    while !context.is_over() && !passes(span, number, test) {
        looks = looks.saturating_add(1);
        if looks < SPINS { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
    }
}

fn passes(span: Span, number: Number, test: Test) -> bool {
    match (number, span.word(), span.long_word()) {
        (Number::Word(value), Some(word), _) => {
            let seen = word.load(Ordering::Acquire);
            match test {
                Test::AtLeast => seen.wrapping_sub(value) as i32 >= 0,
                Test::Equal => seen == value,
                Test::And => seen & value != 0,
                Test::Nor => !(seen | value) != 0,
            }
        }
        (Number::Long(value), _, Some(word)) => {
            let seen = word.load(Ordering::Acquire);
            match test {
                Test::AtLeast => seen.wrapping_sub(value) as i64 >= 0,
                Test::Equal => seen == value,
                Test::And => seen & value != 0,
                Test::Nor => !(seen | value) != 0,
            }
        }
        _ => true,
    }
}
