//! A strict parser of trace files, which checks the rules that Perfetto relies on.

use super::*;
use crate::timeline::Group;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names and values.
type Facts = Vec<(String, String)>;

#[derive(Debug, Default, PartialEq)]
struct Seen {
    name: String,
    parent: Option<u64>,
    slices: Vec<(u64, u64, String, Facts)>,
    marks: Vec<(u64, String)>,
    counter: Vec<(u64, i64)>,
}

/// The tracks of a file by number.
fn read(mut bytes: &[u8]) -> BTreeMap<u64, Seen> {
    let (mut tracks, mut events, mut facts) = (BTreeMap::<u64, Seen>::new(), BTreeMap::new(), BTreeMap::new());
    let mut open: BTreeMap<u64, Vec<(u64, String, Facts)>> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut is_first = true;
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 10, "a field 1 with a length");
        bytes = &bytes[1..];
        let length = prost::decode_length_delimiter(&mut bytes).unwrap();
        let (packet, rest) = bytes.split_at(length);
        bytes = rest;
        let packet = Packet::decode(packet).unwrap();
        assert_eq!(
            (packet.sequence, packet.sequence_flags),
            (Some(SEQUENCE), Some(if is_first { STATE_CLEARED } else { STATE_NEEDED }))
        );
        assert_eq!(packet.defaults.is_some(), is_first);
        is_first = false;
        for (known, fresh) in
            packet.interned.iter().flat_map(|interned| [(true, &interned.events), (false, &interned.facts)])
        {
            let names = if known { &mut events } else { &mut facts };
            for Name { id, name } in fresh {
                assert!(names.insert(id.unwrap(), name.clone().unwrap()).is_none(), "a name is written once");
            }
        }
        match packet.data.unwrap() {
            Data::Clocks(snapshot) => assert_eq!(snapshot.clocks.len(), 3),
            Data::Track(track) => {
                assert!(
                    track.parent.is_none_or(|parent| tracks.contains_key(&parent)),
                    "a parent stands before its children"
                );
                let seen = Seen { name: track.name.unwrap(), parent: track.parent, ..Seen::default() };
                assert!(tracks.insert(track.uuid.unwrap(), seen).is_none(), "a track is described once");
            }
            Data::Event(event) => {
                let (at, uuid) = (packet.timestamp.unwrap(), event.track.unwrap());
                let track = tracks.get_mut(&uuid).expect("a track is described before its events");
                assert!(last.insert(uuid, at).is_none_or(|before| before <= at), "time goes on within a track");
                let open = open.entry(uuid).or_default();
                let name = event.name.map(|id| events[&id].clone());
                let fact = |fact: &Annotation| {
                    let value = fact.text.clone().or(fact.number.map(|number| number.to_string()));
                    (facts[&fact.name.unwrap()].clone(), value.unwrap())
                };
                let told: Vec<_> = event.facts.iter().map(fact).collect();
                match event.kind.unwrap() {
                    SLICE_BEGIN => open.push((at, name.unwrap(), told)),
                    SLICE_END => {
                        let (begin, name, told) = open.pop().expect("what ends has begun");
                        track.slices.push((begin, at, name, told));
                    }
                    INSTANT => track.marks.push((at, name.unwrap())),
                    COUNTER => track.counter.push((at, event.counter.unwrap())),
                    other => panic!("an event of kind {other}"),
                }
            }
        }
    }
    assert!(open.values().all(Vec::is_empty), "what begins ends");
    tracks
}

fn slice(begin: u64, end: u64, name: &str, children: Vec<Slice>) -> Slice {
    let facts = vec![
        ("blocks", Value::Number(u64::MAX)),
        ("end", Value::Word("finished")),
        ("function", Value::Text(Arc::from("f"))),
    ];
    Slice { begin: Nanos(begin), end: Nanos(end), name: name.into(), flow: Some(9), facts, children }
}

#[test]
fn what_is_written_is_what_is_read() {
    let mark = |at, name| Mark { at: Nanos(at), name, facts: vec![("task", Value::Number(4))] };
    let timeline = Timeline {
        groups: vec![
            Group {
                name: "scheduler".into(),
                tracks: vec![Track {
                    name: "decisions".into(),
                    marks: vec![mark(5, "preempt"), mark(7, "preempt")],
                    ..Track::default()
                }],
            },
            Group {
                name: "compute units".into(),
                tracks: vec![
                    Track {
                        name: "compute unit 0".into(),
                        slices: vec![
                            slice(10, 20, "a", vec![slice(10, 10, "b", vec![]), slice(12, 20, "b", vec![])]),
                            slice(20, 30, "a", vec![]),
                        ],
                        ..Track::default()
                    },
                    Track { name: "depth".into(), counter: vec![(Nanos(1), 3), (Nanos(2), 0)], ..Track::default() },
                ],
            },
        ],
    };
    let mut file = Vec::new();
    write(&timeline, Clocks { monotonic_ns: 1, boot_ns: 2, real_ns: 3 }, &mut file).unwrap();
    let tracks = read(&file);
    assert_eq!(
        tracks.values().map(|track| track.name.as_str()).collect::<Vec<_>>(),
        ["scheduler", "decisions", "compute units", "compute unit 0", "depth"]
    );
    assert_eq!(tracks[&2].marks, [(5, "preempt".to_owned()), (7, "preempt".to_owned())]);
    assert_eq!((tracks[&2].parent, tracks[&4].parent), (Some(1), Some(3)));
    let slices: Vec<_> = tracks[&4].slices.iter().map(|(begin, end, name, _)| (*begin, *end, name.as_str())).collect();
    assert_eq!(slices, [(10, 10, "b"), (12, 20, "b"), (10, 20, "a"), (20, 30, "a")]);
    let facts: Vec<_> = tracks[&4].slices[0].3.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(facts, [("blocks", "18446744073709551615"), ("end", "finished"), ("function", "f")]);
    assert_eq!(tracks[&5].counter, [(1, 3), (2, 0)]);
    assert_eq!(
        Packet::decode(&file[2..2 + usize::from(file[1])]).unwrap().defaults.unwrap().clock,
        Some(CLOCK_MONOTONIC)
    );
}
