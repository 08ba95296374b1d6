//! Clients and replayers connected without a socket. The device is memory of the test.

mod device;
mod stored;

use atoll_session::{
    Client, Code, Frame, HostCopy, Kind, Output, Pattern, Record, Recording, Refused, Replayer, Run, Span, Steps,
    Values,
};
use device::{BASE, MEMORY, Wire, connect, facts};

/// A client with a module and its kernel `add_one`.
fn prepared() -> (Client<Wire>, u32) {
    prepare(connect())
}

fn prepare(mut client: Client<Wire>) -> (Client<Wire>, u32) {
    let module = client.load(1, b"image").expect("an image");
    let kernel = client.kernel(module, "add_one").expect("a kernel");
    (client, kernel)
}

fn params(at: u64, count: u32) -> Vec<u8> {
    [at.to_le_bytes().as_slice(), &count.to_le_bytes()].concat()
}

#[test]
fn a_program_waits_only_where_data_comes_back() {
    let (mut client, kernel) = prepared();
    let before = Wire::report();
    assert_eq!((before.messages, before.answers), (2, 2), "the image and the kernel");
    let at = client.allocate(1, 100).expect("room");
    client.copy_in(0, at, &[7; 100]).expect("a copy");
    for _ in 0..50 {
        client.launch(0, kernel, [[1; 3]; 2], (0, false), &params(at, 100)).expect("a launch");
    }
    assert_eq!(Wire::report(), before, "nothing was sent");
    client.copy_out(0, HostCopy { to: 0, bytes: 100 }, at).expect("a copy");
    client.complete_copies().expect("no error");
    assert_eq!(Wire::host(0, 100), [57; 100]);
    let after = Wire::report();
    assert_eq!((after.messages, after.answers, after.launches), (3, 3, 50));
}

#[test]
fn a_copy_to_the_device_is_in_front_of_work_in_every_stream() {
    let (mut client, kernel) = prepared();
    let at = client.allocate(1, 16).expect("room");
    for flags in [0, 1] {
        let stream = client.create_stream(1, flags, 0).expect("a stream");
        client.copy_in(0, at, &[7; 16]).expect("a copy");
        client.launch(stream, kernel, [[1; 3]; 2], (0, false), &params(at, 16)).expect("a launch");
        client.copy_out(stream, HostCopy { to: 0, bytes: 16 }, at).expect("a copy");
        client.complete_copies().expect("no error");
        assert_eq!(Wire::host(0, 16), [8; 16], "flags {flags}");
    }
}

#[test]
fn a_context_ends_after_the_copies_back_that_it_was_given() {
    let (mut client, _) = prepared();
    let at = client.allocate(1, 8).expect("room");
    client.copy_in(0, at, &[5; 8]).expect("a copy");
    client.copy_out(0, HostCopy { to: 0, bytes: 8 }, at).expect("a copy");
    client.destroy_context(1).expect("no error");
    assert!(!client.is_awaited(0, 8));
    assert_eq!(Wire::host(0, 8), [5; 8]);
}

#[test]
fn calls_are_checked_before_they_are_made() {
    let (mut client, kernel) = prepared();
    let first = client.allocate(1, 100).expect("room");
    let at = client.allocate_at(1, 5000, 4096).expect("room");
    assert!(at.is_multiple_of(4096) && at > first);
    assert_eq!(client.check_span(Span { at: at + 4999, bytes: 1 }), Ok(()));
    assert_eq!(client.check_span(Span { at: at + 4999, bytes: 2 }), Err(Code::INVALID_VALUE));
    let before = Wire::report();
    let params = params(at, 1);
    assert_eq!(client.check_launch(kernel, [[1; 3]; 2], 0, &params), Ok(()));
    assert_eq!(client.check_launch(kernel, [[1, 0, 1], [1; 3]], 0, &params), Err(Code::INVALID_VALUE));
    assert_eq!(client.check_launch(kernel, [[1; 3]; 2], 0, &params[1..]), Err(Code::INVALID_VALUE));
    assert_eq!(client.check_launch(kernel + 1, [[1; 3]; 2], 0, &params), Err(Code::INVALID_HANDLE));
    for (rows, size, expected) in [
        ((8, 2, 3), 4, Ok(())),
        ((0, 1250, 1), 4, Ok(())),
        ((0, 0, 9), 4, Ok(())),
        ((4, 2, 3), 4, Err(Code::INVALID_VALUE)),
        ((9, 2, 3), 4, Err(Code::INVALID_VALUE)),
        ((0, 1251, 1), 4, Err(Code::INVALID_VALUE)),
        ((2500, 1, 3), 4, Err(Code::INVALID_VALUE)),
        ((u64::MAX - 3, 1, 3), 4, Err(Code::INVALID_VALUE)),
    ] {
        assert_eq!(client.check_fill(at, rows, size), expected, "{rows:?}");
    }
    let event = client.create_event(1, 0).expect("an event");
    assert_eq!(client.is_recorded(event), Ok(false));
    client.record_event(event, 0).expect("it exists");
    assert_eq!((client.is_recorded(event), client.is_recorded(event + 1)), (Ok(true), Err(Code::INVALID_HANDLE)));
    client.free(at).expect("it exists");
    assert_eq!(client.check_span(Span { at, bytes: 1 }), Err(Code::INVALID_VALUE));
    assert_eq!(Wire::report(), before, "nothing was sent");
}

