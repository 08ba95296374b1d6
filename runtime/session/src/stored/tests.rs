//! A client and a server with messages of calls, without a session: whatever is sent, the server has
//! the calls of the program.

use super::layout::{Places, digest, heads, shape};
use super::offer::{KnownShape, Offer};
use super::{Repeats, Shelf};
use crate::field::Reader;
use crate::limits::{OFFER_BYTES_MAX, STORED_BYTES_MAX, STORED_FUNCTIONS_MAX, STORED_SHAPES_MAX};
use crate::record::Record;
use crate::recorder::Form;
use crate::refused::Refused;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::sync::Arc;

/// How a message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Calls,
    Stored,
    Called,
    Differs,
}
use Sent::{Called, Calls, Differs, Stored};

/// A client and a server.
struct Pair {
    repeats: Repeats,
    shelf: Shelf,
    shapes: Vec<KnownShape>,
    /// Bytes that were sent.
    bytes: usize,
}

impl Pair {
    fn new(after: u32, offer: &Offer) -> Pair {
        let mut shelf = Shelf::default();
        shelf.allow(offer);
        let repeats = Repeats::new(after, offer).expect("functions are allowed");
        Pair { repeats, shelf, shapes: Vec::new(), bytes: 0 }
    }

    /// Sends a message, and checks that the server has it.
    fn send(&mut self, message: &[u8]) -> Sent {
        let sent = match self.repeats.form_of(message) {
            Form::Calls => message.to_vec(),
            Form::Behind(records) => [records, message].concat(),
            Form::Instead(records) => records.to_vec(),
        };
        self.bytes += sent.len();
        let (mut rest, mut how) = (sent.as_slice(), Calls);
        loop {
            let mut reader = Reader::new(rest);
            match Record::read(&mut reader) {
                Ok(Record::Drop { function }) => self.shelf.remove(function).expect("it is stored"),
                Ok(Record::Differ { .. }) => how = Differs,
                Ok(Record::Store { function, inputs }) => {
                    let shape = self.shelf.store(function, inputs, reader.rest()).expect("there is room");
                    assert_eq!(shape.digest, digest(message));
                    self.shapes.push(shape);
                    how = Stored;
                }
                Ok(Record::Call { function, inputs }) => {
                    let records = self.shelf.take(function, inputs).expect("it is stored");
                    assert_eq!(records, message, "the server has other calls than the program made");
                    self.shelf.put_back(function, records);
                    assert_eq!(reader.left(), 0);
                    return Called;
                }
                _ => break,
            }
            rest = reader.rest();
        }
        assert_eq!(rest, message);
        how
    }

    fn send_all<'a>(&mut self, messages: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Sent> {
        messages.into_iter().map(|message| self.send(message)).collect()
    }
}

fn message(records: &[Record<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| record.write(&mut bytes));
    bytes
}

fn launch(stream: u32, kernel: u32, params: &[u8]) -> Record<'_> {
    Record::Launch { stream, kernel, grid: [4, 1, 1], block: [32, 1, 1], shared_bytes: 0, cooperative: 0, params }
}

/// A run: input and weights are copied, `launches` kernels run, the result is copied back.
fn run(input: u8, weight: u8, launches: u8) -> Vec<u8> {
    let (input, weights) = ([input; 100], [weight; 1000]);
    let params: Vec<[u8; 12]> = (0..launches).map(|launch| [launch; 12]).collect();
    let mut records = vec![
        Record::CopyIn { stream: 0, to: 4096, bytes: &input },
        Record::CopyIn { stream: 0, to: 8192, bytes: &weights },
    ];
    records.extend(params.iter().map(|params| launch(0, 7, params)));
    records.push(Record::CopyOut { stream: 0, from: 4096, bytes: 100 });
    message(&records)
}

#[test]
fn equal_runs_become_one_call() {
    for after in [2, 3, 10] {
        let mut pair = Pair::new(after, &Offer::default());
        let runs: Vec<Vec<u8>> = (0..30).map(|input| run(input, 9, 20)).collect();
        let sent = pair.send_all(&runs);
        let (recorded, rest) = sent.split_at(after as usize);
        assert!(recorded.iter().all(|sent| *sent == Calls), "{sent:?}");
        assert_eq!(rest[0], Stored);
        assert!(rest[1..].iter().all(|sent| *sent == Called), "{sent:?}");
        let notes = pair.repeats.take_notes();
        assert_eq!(
            notes,
            ["23 calls are stored function 1 from now on, with 100 bytes of input"],
            "the data that differs is the only input"
        );
        let before = pair.bytes;
        assert_eq!(pair.send(&run(200, 9, 20)), Called);
        assert_eq!(pair.bytes - before, 8 + 4 + 8 + 100, "head, number, size and input");
    }
}

