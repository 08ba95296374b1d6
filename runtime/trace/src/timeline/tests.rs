use super::*;
use crate::record::{ChunkOutcome, EventKind, Raise};
use atoll_core::placement::Why;
use atoll_core::{Epoch, LaunchEnd, LaunchId, Outcome, QueueId, TaskId};

fn functions() -> BTreeMap<u64, FunctionName> {
    let function = |tenant: &str, name: &str, class| FunctionName {
        tenant: tenant.into(),
        name: name.into(),
        class,
        nodes: vec!["conv".into(), "relu".into()],
    };
    [(1, function("local", "fast", Class::RealTime)), (2, function("team", "slow", Class::BestEffort))].into()
}

fn record(at: u64, task: u64, kind: EventKind) -> Record {
    Record { at: Nanos(at), task: TaskId(task), function: if task < 100 { 1 } else { 2 }, kind }
}

fn issued(launch: u64, queue: u32) -> EventKind {
    EventKind::Issued { launch: LaunchId(launch), node: 0, queue: QueueId(queue), epoch: Epoch(0) }
}

fn ended(launch: u64, queue: u32, (started, ended): (u64, u64), end: LaunchEnd) -> EventKind {
    EventKind::Ended {
        launch: LaunchId(launch),
        node: 1,
        queue: QueueId(queue),
        started: Nanos(started),
        ended: Nanos(ended),
        end,
    }
}

fn chunk(unit: u32, launch: u64, ended: u64) -> EventKind {
    EventKind::Chunk {
        unit,
        launch: LaunchId(launch),
        first_block: 0,
        blocks: 9,
        ended: Nanos(ended),
        end: ChunkOutcome::Finished,
    }
}

fn finished(outcome: Outcome) -> EventKind {
    EventKind::Finished { outcome, preemptions: 1 }
}

/// A best-effort task is preempted by a real-time one.
fn preemption() -> Vec<Record> {
    vec![
        record(100, 100, EventKind::Arrived { class: Class::BestEffort, ready: true }),
        record(110, 100, EventKind::Preparing),
        record(150, 100, EventKind::Prepared),
        record(160, 100, issued(1, 1)),
        record(200, 1, EventKind::Arrived { class: Class::RealTime, ready: true }),
        record(201, 100, EventKind::Raised { epoch: Epoch(1), why: Raise::Preempted }),
        record(202, 1, EventKind::Preparing),
        record(210, 1, EventKind::Prepared),
        record(215, 1, issued(2, 0)),
        record(225, 100, ended(1, 1, (170, 220), LaunchEnd::Evicted)),
        record(260, 1, ended(2, 0, (221, 250), LaunchEnd::Complete)),
        record(270, 1, finished(Outcome::Complete)),
        record(271, 100, issued(3, 1)),
        record(170, 100, chunk(0, 1, 218)),
        record(221, 1, chunk(0, 2, 250)),
        record(222, 1, chunk(1, 2, 249)),
        record(300, 100, EventKind::Cancelled),
        record(301, 100, EventKind::Raised { epoch: Epoch(2), why: Raise::Over }),
        record(310, 100, ended(3, 1, (280, 305), LaunchEnd::Aborted)),
        record(311, 100, finished(Outcome::Cancelled)),
    ]
}

fn spans(track: &Track) -> Vec<(u64, u64, &str)> {
    track.slices.iter().map(|slice| (slice.begin.0, slice.end.0, &*slice.name)).collect()
}