#[test]
fn several_copies_back_come_with_one_answer() {
    let (mut client, _) = prepared();
    let at = client.allocate(1, 64).expect("room");
    client.fill(0, at, (0, 16, 1), (0x0403_0201, 4)).expect("a fill");
    client.fill(0, at + 1, (8, 2, 4), (9, 1)).expect("a fill of rows");
    for part in 0..4 {
        client.copy_out(0, HostCopy { to: part * 8, bytes: 8 }, at + part * 8).expect("a copy");
        assert!(client.is_awaited(part * 8 + 7, 1));
    }
    assert!(!client.is_awaited(32, 1000));
    client.synchronize().expect("no error");
    assert_eq!(Wire::host(0, 32), [[1, 9, 9, 4, 1, 2, 3, 4]; 4].concat());
    assert_eq!(Wire::report().answers, 3);
    // The session is idle, so no call is sent.
    client.synchronize().expect("no error");
    client.synchronize_stream(0).expect("no error");
    assert_eq!(Wire::report().answers, 3);
}

#[test]
fn an_image_is_sent_once_and_a_kernel_is_asked_for_once() {
    let mut client = connect();
    let first = client.load(1, b"image").expect("an image");
    let second = client.load(1, b"image").expect("the same");
    for module in [first, second] {
        let kernel = client.kernel(module, "add_one").expect("a kernel");
        assert_eq!(client.kernel(module, "add_one"), Ok(kernel));
        assert_eq!(client.kernel(module, "nothing"), Err(Code::NOT_FOUND));
    }
    client.synchronize().expect("no error");
    let report = Wire::report();
    assert_eq!((report.images, report.failures), (1, 0));
    assert_eq!(report.answers, 4, "the image, the kernel, the one that is not there, and the end");
    let error = client.load(1, b"refused").expect_err("not an image");
    assert_eq!((error.code, error.log.as_str()), (Code::INVALID_IMAGE, "line 1: refused"));
}

#[test]
fn a_large_image_is_not_sent_again_by_a_later_session() {
    let mut large = b"image".to_vec();
    large.resize(atoll_session::limits::IMAGE_ASK_BYTES, b' ');
    let mut first = connect();
    first.load(1, &large).expect("an image");
    let sent = |report: atoll_session::Report| (report.images, report.answers);
    assert_eq!(sent(Wire::report()), (1, 2), "it is asked for, and sent");
    let mut second = connect();
    let module = second.load(1, &large).expect("the same");
    assert_eq!(sent(Wire::report()), (0, 1), "it is asked for");
    second.kernel(module, "add_one").expect("a kernel");
    second.load(1, &large).expect("the same");
    assert_eq!(sent(Wire::report()), (0, 2), "the session knows it");
    large[0] = b'x';
    let error = second.load(1, &large).expect_err("not an image");
    assert_eq!((error.code, error.log.as_str()), (Code::INVALID_IMAGE, "line 1: refused"));
    // A small one is sent at once.
    second.load(1, b"image").expect("an image");
    assert_eq!(sent(Wire::report()), (2, 5));
}

#[test]
fn a_kept_image_that_cannot_be_loaded_again_has_the_log() {
    let mut large = b"once".to_vec();
    large.resize(atoll_session::limits::IMAGE_ASK_BYTES, b' ');
    connect().load(1, &large).expect("an image");
    let error = connect().load(1, &large).expect_err("no room");
    assert_eq!((error.code, error.log.as_str()), (Code::OUT_OF_MEMORY, "no room"));
}