#[test]
fn a_run_that_changes_its_shape_is_sent_as_its_calls() {
    let mut pair = Pair::new(3, &Offer::default());
    assert_eq!(pair.send_all(&vec![run(1, 9, 5); 6]), [Calls, Calls, Calls, Stored, Called, Called]);
    pair.repeats.take_notes();
    assert_eq!(pair.send(&run(1, 9, 6)), Differs);
    assert_eq!(pair.repeats.take_notes(), ["a run has other calls than stored function 1; it is sent as 9 calls"]);
    // The function is still there, and the other shape is no surprise any more.
    assert_eq!(pair.send(&run(2, 9, 6)), Calls);
    assert_eq!(pair.send(&run(1, 9, 5)), Called);
    assert_eq!(pair.send_all(&vec![run(3, 9, 6); 3]), [Calls, Stored, Called]);
    assert_eq!(pair.send(&run(1, 9, 5)), Called);
    assert_eq!(pair.shelf.size().0, 2);
}

#[test]
fn a_constant_that_changes_becomes_an_input() {
    let mut pair = Pair::new(3, &Offer::default());
    pair.send_all(&vec![run(1, 9, 5); 6]);
    pair.repeats.take_notes();
    assert_eq!(pair.send(&run(1, 10, 5)), Differs);
    assert_eq!(
        pair.repeats.take_notes(),
        ["a run differs from stored function 1 in cuMemcpyHtoD, call 2 of the run; it is sent as 8 calls"]
    );
    assert_eq!(pair.shelf.size(), (0, 0), "it is dropped");
    let sent = pair.send_all(&(0..10).map(|weight| run(1, weight, 5)).collect::<Vec<_>>());
    let until = sent.iter().position(|sent| *sent == Stored).expect("it is stored again");
    assert_eq!(until, 6, "after twice as many runs: {sent:?}");
    assert!(sent[until + 1..].iter().all(|sent| *sent == Called), "{sent:?}");
    // The next time it takes longer.
    assert_eq!(pair.send(&run(2, 0, 5)), Differs);
    let sent = pair.send_all(&vec![run(3, 3, 5); 20]);
    assert_eq!(sent.iter().position(|sent| *sent == Stored), Some(12), "{sent:?}");
}

#[test]
fn a_field_that_changes_in_the_run_that_would_be_stored_delays_it() {
    let mut pair = Pair::new(2, &Offer::default());
    let weights = [9, 9, 10, 9, 11, 12];
    let sent = pair.send_all(&weights.map(|weight| run(1, weight, 1)));
    assert_eq!(sent, [Calls, Calls, Calls, Stored, Called, Called]);
}

#[test]
fn streams_pointers_and_handles_may_vary() {
    let mut pair = Pair::new(3, &Offer::default());
    let sent: Vec<Sent> = (0..20u32)
        .map(|round| {
            // Two threads work in two streams, and which is first varies; the memory alternates.
            let (one, two) = if round % 3 == 0 { (1, 2) } else { (2, 1) };
            let at = 4096 * (1 + u64::from(round % 4));
            let params = [at, u64::from(round)].map(u64::to_le_bytes).concat();
            pair.send(&message(&[
                Record::Allocate { at, bytes: 100 },
                Record::CreateEvent { event: 100 + round, flags: 0 },
                Record::CopyIn { stream: one, to: at, bytes: &[7; 64] },
                launch(one, 7, &params),
                launch(two, 7, &params),
                Record::RecordEvent { event: 100 + round, stream: two },
                Record::WaitEvent { stream: one, event: 100 + round },
                Record::Free { at },
                Record::SynchronizeStream { stream: one },
            ]))
        })
        .collect();
    assert_eq!(sent[..4], [Calls, Calls, Calls, Stored]);
    assert!(sent[4..].iter().all(|sent| *sent == Called), "{sent:?}");
}

#[test]
fn parts_of_a_run_are_other_runs() {
    let mut pair = Pair::new(3, &Offer::default());
    let whole = run(1, 9, 5);
    pair.send_all(&vec![whole.clone(); 5]);
    let cut: Vec<usize> = heads(&whole).map(|(_, place)| place.end).collect();
    for (calls, end) in cut.iter().enumerate().take(cut.len() - 1) {
        let sent = pair.send(&whole[..*end]);
        assert_eq!(sent, if calls < 2 { Calls } else { Differs }, "{} calls", calls + 1);
        assert_eq!(pair.send(&whole), Called);
        assert_eq!(pair.send(&[whole.as_slice(), &whole[..*end]].concat()), Differs);
        assert_eq!(pair.send(&whole), Called);
    }
    assert_eq!(pair.send(&whole[..3]), Calls, "no record");
}