#[test]
fn a_preemption_is_seen_on_every_track() {
    let timeline = Timeline::of(&preemption(), &functions(), false, None);
    let track = |group, name| timeline.track(group, name).unwrap_or_else(|| panic!("no track `{name}`: {timeline:#?}"));
    assert_eq!(spans(track("scheduler", "mode")), [(200, 270, "real-time mode")]);
    let marks: Vec<_> = track("scheduler", "decisions").marks.iter().map(|mark| (mark.at.0, mark.name)).collect();
    assert_eq!(marks, [(201, "preempt"), (300, "cancel"), (301, "evict ended task"), (311, "cancelled")]);
    assert_eq!(spans(track("device queues", "queue 0")), [(221, 250, "relu")]);
    assert_eq!(spans(track("device queues", "queue 1")), [(170, 220, "relu"), (280, 305, "relu")]);
    let depth: Vec<_> =
        track("device queues", "launches in queue 1").counter.iter().map(|(at, depth)| (at.0, *depth)).collect();
    assert_eq!(depth, [(160, 1), (225, 0), (271, 1), (310, 0)]);
    assert_eq!(spans(track("compute units", "compute unit 0")), [(170, 218, "team/slow"), (221, 250, "fast")]);
    assert_eq!(spans(track("compute units", "compute unit 1")), [(222, 249, "fast")]);
    let requests = &track("requests", "fast").slices;
    assert_eq!((requests[0].begin.0, requests[0].end.0, requests[0].flow), (200, 270, Some(1)));
    let phases: Vec<_> = requests[0].children.iter().map(|phase| (phase.begin.0, phase.end.0, &*phase.name)).collect();
    assert_eq!(phases, [(200, 202, "waits"), (202, 210, "prepares"), (221, 250, "runs")]);
    assert_eq!(
        track("device queues", "queue 0").slices[0].flow,
        Some(1),
        "an arrow leads from the request to its launch"
    );
}