#[test]
fn an_error_of_a_recorded_call_comes_with_the_next_answer() {
    let (mut client, kernel) = prepared();
    let at = client.allocate(1, 16).expect("room");
    // The device refuses this number of blocks; the client does not know that.
    client.launch(0, kernel, [[999, 1, 1], [1; 3]], (0, false), &params(at, 1)).expect("recorded");
    client.launch(0, kernel, [[1; 3]; 2], (0, false), &params(at, 1)).expect("recorded");
    assert_eq!(client.synchronize(), Err(Code::LAUNCH_OUT_OF_RESOURCES));
    let cause = client.take_cause().expect("a cause");
    assert_eq!((cause.call, cause.number, cause.code), ("cuLaunchKernel", 3, Code::LAUNCH_OUT_OF_RESOURCES));
    assert_eq!(client.synchronize(), Ok(()), "it is reported once");
    assert_eq!(client.take_cause(), None);
}

#[test]
fn a_fault_is_returned_by_every_later_call() {
    let (mut client, _) = prepared();
    let module = client.load(1, b"image").expect("an image");
    let fault = client.kernel(module, "fault").expect("a kernel");
    client.launch(0, fault, [[1; 3]; 2], (0, false), &[]).expect("recorded");
    assert_eq!(client.synchronize(), Err(Code::ILLEGAL_ADDRESS));
    let messages = Wire::report().messages;
    assert_eq!(client.allocate(1, 16), Err(Code::ILLEGAL_ADDRESS));
    assert_eq!(client.synchronize(), Err(Code::ILLEGAL_ADDRESS));
    assert_eq!(client.create_stream(1, 0, 0), Err(Code::ILLEGAL_ADDRESS));
    assert_eq!(Wire::report().messages, messages, "nothing more is sent");
}

#[test]
fn long_copies_are_posted_in_parts() {
    let (mut client, _) = prepared();
    let bytes = MEMORY as usize / 2;
    let at = client.allocate(1, bytes as u64).expect("room");
    let data: Vec<u8> = (0..bytes).map(|index| (index / 999) as u8).collect();
    client.copy_in(0, at, &data).expect("a copy");
    assert!(Wire::report().messages > 3, "parts were sent");
    client.copy_out(0, HostCopy { to: 0, bytes: bytes as u64 }, at).expect("a copy");
    client.complete_copies().expect("no error");
    assert_eq!(Wire::host(0, bytes), data);
    assert_eq!(Wire::report().answers, 3, "one for the copy back, whatever its size");
}

#[test]
fn what_a_context_has_ends_with_it() {
    let (mut client, kernel) = prepared();
    let (free, total) = client.memory_bytes();
    assert_eq!(free, total);
    let kept = client.allocate(2, 16).expect("room");
    let at = client.allocate(1, 16).expect("room");
    let (stream, event) = (client.create_stream(1, 0, 0).expect("one"), client.create_event(1, 0).expect("one"));
    client.record_event(event, stream).expect("recorded");
    client.destroy_context(1).expect("no error");
    assert_eq!(client.free(at), Err(Code::INVALID_VALUE));
    assert_eq!(client.check_stream(stream), Err(Code::INVALID_HANDLE));
    assert_eq!(client.query_event(event), Err(Code::INVALID_HANDLE));
    let launched = client.launch(0, kernel, [[1; 3]; 2], (0, false), &params(kept, 1));
    assert_eq!(launched, Err(Code::INVALID_HANDLE));
    assert!(client.find(kept).is_some());
    client.synchronize().expect("no error");
    assert_eq!(Wire::report().failures, 0);
}

/// The bytes of answers.
#[derive(Default)]
struct Answers(Vec<u8>);