#[test]
fn some_runs_are_never_stored() {
    let mut pair = Pair::new(2, &Offer { bytes: 4000, ..Offer::default() });
    let load = Record::LoadModule { module: 1, digest: [0; 32], image: b"image" };
    let event = Record::QueryEvent { event: 1 };
    for records in [
        vec![Record::Synchronize {}],
        vec![event; 2],
        vec![load; 3],
        vec![event, event, event, Record::GetKernel { kernel: 1, module: 1, name: "kernel" }],
        vec![Record::CopyIn { stream: 0, to: 0, bytes: &[0; 1000] }; 4],
    ] {
        assert_eq!(pair.send_all(&vec![message(&records); 5]), [Calls; 5], "{records:?}");
    }
    assert_eq!(pair.send_all(&vec![message(&[event; 3]); 5]), [Calls, Calls, Stored, Called, Called]);
    for offer in [Offer { functions: 0, ..Offer::default() }, Offer { bytes: 0, ..Offer::default() }] {
        assert!(Repeats::new(3, &offer).is_none());
    }
}

#[test]
fn the_runs_used_least_recently_are_forgotten() {
    let mut pair = Pair::new(2, &Offer { functions: 2, bytes: 20_000, shapes: Vec::new() });
    for launches in 1..=3 {
        assert_eq!(pair.send_all(&vec![run(1, 1, launches); 4])[2..], [Stored, Called]);
    }
    assert_eq!(pair.shelf.size().0, 2, "the first one is dropped");
    assert_eq!(pair.send_all([&run(1, 1, 2), &run(1, 1, 3)]), [Called; 2]);
    assert_eq!(pair.send(&run(1, 1, 1)), Calls);
    // Runs with ever more calls fill the memory. A function in use stays.
    for launches in 4..=200 {
        pair.send(&run(1, 1, launches));
        assert_eq!(pair.send(&run(1, 1, 2)), Called);
    }
    assert_eq!(pair.shelf.size().0, 1);
    let mut small = Pair::new(2, &Offer::default());
    for calls in 3..3 + 2 * STORED_SHAPES_MAX {
        small.send(&message(&vec![Record::QueryEvent { event: 1 }; calls]));
    }
    assert_eq!(small.send(&message(&[Record::QueryEvent { event: 1 }; 3])), Calls);
    assert!(small.repeats.take_notes().is_empty());
}

#[test]
fn a_million_calls_are_a_thousand_messages() {
    let mut pair = Pair::new(3, &Offer::default());
    let mut sent = Vec::new();
    for round in 0..1000u32 {
        let params = round.to_le_bytes();
        let mut records = vec![launch(0, 7, &[1; 12]); 998];
        records.insert(500, launch(0, 8, &params));
        records.push(Record::SynchronizeStream { stream: 0 });
        sent.push(pair.send(&message(&records)));
    }
    assert!(sent[4..].iter().all(|sent| *sent == Called), "{sent:?}");
    let whole = 1000 * 68;
    assert!(pair.bytes < 5 * whole, "{} bytes", pair.bytes);
    // A run of a million calls is sent in parts of 4 MiB, which are more than a session may have.
    let part = message(&vec![launch(0, 7, &[1; 12]); (4 << 20) / 68]);
    for _ in 0..3 {
        for index in 0..17u32 {
            let last = Record::RecordEvent { event: index, stream: 0 };
            let part = [part.clone(), message(&vec![last; 1 + index as usize])].concat();
            assert_eq!(pair.send(&part), if index == 0 && pair.shelf.size().0 == 1 { Differs } else { Calls });
        }
    }
    assert_eq!(pair.shelf.size().0, 0, "the function was used least recently");
}

