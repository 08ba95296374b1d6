//! Writes a timeline as a file that Perfetto opens. Of Perfetto's trace format, only the messages
//! for tracks, slices, marks, counters and flow arrows are used.
//!
//! A file is a sequence of packets; those of one track are in order of time. Each name is written
//! once (interned) and then referred to by number.

use crate::timeline::{Mark, Slice, Timeline, Track, Value};
use atoll_core::Nanos;
use std::collections::HashMap;
use std::io::{self, Write};

/// The readings of a machine's clocks at one moment. Perfetto computes the time of day from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`, the clock of the records.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME`, which also counts the time while the machine is suspended.
    pub boot_ns: u64,
    /// `CLOCK_REALTIME`: the time since 1970.
    pub real_ns: u64,
}

/// Perfetto's messages, reduced to the fields that are written. Field numbers are those of
/// Perfetto's protobuf definitions.
mod wire {
    use prost::{Message, Oneof};

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Packet {
        #[prost(uint64, optional, tag = "8")]
        pub(super) timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub(super) sequence: Option<u32>,
        #[prost(message, optional, tag = "12")]
        pub(super) interned: Option<Interned>,
        #[prost(uint32, optional, tag = "13")]
        pub(super) sequence_flags: Option<u32>,
        #[prost(message, optional, tag = "59")]
        pub(super) defaults: Option<Defaults>,
        #[prost(oneof = "Data", tags = "6, 11, 60")]
        pub(super) data: Option<Data>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub(super) enum Data {
        #[prost(message, tag = "6")]
        Clocks(ClockSnapshot),
        #[prost(message, tag = "11")]
        Event(TrackEvent),
        #[prost(message, tag = "60")]
        Track(TrackDescriptor),
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Defaults {
        #[prost(uint32, optional, tag = "58")]
        pub(super) clock: Option<u32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct ClockSnapshot {
        #[prost(message, repeated, tag = "1")]
        pub(super) clocks: Vec<Clock>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Clock {
        #[prost(uint32, optional, tag = "1")]
        pub(super) id: Option<u32>,
        #[prost(uint64, optional, tag = "2")]
        pub(super) timestamp: Option<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct TrackDescriptor {
        #[prost(uint64, optional, tag = "1")]
        pub(super) uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(super) name: Option<String>,
        #[prost(uint64, optional, tag = "5")]
        pub(super) parent: Option<u64>,
        #[prost(message, optional, tag = "8")]
        pub(super) counter: Option<Counter>,
        #[prost(int32, optional, tag = "11")]
        pub(super) child_ordering: Option<i32>,
        #[prost(int32, optional, tag = "12")]
        pub(super) rank: Option<i32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Counter {
        #[prost(int32, optional, tag = "3")]
        pub(super) unit: Option<i32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct TrackEvent {
        #[prost(message, repeated, tag = "4")]
        pub(super) facts: Vec<Annotation>,
        #[prost(int32, optional, tag = "9")]
        pub(super) kind: Option<i32>,
        #[prost(uint64, optional, tag = "10")]
        pub(super) name: Option<u64>,
        #[prost(uint64, optional, tag = "11")]
        pub(super) track: Option<u64>,
        #[prost(int64, optional, tag = "30")]
        pub(super) counter: Option<i64>,
        #[prost(fixed64, repeated, packed = "false", tag = "47")]
        pub(super) flows: Vec<u64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Annotation {
        #[prost(uint64, optional, tag = "1")]
        pub(super) name: Option<u64>,
        #[prost(uint64, optional, tag = "3")]
        pub(super) number: Option<u64>,
        #[prost(string, optional, tag = "6")]
        pub(super) text: Option<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Interned {
        #[prost(message, repeated, tag = "2")]
        pub(super) events: Vec<Name>,
        #[prost(message, repeated, tag = "3")]
        pub(super) facts: Vec<Name>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Name {
        #[prost(uint64, optional, tag = "1")]
        pub(super) id: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(super) name: Option<String>,
    }
}

use wire::{
    Annotation, Clock, ClockSnapshot, Counter, Data, Defaults, Interned, Name, Packet, TrackDescriptor, TrackEvent,
};

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;

const CLOCK_REALTIME: u32 = 1;
const CLOCK_MONOTONIC: u32 = 3;
const CLOCK_BOOT: u32 = 6;

/// Perfetto shows the children of a track in the order of their ranks.
const ORDER_EXPLICIT: i32 = 3;
const UNIT_COUNT: i32 = 2;

/// The first packet: it clears all interned names and defaults.
const STATE_CLEARED: u32 = 1;
/// Later packets: they depend on the interned names and defaults of earlier packets.
const STATE_NEEDED: u32 = 2;

/// The id of the only packet sequence.
const SEQUENCE: u32 = 1;

/// The field number of packets in a trace file.
const PACKET_FIELD: u32 = 1;

/// Writes a timeline as a Perfetto trace.
pub fn write(timeline: &Timeline, clocks: Clocks, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer { out, events: Names::default(), facts: Names::default(), buffer: Vec::new() };
    writer.begin(clocks)?;
    let mut uuid = 0;
    for (rank, group) in timeline.groups.iter().enumerate() {
        uuid += 1;
        let parent = uuid;
        let place = TrackDescriptor { child_ordering: Some(ORDER_EXPLICIT), ..descriptor(parent, &group.name, rank) };
        writer.track(place)?;
        for (rank, track) in group.tracks.iter().enumerate() {
            uuid += 1;
            let counter = (!track.counter.is_empty()).then_some(Counter { unit: Some(UNIT_COUNT) });
            writer.track(TrackDescriptor { parent: Some(parent), counter, ..descriptor(uuid, &track.name, rank) })?;
            writer.events_of(track, uuid)?;
        }
    }
    Ok(())
}

fn descriptor(uuid: u64, name: &str, rank: usize) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        name: Some(name.to_owned()),
        rank: Some(rank as i32),
        ..TrackDescriptor::default()
    }
}

struct Writer<'a, W> {
    out: &'a mut W,
    events: Names,
    facts: Names,
    buffer: Vec<u8>,
}

/// Interned names with their numbers, and the names that are not written yet.
#[derive(Default)]
struct Names {
    known: HashMap<String, u64>,
    pending: Vec<Name>,
}

impl Names {
    fn of(&mut self, name: &str) -> u64 {
        if let Some(id) = self.known.get(name) {
            return *id;
        }
        let id = self.known.len() as u64 + 1;
        self.known.insert(name.to_owned(), id);
        self.pending.push(Name { id: Some(id), name: Some(name.to_owned()) });
        id
    }
}

impl<W: Write> Writer<'_, W> {
    fn begin(&mut self, clocks: Clocks) -> io::Result<()> {
        let clock = |id, timestamp| Clock { id: Some(id), timestamp: Some(timestamp) };
        let Clocks { monotonic_ns, boot_ns, real_ns } = clocks;
        let clocks =
            vec![clock(CLOCK_BOOT, boot_ns), clock(CLOCK_MONOTONIC, monotonic_ns), clock(CLOCK_REALTIME, real_ns)];
        self.packet(Packet {
            sequence_flags: Some(STATE_CLEARED),
            defaults: Some(Defaults { clock: Some(CLOCK_MONOTONIC) }),
            data: Some(Data::Clocks(ClockSnapshot { clocks })),
            ..Packet::default()
        })
    }

    fn track(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(Packet { sequence_flags: Some(STATE_NEEDED), data: Some(Data::Track(track)), ..Packet::default() })
    }

    /// Writes the events of a track in order of time.
    fn events_of(&mut self, track: &Track, uuid: u64) -> io::Result<()> {
        for slice in &track.slices {
            self.slice(slice, uuid)?;
        }
        for Mark { at, name, facts } in &track.marks {
            let event = TrackEvent {
                kind: Some(INSTANT),
                name: Some(self.events.of(name)),
                facts: self.facts(facts),
                ..TrackEvent::default()
            };
            self.event(*at, uuid, event)?;
        }
        for (at, value) in &track.counter {
            self.event(
                *at,
                uuid,
                TrackEvent { kind: Some(COUNTER), counter: Some(*value as i64), ..TrackEvent::default() },
            )?;
        }
        Ok(())
    }

    fn slice(&mut self, slice: &Slice, uuid: u64) -> io::Result<()> {
        let event = TrackEvent {
            kind: Some(SLICE_BEGIN),
            name: Some(self.events.of(&slice.name)),
            facts: self.facts(&slice.facts),
            flows: slice.flow.into_iter().collect(),
            ..TrackEvent::default()
        };
        self.event(slice.begin, uuid, event)?;
        for child in &slice.children {
            self.slice(child, uuid)?;
        }
        self.event(slice.end, uuid, TrackEvent { kind: Some(SLICE_END), ..TrackEvent::default() })
    }

    fn facts(&mut self, facts: &[(&'static str, Value)]) -> Vec<Annotation> {
        let fact = |(name, value): &(&'static str, Value)| {
            let name = Some(self.facts.of(name));
            match value {
                Value::Number(number) => Annotation { name, number: Some(*number), text: None },
                Value::Word(word) => Annotation { name, number: None, text: Some((*word).to_owned()) },
                Value::Text(text) => Annotation { name, number: None, text: Some(text.to_string()) },
            }
        };
        facts.iter().map(fact).collect()
    }

    fn event(&mut self, at: Nanos, uuid: u64, event: TrackEvent) -> io::Result<()> {
        let (events, facts) = (std::mem::take(&mut self.events.pending), std::mem::take(&mut self.facts.pending));
        let interned = (!events.is_empty() || !facts.is_empty()).then_some(Interned { events, facts });
        let event = TrackEvent { track: Some(uuid), ..event };
        self.packet(Packet {
            timestamp: Some(at.0),
            sequence_flags: Some(STATE_NEEDED),
            interned,
            data: Some(Data::Event(event)),
            ..Packet::default()
        })
    }

    fn packet(&mut self, packet: Packet) -> io::Result<()> {
        let packet = Packet { sequence: Some(SEQUENCE), ..packet };
        self.buffer.clear();
        // Writing to a vector cannot fail.
        prost::encoding::message::encode(PACKET_FIELD, &packet, &mut self.buffer);
        self.out.write_all(&self.buffer)
    }
}

#[cfg(test)]
mod tests;
