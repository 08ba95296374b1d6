use super::*;
use atoll_core::{Epoch, QueueId};

fn recorder() -> Recorder {
    let mut recorder = Recorder::new();
    for (id, tenant) in [(1, "a"), (2, "b")] {
        let name = FunctionName {
            tenant: tenant.into(),
            name: "f".into(),
            class: atoll_core::Class::RealTime,
            nodes: Vec::new(),
        };
        recorder.functions.insert(id, Arc::new(name));
    }
    recorder
}

fn issue(recorder: &mut Recorder, at: u64, launch: u64, function: u64) {
    let kind = EventKind::Issued { launch: LaunchId(launch), node: 0, queue: QueueId(0), epoch: Epoch(0) };
    recorder.note(Nanos(at), TaskId(launch + 50), Some(FunctionId(function)), kind);
}

fn chunk(launch: u64, began_ns: u64, ended_ns: u64) -> ChunkRecord {
    let (launch, queue) = (LaunchId(launch), QueueId(0));
    ChunkRecord { unit: 0, launch, queue, first_block: 3, blocks: 1 << 33, began_ns, ended_ns, end: ChunkEnd::Stopped }
}

/// The record written for a chunk, if any.
fn recorded(recorder: &mut Recorder, domain: Option<&str>, chunk: &ChunkRecord) -> Option<Record> {
    let (at, lost) = (recorder.ring.end(), recorder.chunks_lost);
    recorder.note_chunk(domain, chunk, Nanos(1000));
    let record = recorder.ring.get(at).copied();
    assert_eq!(recorder.chunks_lost - lost, u64::from(record.is_none()), "a chunk that is not recorded is counted");
    record
}

#[test]
fn a_chunk_is_recorded_for_the_task_of_its_launch() {
    let mut recorder = recorder();
    issue(&mut recorder, 100, 7, 2);
    let record = recorded(&mut recorder, Some("b"), &chunk(7, 100, 1000)).unwrap();
    assert_eq!((record.at, record.task, record.function), (Nanos(100), TaskId(57), 2));
    let end = ChunkOutcome::Stopped;
    let (launch, ended) = (LaunchId(7), Nanos(1000));
    assert_eq!(record.kind, EventKind::Chunk { unit: 0, launch, first_block: 3, blocks: u32::MAX, ended, end });
    assert!(recorded(&mut recorder, None, &chunk(7, 200, 200)).is_some(), "a device inside the daemon is trusted");
}

#[test]
fn a_process_can_only_record_plausible_chunks_of_its_own_launches() {
    let mut recorder = recorder();
    issue(&mut recorder, 100, 7, 2);
    assert_eq!(recorded(&mut recorder, Some("a"), &chunk(7, 200, 300)), None, "another tenant's launch");
    assert_eq!(recorded(&mut recorder, Some("b"), &chunk(8, 200, 300)), None, "an unknown launch");
    let slots = TRACE_LAUNCHES_MAX as u64;
    assert_eq!(recorded(&mut recorder, Some("b"), &chunk(7 + slots, 200, 300)), None, "a launch not issued yet");
    assert_eq!(recorded(&mut recorder, Some("b"), &chunk(7, 99, 300)), None, "before it was issued");
    assert_eq!(recorded(&mut recorder, Some("b"), &chunk(7, 300, 299)), None, "ended before it began");
    assert_eq!(recorded(&mut recorder, Some("b"), &chunk(7, 300, 1001)), None, "ends in the future");
    issue(&mut recorder, 400, 7 + slots, 2);
    assert_eq!(recorded(&mut recorder, Some("b"), &chunk(7, 500, 600)), None, "its launch is too old");
    assert!(recorded(&mut recorder, Some("b"), &chunk(7 + slots, 500, 600)).is_some());
}

#[test]
fn names_of_unloaded_functions_are_kept_for_a_while() {
    let mut recorder = recorder();
    recorder.remove_function(FunctionId(1));
    (100..100 + TRACE_FUNCTIONS_GONE_MAX as u64 - 1).for_each(|id| recorder.remove_function(FunctionId(id)));
    assert!(recorder.functions.contains_key(&1));
    recorder.remove_function(FunctionId(2));
    assert!(!recorder.functions.contains_key(&1) && recorder.functions.contains_key(&2));
}