#[test]
fn random_programs_reach_the_server_as_they_are() {
    let mut numbers = SplitMix64::seed_from_u64(1);
    let mut random = |below: u64| numbers.next_u64() % below;
    let mut pair = Pair::new(2, &Offer { functions: 3, bytes: 16 << 10, shapes: Vec::new() });
    let mut counts = [0; 4];
    for _ in 0..20_000 {
        let kind = random(6) as u32;
        let rare = if random(50) == 0 { random(1000) } else { 5 };
        let params = [random(3), rare].map(u64::to_le_bytes).concat();
        let data = vec![random(256) as u8; 16 * kind as usize];
        let mut records = vec![
            Record::CopyIn { stream: kind, to: 512 * random(2), bytes: &data },
            launch(kind, random(2) as u32, &params[..8 + kind as usize]),
            Record::CopyWithin { stream: 0, to: rare, from: 0, bytes: 8 },
        ];
        records.extend(vec![Record::Free { at: rare }; random(20).saturating_sub(17) as usize]);
        counts[pair.send(&message(&records)) as usize] += 1;
        assert!(pair.shelf.size().0 <= 3 && pair.shelf.size().1 <= 16 << 10);
    }
    assert!(counts[Called as usize] > 1000 && counts[Differs as usize] > 0, "{counts:?}");
}

#[test]
fn a_later_session_stores_its_first_run() {
    let mut pair = Pair::new(3, &Offer::default());
    pair.send_all(&(0..6).map(|input| run(input, 9, 5)).collect::<Vec<_>>());
    let shapes: Vec<Arc<KnownShape>> = pair.shapes.drain(..).map(Arc::new).collect();
    let offer = Offer { shapes, ..Offer::default() };
    let read = Offer::read(&offer.write()).expect("an offer");
    assert_eq!(read, offer);
    let mut later = Pair::new(3, &read);
    assert_eq!(later.send_all([&run(50, 9, 5), &run(51, 9, 5)]), [Stored, Called]);
    // The weights are those of this session.
    let mut other = Pair::new(3, &read);
    assert_eq!(other.send_all([&run(50, 10, 5), &run(51, 10, 5), &run(51, 9, 5)]), [Stored, Called, Differs]);
    assert_eq!(other.send(&run(50, 9, 4)), Calls);
}

#[test]
fn inputs_of_earlier_sessions_that_are_no_fields_are_ignored() {
    let copies = |to: u64| {
        let event = Record::QueryEvent { event: 1 };
        message(&[Record::CopyIn { stream: 0, to, bytes: &[7; 8] }, event, event])
    };
    // The address is at 12..20. The other places are a part of it, parts of two fields, the head of a
    // record, a size, and behind the end.
    for (place, expected) in [
        ([12, 20], [Stored, Called, Called]),
        ([12, 16], [Calls, Calls, Stored]),
        ([10, 14], [Calls, Calls, Stored]),
        ([0, 8], [Calls, Calls, Stored]),
        ([20, 28], [Calls, Calls, Stored]),
        ([60, 64], [Calls, Calls, Stored]),
    ] {
        let inputs = Places::read(&place.map(u32::to_le_bytes).concat(), 100).expect("places");
        let shape = Arc::new(KnownShape { digest: digest(&copies(0)), inputs });
        let mut pair = Pair::new(2, &Offer { shapes: vec![shape], ..Offer::default() });
        let sent = pair.send_all(&(0..20).map(copies).collect::<Vec<_>>());
        assert_eq!(sent[..3], expected, "{place:?}");
        assert!(sent[3..].iter().all(|sent| *sent == Called), "{place:?}: {sent:?}");
    }
}

#[test]
fn places_of_inputs_count_as_bytes_of_a_function() {
    let queries = |event: u32, calls: usize| message(&vec![Record::QueryEvent { event }; calls]);
    let mut shelf = Shelf::default();
    let (records, inputs) = (queries(1, 3), [8u32, 12, 20, 24].map(u32::to_le_bytes).concat());
    shelf.allow(&Offer { functions: 1, bytes: records.len() as u64 + 15, shapes: Vec::new() });
    shelf.store(1, &inputs, &records).expect_err("two places have 16 bytes");
    shelf.store(1, &inputs[..8], &records).expect("one has 8");
    assert_eq!(shelf.size(), (1, 36 + 8));
    shelf.remove(1).expect("it is stored");
    assert_eq!(shelf.size(), (0, 0));
    // The records of both fit, but not with the places.
    let mut pair = Pair::new(2, &Offer { bytes: 100, ..Offer::default() });
    let send = |pair: &mut Pair, calls| (0..4).map(|event| pair.send(&queries(event, calls))).collect::<Vec<Sent>>();
    assert_eq!(send(&mut pair, 3), [Calls, Calls, Stored, Called]);
    assert_eq!(pair.shelf.size(), (1, 36 + 24));
    assert_eq!(send(&mut pair, 4), [Differs, Calls, Stored, Called]);
    assert_eq!(pair.shelf.size(), (1, 48 + 32), "the other is dropped");
    let mut small = Pair::new(2, &Offer { bytes: 50, ..Offer::default() });
    assert!((0..10).all(|event| small.send(&queries(event, 3)) == Calls));
}

