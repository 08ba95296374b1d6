//! Both ends of a ring, in two threads, and clients that break the protocol.

use atoll_control::RefusalKind;
use atoll_device::ring::ring_bytes;
use atoll_device::shm::Region;
use atoll_protocol::DataType;
use atoll_ring::{
    Call, ClientEnd, DaemonEnd, Done, Failure, Layout, Place, Reply, Request, RingError, SendError, Span, limits,
};
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SPIN: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_secs(60);

fn pair(slots: u32) -> (DaemonEnd, ClientEnd) {
    let daemon = DaemonEnd::create(Layout::new(slots, 64 << 10).unwrap()).unwrap();
    let client = ClientEnd::attach(daemon.as_fd().try_clone_to_owned().unwrap(), daemon.layout()).unwrap();
    (daemon, client)
}

/// Another view of the memory, as a client that breaks the protocol has it.
fn view(daemon: &DaemonEnd) -> Region {
    Region::attach(daemon.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

/// Answers requests until `stop`: the sum of all bytes of the first input.
fn serve(mut daemon: DaemonEnd, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let ticket = daemon.ticket();
        let Some(taken) = daemon.take().unwrap() else {
            daemon.sleep(ticket, Duration::from_millis(5));
            continue;
        };
        let reply = match taken.request.unwrap() {
            Request::Ping => Reply::Pong,
            Request::Call(call) => {
                let bytes = daemon.read(call.inputs[0].span).unwrap();
                let sum: u64 = bytes.iter().copied().map(u64::from).sum();
                daemon.write(call.window.at, &sum.to_le_bytes()).unwrap();
                let span = Span { at: call.window.at, bytes: 8 };
                let output = Place { name: "sum".into(), datatype: DataType::Uint64, shape: vec![1], span };
                Reply::Done(Done { outputs: vec![output], ..Done::default() })
            }
        };
        daemon.answer(taken.tag, &reply).unwrap();
    }
    daemon.close();
}

#[test]
fn requests_are_answered_whether_sides_spin_or_sleep() {
    for spin in [Duration::ZERO, SPIN] {
        let (daemon, mut client) = pair(4);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(daemon, &stop));
            let layout = client.layout();
            for round in 0..200_u64 {
                // As many requests as there are slots.
                for slot in 0..layout.slots() {
                    let part = layout.part(slot);
                    let bytes = vec![(round + u64::from(slot)) as u8; 100];
                    client.write(part.at, &bytes).unwrap();
                    let input = Place {
                        name: "x".into(),
                        datatype: DataType::Uint8,
                        shape: vec![100],
                        span: Span { at: part.at, bytes: 100 },
                    };
                    let window = Span { at: part.at + 128, bytes: part.bytes - 128 };
                    let call = Call { model: "m".into(), inputs: vec![input], window, ..Call::default() };
                    client.send(u64::from(slot), &Request::Call(call)).unwrap();
                }
                for _ in 0..layout.slots() {
                    let (tag, reply) = client.wait(spin, LONG).unwrap().expect("an answer in time");
                    let Reply::Done(done) = reply else { panic!("{reply:?}") };
                    let sum = client.read(done.outputs[0].span).unwrap();
                    assert_eq!(u64::from_le_bytes(sum.try_into().unwrap()), (round + tag) % 256 * 100);
                }
            }
            client.send(7, &Request::Ping).unwrap();
            assert_eq!(client.wait(spin, LONG).unwrap(), Some((7, Reply::Pong)));
            assert!(!client.is_closed());
            stop.store(true, Ordering::SeqCst);
            // Closing wakes a client that waits.
            let begun = Instant::now();
            assert_eq!(client.wait(spin, LONG).unwrap(), None);
            assert!(client.is_closed() && begun.elapsed() < LONG);
        });
    }
}