impl Output for Answers {
    fn write(&mut self, bytes: &[u8]) -> Result<(), atoll_session::Lost> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// The error with which a server answers a record that follows valid ones.
fn error_of(record: Record<'_>) -> Option<Code> {
    let mut replayer = Replayer::new(device::Device::default(), device::memory());
    let digest = device::digest(b"image");
    let mut bytes = Vec::new();
    for right in [
        Record::Allocate { at: BASE, bytes: 100 },
        Record::Allocate { at: BASE + 512, bytes: 100 },
        Record::Free { at: BASE + 512 },
        Record::LoadModule { module: 1, digest, image: b"image" },
        Record::GetKernel { kernel: 2, module: 1, name: "add_one" },
        Record::CreateStream { stream: 3, flags: 0, priority: 0 },
        Record::CreateEvent { event: 4, flags: 0 },
    ] {
        right.write(&mut bytes);
    }
    record.write(&mut bytes);
    Record::Synchronize {}.write(&mut bytes);
    let mut answers = Answers::default();
    let frame = Frame { kind: Kind::Call, sequence: 0, bytes: bytes.len() as u64 };
    replayer.run(frame, &bytes, &mut answers).expect("records");
    let end = answers.0.len() - atoll_session::ANSWER_BYTES;
    let end: &[u8; atoll_session::ANSWER_BYTES] = answers.0[end..].try_into().expect("its size");
    let answer = atoll_session::Answer::read(end).expect("an answer");
    assert_eq!(answer.error, None);
    assert_eq!(answer.earlier.map(|_| answer.earlier_call), answer.earlier.map(|_| 7));
    answer.earlier
}

#[test]
fn a_server_believes_nothing() {
    let launch = |stream, kernel, params: &'static [u8]| Record::Launch {
        stream,
        kernel,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: 0,
        params,
    };
    let (value, handle) = (Some(Code::INVALID_VALUE), Some(Code::INVALID_HANDLE));
    let fill = |to, pitch, width, height, size| Record::Fill { stream: 0, to, pitch, width, height, value: 0, size };
    for (record, expected) in [
        (Record::CopyIn { stream: 0, to: BASE, bytes: &[0; 100] }, None),
        (Record::CopyIn { stream: 0, to: BASE + 1, bytes: &[0; 100] }, value),
        (Record::CopyIn { stream: 0, to: BASE + 512, bytes: &[0; 4] }, value),
        (Record::CopyIn { stream: 0, to: 0, bytes: &[0; 4] }, value),
        (Record::CopyIn { stream: 0, to: u64::MAX, bytes: &[0; 4] }, value),
        (Record::CopyIn { stream: 9, to: BASE, bytes: &[0; 4] }, handle),
        (Record::CopyOut { stream: 0, from: BASE, bytes: 100 }, None),
        (Record::CopyOut { stream: 0, from: BASE, bytes: 101 }, value),
        (Record::CopyOut { stream: 0, from: BASE, bytes: u64::MAX }, value),
        (Record::CopyOut { stream: 9, from: BASE, bytes: 4 }, handle),
        (Record::CopyWithin { stream: 0, to: BASE, from: BASE + 50, bytes: 51 }, value),
        (Record::CopyWithin { stream: 0, to: BASE + 512, from: BASE, bytes: 1 }, value),
        (fill(BASE, 0, 25, 1, 4), None),
        (fill(BASE, 0, 26, 1, 4), value),
        (fill(BASE + 1, 0, 1, 1, 4), value),
        (fill(BASE, 0, 1, 1, 3), value),
        (fill(BASE, 10, 10, 10, 1), None),
        (fill(BASE, 10, 11, 2, 1), value),
        (fill(BASE, u64::MAX, 1, u64::MAX, 1), value),
        (fill(BASE, 0, u64::MAX, 1, 4), value),
        (Record::Allocate { at: BASE + 99, bytes: 1 }, value),
        (Record::Allocate { at: BASE + 512, bytes: 0 }, value),
        (Record::Allocate { at: BASE + MEMORY, bytes: 1 }, value),
        (Record::Allocate { at: BASE + 512, bytes: u64::MAX }, value),
        (Record::Allocate { at: BASE + 512, bytes: 100 }, None),
        (Record::Free { at: BASE + 1 }, value),
        (Record::Free { at: BASE + 512 }, value),
        (launch(0, 2, &[0; 12]), None),
        (launch(3, 2, &[0; 13]), None),
        (launch(0, 2, &[0; 11]), value),
        (launch(0, 9, &[0; 12]), handle),
        (launch(9, 2, &[0; 12]), handle),
        (Record::LoadModule { module: 5, digest: [1; 32], image: b"" }, Some(Code::INVALID_IMAGE)),
        (Record::LoadModule { module: 5, digest: [1; 32], image: b"image" }, Some(Code::INVALID_IMAGE)),
        (Record::LoadModule { module: 5, digest: device::digest(b"image"), image: b"" }, None),
        (Record::LoadModule { module: 1, digest: device::digest(b"image"), image: b"" }, handle),
        (Record::GetKernel { kernel: 2, module: 1, name: "add_one" }, handle),
        (Record::GetKernel { kernel: 5, module: 9, name: "add_one" }, handle),
        (Record::GetKernel { kernel: 5, module: 1, name: "add\0one" }, Some(Code::NOT_FOUND)),
        (Record::GetVariable { module: 9, name: "v" }, handle),
        (Record::UnloadModule { module: 9 }, handle),
        (Record::CreateStream { stream: 3, flags: 0, priority: 0 }, handle),
        (Record::CreateStream { stream: 0, flags: 0, priority: 0 }, handle),
        (Record::DestroyStream { stream: 0 }, handle),
        (Record::RecordEvent { event: 9, stream: 3 }, handle),
        (Record::WaitEvent { stream: 3, event: 9 }, handle),
        (Record::SynchronizeEvent { event: 9 }, handle),
        (Record::QueryStream { stream: 9 }, handle),
        (Record::Elapsed { start: 4, end: 9 }, handle),
        (Record::SetAttribute { kernel: 9, attribute: 8, value: 0 }, handle),
    ] {
        assert_eq!(error_of(record), expected, "{record:?}");
    }
}