#[test]
fn offers_have_limits() {
    let places = Places::read(&[0u32, 1, 1, 2].map(u32::to_le_bytes).concat(), 2).expect("places");
    let shape = Arc::new(KnownShape { digest: [1; 32], inputs: places });
    let offer = Offer { functions: 1 << 20, bytes: 1 << 60, shapes: vec![shape.clone(); 10_000] };
    let bytes = offer.write();
    assert!(bytes.len() <= OFFER_BYTES_MAX as usize && bytes.len() > OFFER_BYTES_MAX as usize - 100);
    let read = Offer::read(&bytes).expect("an offer");
    assert_eq!((read.functions, read.bytes), (STORED_FUNCTIONS_MAX, STORED_BYTES_MAX));
    assert_eq!(read.shapes.len(), (bytes.len() - 12) / (32 + 8 + 16));
    assert_eq!(read.shapes[0], shape);
    for end in (0..bytes.len()).filter(|end| *end < 12 || !(end - 12).is_multiple_of(56)).take(500) {
        assert!(Offer::read(&bytes[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn wrong_places_are_refused() {
    let read = |numbers: &[u32]| Places::read(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>(), 100);
    assert_eq!(read(&[]).map(|places| places.bytes()), Some(0));
    assert_eq!(read(&[0, 8, 8, 100]).map(|places| (places.count(), places.bytes())), Some((2, 100)));
    for wrong in [&[0][..], &[4, 4], &[5, 4], &[0, 101], &[0, 8, 7, 9], &[8, 9, 0, 1], &[0, u32::MAX]] {
        assert_eq!(read(wrong), None, "{wrong:?}");
    }
    let many: Vec<u32> = (0..=2 * crate::limits::STORED_INPUTS_MAX as u32 + 1).collect();
    assert_eq!(Places::read(&many.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>(), 1 << 20), None);
}

#[test]
fn a_server_refuses_functions_that_it_does_not_have() {
    let mut shelf = Shelf::default();
    let records = run(1, 2, 3);
    let inputs = [8u32, 12].map(u32::to_le_bytes).concat();
    let why = |refused: Result<(), Refused>| refused.expect_err("an error").to_string();
    let ends = |refused: Result<(), Refused>, expected: &str| {
        let text = why(refused);
        assert!(text.starts_with("the client's stored function ") && text.ends_with(expected), "{text}");
    };
    ends(shelf.store(1, &inputs, &records).map(drop), "1 is more than the session may have");
    shelf.allow(&Offer { functions: 2, bytes: 2 * records.len() as u64 - 1, shapes: Vec::new() });
    ends(shelf.store(1, &inputs[1..], &records).map(drop), "has places of inputs that are not valid");
    shelf.store(1, &inputs, &records).expect("room");
    ends(shelf.store(1, &inputs, &records).map(drop), "is stored already");
    ends(shelf.store(2, &inputs, &records).map(drop), "is more than the session may have");
    shelf.store(2, &[], &records[..36]).expect("room");
    ends(shelf.store(3, &[], &[]).map(drop), "is more than the session may have");
    ends(shelf.take(3, &[]).map(drop), "3 is not stored");
    ends(shelf.take(1, &[0; 3]).map(drop), "is called with inputs of another size");
    ends(shelf.remove(3), "is dropped and not stored");
    let taken = shelf.take(1, &[0xff; 4]).expect("it is stored");
    assert_eq!((&taken[8..12], &taken[12..]), (&[0xff; 4][..], &records[12..]));
    shelf.put_back(1, taken);
    shelf.remove(1).expect("it is stored");
    assert_eq!(shelf.size(), (1, 36));
}

#[test]
fn shapes_are_kinds_and_sizes() {
    let (one, other) = (run(1, 2, 3), run(4, 5, 3));
    assert_eq!((shape(&one), digest(&one)), (shape(&other), digest(&other)));
    assert_eq!(shape(&one).map(|(_, calls)| calls), Some(6));
    assert_ne!(digest(&one), digest(&run(1, 2, 4)));
    let sizes = [4, 8].map(|bytes| message(&[Record::CopyIn { stream: 0, to: 0, bytes: &[0; 8][..bytes] }]));
    assert_ne!(digest(&sizes[0]), digest(&sizes[1]));
}