#[test]
fn a_client_sends_no_more_requests_than_there_are_slots() {
    let (mut daemon, mut client) = pair(2);
    for tag in 0..2 {
        client.send(tag, &Request::Ping).unwrap();
    }
    let full = client.send(2, &Request::Ping).unwrap_err();
    assert!(matches!(full, SendError::Ring(RingError::Overrun(2))), "{full}");
    // A client that sends more although nothing is answered.
    for _ in 0..2 {
        daemon.take().unwrap().unwrap();
    }
    client.send(2, &Request::Ping).unwrap();
    assert!(matches!(daemon.take(), Err(RingError::Overrun(2))));

    // A client that never takes answers.
    let (mut daemon, mut client) = pair(2);
    for tag in 0..2 {
        client.send(tag, &Request::Ping).unwrap();
        daemon.take().unwrap().unwrap();
        daemon.answer(tag, &Reply::Pong).unwrap();
    }
    client.send(2, &Request::Ping).unwrap();
    daemon.take().unwrap().unwrap();
    let failure = Reply::Failed(Failure { kind: RefusalKind::Busy, message: "later".into() });
    assert!(matches!(daemon.answer(2, &failure), Err(RingError::Overrun(2))));
}

#[test]
fn a_message_that_is_not_valid_is_the_only_one_that_fails() {
    let (mut daemon, mut client) = pair(4);
    let memory = view(&daemon);
    client.send(1, &Request::Ping).unwrap();
    client.send(2, &Request::Ping).unwrap();
    client.send(3, &Request::Ping).unwrap();
    // Words of the first two records: an unknown kind, and an impossible length. The words before
    // the records are the indices.
    let words = 512;
    let records = memory.words(4096, 32 + 4 * words).unwrap();
    records[32].store(77, Ordering::Relaxed);
    records[32 + 4 + 2].store(u64::MAX, Ordering::Relaxed);
    let (first, second) = (daemon.take().unwrap().unwrap(), daemon.take().unwrap().unwrap());
    assert!(first.tag == 1 && first.request.unwrap_err().to_string().contains("77 is unknown"));
    assert!(second.tag == 2 && second.request.unwrap_err().to_string().contains("the limit is 4064"));
    assert!(matches!(daemon.take().unwrap().unwrap().request, Ok(Request::Ping)));
    assert!(daemon.take().unwrap().is_none());
}

proptest! {
    /// A client that overwrites words at random: the daemon's end takes what is there, or reports
    /// that the ring is broken. It never takes more requests than there are slots.
    #[test]
    fn no_overwritten_memory_is_harmful(
        scribbles in proptest::collection::vec((0..1_u64 << 14, prop_oneof![0..10_u64, any::<u64>()]), 1..200),
    ) {
        let (mut daemon, mut client) = pair(2);
        let memory = view(&daemon);
        let all = memory.words(0, (memory.bytes() / 8) as usize).unwrap();
        for (index, (at, value)) in scribbles.into_iter().enumerate() {
            let _ = client.send(index as u64, &Request::Ping);
            all[at as usize % all.len()].store(value, Ordering::Relaxed);
            // Aims at the header, the indices and the first record.
            for base in [0, 4096, 4096 + ring_bytes::<4, 508>(2)] {
                all[(base / 8 + at % 64) as usize % all.len()].store(value, Ordering::Relaxed);
            }
            let mut taken = 0;
            loop {
                match daemon.take() {
                    Ok(Some(request)) => {
                        taken += 1;
                        prop_assert!(taken <= 2);
                        if let Ok(Request::Call(call)) = request.request {
                            let _ = (daemon.read(call.window), daemon.write(call.window.at, &[1; 24]));
                        }
                        if daemon.answer(request.tag, &Reply::Pong).is_err() {
                            return Ok(());
                        }
                    }
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
            daemon.sleep(daemon.ticket(), Duration::from_micros(1));
            daemon.bell().ring();
        }
    }
}

#[test]
fn the_arena_has_bounds() {
    let (daemon, client) = pair(1);
    let bytes = daemon.layout().arena_bytes();
    assert!(bytes <= limits::ARENA_BYTES_MAX);
    for (at, count, is_inside) in
        [(0, bytes, true), (bytes, 0, true), (bytes, 1, false), (8, bytes, false), (4, 4, false)]
    {
        let span = Span { at, bytes: count };
        assert_eq!(daemon.read(span).is_ok(), is_inside, "{span:?}");
        assert_eq!(client.write(at, &vec![1; count as usize]).is_ok(), is_inside, "{span:?}");
    }
    let error = daemon.read(Span { at: u64::MAX - 7, bytes: u64::MAX }).unwrap_err().to_string();
    assert!(error.contains("which has 65536 bytes"), "{error}");
}
