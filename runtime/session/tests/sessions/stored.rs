//! Sessions with stored functions.

use crate::device::{self, Device, Wire, connect_to, connect_with};
use crate::{Answers, params, prepare, prepared};
use atoll_session::{
    Client, Code, Frame, HostCopy, Kind, Lost, Record, Recording, Refused, Replayer, Report, Run, Steps, StoredCounts,
};

/// A run of a program: copies a value, adds one to it `launches` times, and copies it back.
fn add(client: &mut Client<Wire>, kernel: u32, at: u64, value: u8, launches: u8) {
    client.copy_in(0, at, &[value; 100]).expect("a copy");
    for _ in 0..launches {
        client.launch(0, kernel, [[1; 3]; 2], (0, false), &params(at, 100)).expect("a launch");
    }
    client.copy_out(0, HostCopy { to: 0, bytes: 100 }, at).expect("a copy");
    client.complete_copies().expect("no error");
    assert_eq!(Wire::host(0, 100), [value + launches; 100]);
}

/// A session that stores functions after three runs, with memory.
fn storing() -> (Client<Wire>, u32, u64) {
    let (mut client, kernel) = prepare(connect_with("stored_functions=3"));
    let at = client.allocate(1, 100).expect("room");
    client.synchronize().expect("no error");
    (client, kernel, at)
}

#[test]
fn runs_of_a_session_become_one_record_and_change_back() {
    let (mut client, kernel, at) = storing();
    let before = Wire::report();
    (0..10).for_each(|value| add(&mut client, kernel, at, value, 20));
    let after = Wire::report();
    let since = |count: fn(&Report) -> u64| count(&after) - count(&before);
    assert_eq!((since(|report| report.messages), since(|report| report.launches)), (10, 200));
    assert_eq!(since(|report| report.calls), 220, "all calls are carried out");
    assert_eq!(since(|report| report.records), 4 * 22 + 1 + 6, "four runs, the function, six of its calls");
    let run = 128 + 20 * 68 + 28;
    assert_eq!(after.stored, StoredCounts { functions: 1, bytes: run + 8, stores: 1, calls: 6, differences: 0 });
    let store = 8 + 4 + 8 + 8;
    assert_eq!(since(|report| report.record_bytes), 4 * run + store + 6 * (8 + 4 + 8 + 100));
    assert_eq!(Wire::notes(), ["22 calls are stored function 1 from now on, with 100 bytes of input"]);
    // The program takes another way once.
    add(&mut client, kernel, at, 5, 21);
    assert_eq!(Wire::notes(), ["a run has other calls than stored function 1; it is sent as 23 calls"]);
    add(&mut client, kernel, at, 6, 20);
    let stored = Wire::report().stored;
    assert_eq!((stored.calls, stored.differences, Wire::report().failures), (7, 1, 0));
    // Without the term, nothing is stored.
    let (mut client, kernel) = prepared();
    let at = client.allocate(1, 100).expect("room");
    (0..10).for_each(|value| add(&mut client, kernel, at, value, 20));
    assert_eq!(Wire::report().stored, StoredCounts::default());
    assert_eq!(Wire::report().records, Wire::report().calls);
}

#[test]
fn a_later_session_calls_the_function_from_the_second_run_on() {
    for (calls, stores) in [(2, 1), (5, 1)] {
        let (mut client, kernel, at) = storing();
        (0..6).for_each(|value| add(&mut client, kernel, at, value, 7));
        let stored = Wire::report().stored;
        assert_eq!((stored.calls, stored.stores), (calls, stores));
    }
}

#[test]
fn an_error_in_a_stored_function_is_that_of_its_call() {
    let (mut client, kernel, at) = storing();
    for blocks in [1, 2, 3, 4, 5, 999, 6] {
        client.fill(0, at, (0, 25, 1), (7, 4)).expect("a fill");
        client.launch(0, kernel, [[blocks, 1, 1], [1; 3]], (0, false), &params(at, 100)).expect("recorded");
        client.copy_out(0, HostCopy { to: 0, bytes: 100 }, at).expect("a copy");
        let before = Wire::report().calls;
        let expected = if blocks == 999 { Err(Code::LAUNCH_OUT_OF_RESOURCES) } else { Ok(()) };
        assert_eq!(client.complete_copies(), expected, "{blocks} blocks");
        let cause = client.take_cause().map(|cause| (cause.call, cause.number));
        assert_eq!(cause, expected.err().map(|_| ("cuLaunchKernel", before + 1)));
    }
    assert_eq!(Wire::report().stored.calls, 3);
    // A fault breaks the session, as it does without stored functions.
    let module = client.load(1, b"image").expect("an image");
    let fault = client.kernel(module, "fault").expect("a kernel");
    client.launch(0, fault, [[1; 3]; 2], (0, false), &[]).expect("recorded");
    assert_eq!(client.synchronize(), Err(Code::ILLEGAL_ADDRESS));
}