#[test]
fn messages_that_are_none_end_a_session() {
    let run = |frame: Frame, bytes: &[u8]| {
        let mut replayer = Replayer::new(device::Device::default(), device::memory());
        replayer.run(frame, bytes, &mut Answers::default())
    };
    let frame = |kind, sequence, bytes: &[u8]| Frame { kind, sequence, bytes: bytes.len() as u64 };
    let mut copy = Vec::new();
    Record::CopyOut { stream: 0, from: BASE, bytes: 1 }.write(&mut copy);
    assert_eq!(run(frame(Kind::Post, 0, &copy), &copy), Err(Refused::CopyWithoutAnswer));
    assert_eq!(run(frame(Kind::Call, 1, &copy), &copy), Err(Refused::Sequence { expected: 0, found: 1 }));
    assert!(matches!(run(frame(Kind::Call, 0, &copy), &copy[1..]), Err(Refused::Wire(_))));
    assert_eq!(run(frame(Kind::Call, 0, &[]), &[]), Ok(()));
}

#[test]
fn a_million_allocations_fit() {
    let (mut client, _) = prepared();
    for _ in 0..1_000_000 {
        let at = client.allocate(1, 700).expect("room");
        client.free(at).expect("it is there");
    }
    client.synchronize().expect("no error");
    let report = Wire::report();
    assert_eq!((report.allocations, report.answers, report.failures), (1_000_000, 3, 0));
}

#[test]
fn a_server_of_another_version_is_refused() {
    for (version, code) in [(0, Code::SYSTEM_DRIVER_MISMATCH), (atoll_session::limits::VERSION, Code::NO_DEVICE)] {
        let (refused, why) = Client::open(device::Greeter::new(version, Code::NO_DEVICE), 0).expect_err("a refusal");
        assert_eq!(refused, code, "{why}");
    }
    assert_eq!(facts().attribute(1), Some(1024));
}

#[test]
fn an_observed_session_is_recorded_and_runs_have_a_pattern() {
    let run = |value: u8, blocks: u32| {
        let (mut client, kernel) = prepared();
        let at = client.allocate(1, 100).expect("room");
        client.copy_in(0, at, &[value; 100]).expect("a copy");
        client.launch(0, kernel, [[blocks, 1, 1], [1; 3]], (0, false), &params(at, 100)).expect("a launch");
        client.copy_out(0, HostCopy { to: 0, bytes: 100 }, at).expect("a copy");
        let completed = client.complete_copies();
        assert_eq!(completed.is_ok(), blocks != 999);
        Wire::recording()
    };
    let files = [run(1, 1), run(2, 1), run(3, 1)];
    let sessions = files.each_ref().map(|file| Steps::of(Recording::read(file).expect("a recording")).expect("steps"));
    assert_eq!(sessions[0].images.values().copied().collect::<Vec<&[u8]>>(), [b"image"]);
    let runs = sessions.each_ref().map(Run::whole);
    let pattern = Pattern::of(&runs[..2]).expect("a pattern");
    let values = pattern.values(&runs[2]).expect("another run");
    assert_eq!(values, Values { inputs: vec![&[3; 100]], outputs: vec![&[4; 100]] });
    // The device refuses a launch of 999 blocks.
    let failed = run(4, 999);
    let why = Steps::of(Recording::read(&failed).expect("a recording")).expect_err("a failed call").to_string();
    assert!(why.starts_with("call 4 (cuLaunchKernel) failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "{why}");
}