#[test]
fn tenants_with_units_of_their_own_have_tracks_of_their_own() {
    let timeline = Timeline::of(&preemption(), &functions(), true, None);
    let names: Vec<_> =
        timeline.groups.iter().flat_map(|group| &group.tracks).map(|track| track.name.as_str()).collect();
    for name in ["compute unit 0 of local", "compute unit 0 of team", "queue 1 of team", "launches in queue 1"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn a_recording_that_begins_and_ends_midway_is_whole() {
    let all = preemption();
    for begin in 0..all.len() {
        for end in begin..=all.len() {
            assert_nests(&Timeline::of(&all[begin..end], &functions(), false, None));
        }
    }
    let timeline = Timeline::of(&all[9..13], &functions(), false, None);
    assert_eq!(
        spans(timeline.track("requests", "team/slow").unwrap()),
        [(225, 271, "team/slow")],
        "as far as it was seen"
    );
}

#[test]
fn a_timeline_begins_where_it_is_told_to() {
    let all = preemption();
    for from in [100, 155, 175, 223, 290, 400] {
        let timeline = Timeline::of(&all, &functions(), false, Some(Nanos(from)));
        assert_nests(&timeline);
        for track in timeline.groups.iter().flat_map(|group| &group.tracks) {
            assert!(track.slices.iter().all(|slice| slice.begin.0 >= from), "{from}: {track:?}");
            assert!(track.marks.iter().all(|mark| mark.at.0 >= from), "{from}: {track:?}");
        }
    }
    let timeline = Timeline::of(&all, &functions(), false, Some(Nanos(220)));
    assert_eq!(spans(timeline.track("compute units", "compute unit 0").unwrap()), [(221, 250, "fast")]);
    assert_eq!(spans(timeline.track("device queues", "queue 1").unwrap()), [(280, 305, "relu")]);
    let timeline = Timeline::of(&all, &functions(), false, Some(Nanos(200)));
    let cut = [(200, 218, "team/slow"), (221, 250, "fast")];
    assert_eq!(spans(timeline.track("compute units", "compute unit 0").unwrap()), cut, "cut at the beginning");
}

/// The phases of the only request of a function.
fn phases<'a>(timeline: &'a Timeline, function: &str) -> Vec<(u64, u64, &'a str)> {
    let children = &timeline.track("requests", function).unwrap().slices[0].children;
    children.iter().map(|phase| (phase.begin.0, phase.end.0, &*phase.name)).collect()
}

#[test]
fn a_request_that_runs_when_the_recording_begins_is_not_drawn_as_waiting() {
    let records = [
        record(225, 100, ended(1, 1, (170, 220), LaunchEnd::Complete)),
        record(226, 100, issued(2, 1)),
        record(260, 100, ended(2, 1, (230, 250), LaunchEnd::Complete)),
        record(270, 100, finished(Outcome::Complete)),
    ];
    let timeline = Timeline::of(&records, &functions(), false, Some(Nanos(210)));
    assert_eq!(spans(timeline.track("requests", "team/slow").unwrap()), [(210, 270, "team/slow")]);
    assert_eq!(phases(&timeline, "team/slow"), [(210, 250, "runs")]);

    let prepared = [record(220, 100, EventKind::Prepared), records[1], records[2], records[3]];
    let timeline = Timeline::of(&prepared, &functions(), false, Some(Nanos(210)));
    assert_eq!(phases(&timeline, "team/slow"), [(210, 220, "prepares"), (230, 250, "runs")]);

    let waiting = [record(220, 100, EventKind::Preparing), record(224, 100, EventKind::Prepared), records[3]];
    let timeline = Timeline::of(&waiting, &functions(), false, Some(Nanos(210)));
    assert_eq!(phases(&timeline, "team/slow"), [(210, 220, "waits"), (220, 224, "prepares")]);
}

#[test]
fn requests_at_one_time_have_lanes() {
    let mut records: Vec<_> = (0..3)
        .map(|task| record(10 * task, task, EventKind::Arrived { class: Class::RealTime, ready: true }))
        .collect();
    records.extend((0..3).map(|task| record(100 + task, task, finished(Outcome::Complete))));
    records.push(record(200, 7, EventKind::Arrived { class: Class::RealTime, ready: true }));
    records.push(record(210, 7, finished(Outcome::Complete)));
    let timeline = Timeline::of(&records, &functions(), false, None);
    let lanes = ["fast", "fast (2)", "fast (3)"].map(|name| timeline.track("requests", name).unwrap().slices.len());
    assert_eq!(lanes, [2, 1, 1]);
}

/// Checks the guarantees of a timeline: order, no overlap, and nesting.
fn assert_nests(timeline: &Timeline) {
    fn check(slices: &[Slice], from: Nanos, to: Nanos) {
        let mut last = from;
        for slice in slices {
            assert!(
                last <= slice.begin && slice.begin <= slice.end && slice.end <= to,
                "{slice:?} in {from:?}..{to:?}"
            );
            check(&slice.children, slice.begin, slice.end);
            last = slice.end;
        }
    }
    for track in timeline.groups.iter().flat_map(|group| &group.tracks) {
        check(&track.slices, Nanos(0), Nanos(u64::MAX));
        assert!(track.marks.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!(track.counter.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}

#[test]
fn any_records_make_tracks_that_nest() {
    for seed in 0..300 {
        let mut rng = atoll_core::rng::Rng::new(seed);
        let records: Vec<Record> = (0..200)
            .filter_map(|_| {
                let head = rng.below(18) | rng.below(8) << 8 | rng.below(3) << 16 | rng.below(3) << 32;
                let mut words = [0; 8];
                words[..3].copy_from_slice(&[rng.below(1000), rng.below(6), rng.below(4)]);
                words[3] = head;
                words[4..].fill_with(|| rng.below(1000));
                Record::from_words(&words)
            })
            .collect();
        assert_nests(&Timeline::of(
            &records,
            &functions(),
            rng.one_in(2),
            rng.one_in(2).then(|| Nanos(rng.below(1000))),
        ));
    }
}

#[test]
fn placements_are_slices_of_waiting_on_the_track_of_their_device() {
    let placed = |at, arrived, device, why| {
        let (reload, service) = (Nanos(40), Nanos(7));
        let kind = EventKind::Placed { device, policy: 0, why, arrived: Nanos(arrived), reload, service, waiting: 3 };
        record(at, 1, kind)
    };
    let records = [placed(20, 10, 0, Why::Load), placed(30, 15, 1, Why::Replica), placed(35, 25, 0, Why::Holder)];
    let mut timeline = Timeline::of(&records, &functions(), false, Some(Nanos(5)));
    timeline.name_devices(&["host:0".into(), "cuda:0".into(), "pool".into()]);
    let track = timeline.track("placement", "to host:0").expect("a track");
    assert_eq!(track.slices.iter().map(|slice| (slice.begin.0, slice.end.0)).collect::<Vec<_>>(), [(10, 20), (25, 35)]);
    let facts = &timeline.track("placement", "to cuda:0").expect("a track").slices[0].facts;
    for expected in [
        ("why", Value::Word(Why::Replica.words())),
        ("policy", Value::Word("cost")),
        ("reload expected ns", Value::Number(40)),
        ("others waiting", Value::Number(3)),
    ] {
        assert!(facts.contains(&expected), "{expected:?}: {facts:?}");
    }
}