#[test]
fn a_recorded_session_has_the_calls_of_stored_functions() {
    let (mut client, kernel, at) = storing();
    (0..8).for_each(|value| add(&mut client, kernel, at, value, 2));
    let file = Wire::recording();
    let steps = Steps::of(Recording::read(&file).expect("a recording")).expect("steps");
    assert_eq!(Run::all(&steps).len(), 8);
}

#[test]
fn a_program_is_told_that_it_may_store_nothing() {
    let (mut client, kernel) = prepare(connect_to(Device::without_functions(), "stored_functions=3"));
    let at = client.allocate(1, 100).expect("room");
    (0..6).for_each(|value| add(&mut client, kernel, at, value, 2));
    assert_eq!(Wire::report().stored, StoredCounts::default());
    let notes = Wire::notes();
    assert!(notes.len() == 1 && notes[0].starts_with("no work is stored: the tenant's functions"), "{notes:?}");
    connect_with("");
    assert!(Wire::notes().is_empty(), "it did not ask");
}

fn encode(records: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| record.write(&mut bytes));
    bytes
}

#[test]
fn calls_that_a_client_has_left_behind_are_not_carried_out() {
    let event = Record::QueryEvent { event: 1 };
    let store = encode(&[Record::Store { function: 1, inputs: &[] }, event, event, event]);
    let call = encode(&[Record::Call { function: 1, inputs: &[] }]);
    let run = |device: Device| {
        let mut replayer = Replayer::new(device, device::memory());
        replayer.offer();
        let ran = [&store, &call].into_iter().enumerate().try_for_each(|(sequence, bytes)| {
            let frame = Frame { kind: Kind::Post, sequence: sequence as u32, bytes: bytes.len() as u64 };
            replayer.run(frame, bytes, &mut Answers::default())
        });
        (ran, replayer.report().calls)
    };
    assert_eq!(run(Device::default()), (Ok(()), 6));
    assert_eq!(run(Device::without_client()), (Err(Refused::Lost(Lost("the client has left".to_owned()))), 3));
}

#[test]
fn functions_that_a_server_did_not_store_end_a_session() {
    let run = |stores: bool, records: &[Record<'_>]| {
        let mut replayer = Replayer::new(Device::default(), device::memory());
        if stores {
            replayer.offer();
        }
        let bytes = encode(records);
        let frame = Frame { kind: Kind::Call, sequence: 0, bytes: bytes.len() as u64 };
        replayer.run(frame, &bytes, &mut Answers::default())
    };
    let refused = |function, why| Err(Refused::Stored { function, why });
    let (store, wait) = (Record::Store { function: 1, inputs: &[] }, Record::Synchronize {});
    let (call, dropped) = (Record::Call { function: 1, inputs: &[] }, Record::Drop { function: 1 });
    let (other, differs) = (Record::Call { function: 2, inputs: &[] }, Record::Differ { function: 1 });
    assert_eq!(run(true, &[store, wait]), Ok(()));
    assert_eq!(run(false, &[store, wait]), refused(1, "is more than the session may have"));
    assert_eq!(run(true, &[other]), refused(2, "is not stored"));
    assert_eq!(run(true, &[call, wait]), refused(1, "is called in front of other records"));
    assert_eq!(run(true, &[dropped, wait]), refused(1, "is dropped and not stored"));
    assert_eq!(run(true, &[differs, wait]), Ok(()), "only counted");
    for inside in [call, store, dropped, differs] {
        assert_eq!(run(true, &[wait, inside]), refused(1, "is not at the beginning of a message"));
        assert_eq!(run(true, &[store, inside]), refused(1, "is not at the beginning of a message"));
    }
    let bytes = encode(&[store]);
    for end in 2..bytes.len() {
        let mut replayer = Replayer::new(Device::default(), device::memory());
        replayer.offer();
        let frame = Frame { kind: Kind::Call, sequence: 0, bytes: end as u64 };
        let cut = replayer.run(frame, &bytes[..end], &mut Answers::default());
        assert!(matches!(cut, Err(Refused::Wire(_))), "cut at {end}: {cut:?}");
    }
}
