//! What stands in a stream.

use crate::code::Code;
use crate::context::Context;
use crate::device::{Order, Place};
use crate::host_call::HostCall;
use crate::memory::Kind;
use crate::moment::Moment;
use crate::raw::{Pattern, Span};
use crate::stream::Stream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a stream that waits for a word looks at it without a pause, and how long its pauses
/// are then.
const LOOKS: u32 = 1_000;
const PAUSE: Duration = Duration::from_micros(20);

/// A number of 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Word(u32),
    Long(u64),
}

impl Number {
    /// Its size.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Number::Word(_) => 4,
            Number::Long(_) => 8,
        }
    }
}

/// What a waiting stream asks of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// It is the number or came after it, as cyclic counters do.
    AtLeast,
    Equal,
    /// They have a bit in common.
    And,
    /// There is a bit that neither of them has.
    Nor,
}

/// One piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy {
        from: Span,
        to: Span,
    },
    /// Bytes that were taken from the program when it asked.
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
    /// Until a word passes a test.
    Await {
        span: Span,
        number: Number,
        test: Test,
    },
    Launch {
        code: Arc<Code>,
        order: Order,
    },
    /// A function of the program.
    Call(HostCall),
    /// Device memory that goes back in its turn.
    Free {
        at: u64,
    },
    Record(Arc<Moment>),
    /// Until a moment of another stream.
    After(Arc<Moment>),
    /// Until another stream has done so many pieces of work.
    Behind {
        stream: Arc<Stream>,
        count: u64,
    },
    /// A graph: its nodes in an order that they allow.
    Sequence(Arc<[Work]>),
}

impl Work {
    /// Does it. In a context that is broken nothing is done any more, but whoever waits for a
    /// moment hears of it.
    pub(crate) fn run(&self, context: &Context, place: &Place) {
        if let Work::Record(moment) = self {
            return moment.come();
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
                if let Err(status) = context.device.run(&context.life, place, code.id, order) {
                    context.fail(status);
                }
            }
            Work::Call(call) => call.call(),
            Work::Free { at } => {
                // The entry point has seen that it is there; a second call for it is the program's mistake.
                let _ = context.memory().give_back(*at, Kind::Device);
            }
            Work::Record(moment) => moment.come(),
            Work::After(moment) => moment.wait(),
            Work::Behind { stream, count } => stream.wait(*count),
            Work::Sequence(works) => works.iter().for_each(|work| work.run(context, place)),
        }
    }
}

fn store(span: Span, number: Number) {
    match (number, span.word(), span.long_word()) {
        (Number::Word(value), Some(word), _) => word.store(value, Ordering::Release),
        (Number::Long(value), _, Some(word)) => word.store(value, Ordering::Release),
        // The entry point refuses what is not aligned.
        _ => {}
    }
}

fn wait(span: Span, number: Number, test: Test, context: &Context) {
    let mut looks = 0u32;
    while !context.is_over() && !passes(span, number, test) {
        looks = looks.saturating_add(1);
        if looks < LOOKS { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
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
