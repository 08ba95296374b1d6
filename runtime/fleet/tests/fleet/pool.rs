//! A fleet of fake engines with one queue for all of them: late binding, lost and drained devices,
//! cancellations, deadlines and full queues. Every request is answered exactly once.

use crate::support::{Notes, bundle, chain, fleet, ignore, load, options};
use atoll_core::DeviceId;
use atoll_core::placement::{PoolConfig, Why, placement_by_name};
use atoll_core::scaling::{self, Decision};
use atoll_engine::{ChainRequest, Class, FunctionKey, FunctionOptions, InvokeError};
use atoll_fleet::{FleetHandle, Inference, Placing};
use atoll_trace::{EventKind, Record};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub(crate) type Answered = mpsc::Receiver<Option<InvokeError>>;

pub(crate) fn pool(devices: usize, policy: &'static str) -> (FleetHandle, Vec<Arc<Notes>>) {
    fleet(&vec!["t"; devices], placing(policy))
}

pub(crate) fn placing(policy: &str) -> Placing {
    Placing::Pool(PoolConfig::new(placement_by_name(policy).unwrap()))
}

pub(crate) fn submit(fleet: &FleetHandle, request: ChainRequest) -> (atoll_engine::InvocationId, Answered) {
    let (answer, answered) = mpsc::channel();
    let id = fleet.submit(request, Box::new(move |result| answer.send(result.err()).unwrap()));
    (id, answered)
}

pub(crate) fn held(notes: &[Arc<Notes>]) -> Vec<usize> {
    notes.iter().map(|notes| notes.held.lock().unwrap().len()).collect()
}

/// The answer. Exactly one must have come.
pub(crate) fn answer(answered: &Answered) -> Option<InvokeError> {
    let answer = answered.try_recv().expect("it is answered");
    assert!(answered.try_recv().is_err(), "and only once");
    answer
}

#[test]
fn requests_wait_for_the_device_that_is_free_first() {
    for policy in ["cost", "balance", "srtf"] {
        let (fleet, notes) = pool(2, policy);
        let placed = fleet.load(bundle("t", 10, 0), options("f"), None).unwrap();
        assert_eq!(placed.devices.len(), 2, "{policy}");
        let answers: Vec<Answered> = (0..6).map(|_| submit(&fleet, chain(&["f"])).1).collect();
        assert_eq!(held(&notes), [2, 2], "{policy}: two for each device, and two wait");
        assert_eq!(fleet.devices_state().waiting, 2, "{policy}");
        notes[1].answer(Ok(()));
        notes[1].answer(Ok(()));
        assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![2, 2], 0), "{policy}");
        (0..2).for_each(|_| notes.iter().for_each(|notes| notes.answer(Ok(()))));
        assert!(answers.iter().all(|answered| answer(answered).is_none()), "{policy}");
    }
}

#[test]
fn requests_with_strings_are_submitted_on_threads_of_their_own() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    assert!(!fleet.encodes(&chain(&["f"])));
    notes.iter().for_each(|notes| notes.encodes.store(true, SeqCst));
    assert!(fleet.encodes(&chain(&["f"])));
    let begin = Instant::now();
    let wait_for = |count: usize| {
        while held(&notes).iter().sum::<usize>() < count {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", held(&notes));
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let answers: Vec<Answered> = (0..5).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    wait_for(4);
    // This thread answers, as that of an engine does, and does not submit the one that waits.
    notes[0].answer(Ok(()));
    wait_for(4);
    (0..2).for_each(|_| notes.iter().for_each(|notes| notes.answer(Ok(()))));
    assert!(answers.iter().all(|answered| answer(answered).is_none()));
    let submitters = notes.iter().flat_map(|notes| notes.submitters.lock().unwrap().clone());
    let submitters: Vec<_> = submitters.collect();
    assert!(submitters.len() == 5 && !submitters.contains(&std::thread::current().id()));
}

#[test]
fn the_trace_says_where_requests_went_and_why() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    assert_eq!(fleet.traced(), ["host:0", "host:1", "pool"]);
    (0..5).for_each(|_| drop(submit(&fleet, chain(&["f"]))));
    fleet.submit_to(DeviceId(1), Why::Hedged, chain(&["f"]), ignore());
    assert_eq!(held(&notes), [2, 3], "a given device is not asked for a slot");
    let batch = fleet.trace(DeviceId(2), Some(0)).expect("the pool has a trace");
    let places: Vec<(u32, Why)> = batch
        .records
        .iter()
        .map(|record| match record.kind {
            EventKind::Placed { device, why, policy, arrived, .. } => {
                assert_eq!(policy, 0, "cost is the first policy");
                assert!(arrived <= record.at);
                (device, why)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    // The constants are on both devices. Each device gets two requests, and one request waits.
    assert_eq!(places.iter().filter(|(_, why)| *why == Why::Holder).count(), 4, "{places:?}");
    assert_eq!(places.last(), Some(&(1, Why::Hedged)));
    assert_eq!((batch.device.as_str(), batch.next, batch.functions.len()), ("pool", 5, 1));
    assert_eq!((batch.functions[0].1.tenant.as_str(), batch.functions[0].1.name.as_str()), ("local", "f"));
    assert!(fleet.trace(DeviceId(2), Some(5)).unwrap().records.is_empty());
    let decision = Decision { why: scaling::Why::Load, load: 9, capacity: 4, ..Decision::default() };
    fleet.note_scaled(&FunctionKey::local("f"), &decision);
    fleet.note_scaled(&FunctionKey::local("unknown"), &decision);
    let noted = fleet.trace(DeviceId(2), Some(5)).unwrap().records;
    let [Record { kind: EventKind::Scaled { why: scaling::Why::Load, load: 9, capacity: 4, .. }, .. }] = noted[..]
    else {
        panic!("{noted:?}")
    };
    assert!(fleet.trace(DeviceId(3), None).is_none());
    fleet.set_drained("host:1", true).unwrap();
    let (reply, answered) = mpsc::channel();
    let reply: atoll_engine::Reply = Box::new(move |result| reply.send(result.err()).unwrap());
    fleet.submit_to(DeviceId(1), Why::Reserved, chain(&["f"]), reply);
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![2, 3], 1), "no other device gets it");
    let refused = answer(&answered).expect("an error").to_string();
    assert!(refused.contains("host:1, which was chosen for it, is drained"), "{refused}");
}

#[test]
fn a_request_in_flight_has_a_place_and_its_function_another_device() {
    let (fleet, notes) = pool(3, "cost");
    let f = FunctionKey::local("f");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    load(&fleet, "only", &bundle("t", 10, 0), Some("host:0")).unwrap();
    let (id, _answered) = submit(&fleet, chain(&["f"]));
    let at = fleet.place_of(id).expect("it is on a device");
    assert_eq!(held(&notes)[usize::from(at.0)], 1);
    let other = fleet.other_device(&f, at).expect("two others have it");
    assert_ne!(other, at);
    fleet.set_drained(&format!("host:{}", other.0), true).unwrap();
    let third = fleet.other_device(&f, at).expect("one other takes requests");
    assert!(![at, other].contains(&third));
    notes[usize::from(third.0)].lose();
    submit(&fleet, chain(&["f"]));
    assert_eq!(fleet.other_device(&f, at), None);
    assert_eq!(fleet.other_device(&FunctionKey::local("only"), DeviceId(0)), None);
    notes[usize::from(at.0)].answer(Ok(()));
    assert_eq!(fleet.place_of(id), None, "it has ended");
}

#[test]
fn real_time_requests_do_not_wait_in_the_pool() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    (0..5).for_each(|_| drop(submit(&fleet, ChainRequest { class: Some(Class::RealTime), ..chain(&["f"]) })));
    assert_eq!((held(&notes).iter().sum::<usize>(), fleet.devices_state().waiting), (5, 0));
}

#[test]
fn the_requests_of_a_lost_device_go_to_another_one() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    load(&fleet, "only", &bundle("t", 10, 0), Some("host:0")).unwrap();
    let answers: Vec<Answered> = (0..4).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    assert_eq!(held(&notes), [2, 2]);
    notes[0].lose();
    let alone = submit(&fleet, chain(&["only"])).1;
    assert!(answer(&alone).is_some(), "its only device is lost");
    let state = fleet.devices_state();
    assert_eq!((state.devices[0].is_lost, state.devices[0].moved, state.devices[1].in_flight), (true, 2, 2));
    (0..4).for_each(|_| notes[1].answer(Ok(())));
    assert!(answers.iter().all(|answered| answer(answered).is_none()));
    // With all devices lost, requests are answered, and none is submitted.
    let last = submit(&fleet, chain(&["f"])).1;
    notes[1].lose();
    assert!(answer(&last).is_some());
    assert!(answer(&submit(&fleet, chain(&["f"])).1).is_some());
}

#[test]
fn a_drained_device_gets_nothing_new_until_it_is_resumed() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    load(&fleet, "only", &bundle("t", 10, 0), Some("host:0")).unwrap();
    fleet.set_drained("host:0", true).unwrap();
    (0..4).for_each(|_| drop(submit(&fleet, chain(&["f"]))));
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![0, 2], 2));
    let refused = answer(&submit(&fleet, chain(&["only"])).1).unwrap().to_string();
    assert!(refused.contains("it is only on host:0, which is drained"), "{refused}");
    fleet.set_drained("host:0", false).unwrap();
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![2, 2], 0));
    assert!(fleet.set_drained("host:7", true).is_err());
}

#[test]
fn waiting_requests_end_by_cancellation_deadline_unloading_and_a_full_queue() {
    let (fleet, notes) = pool(2, "balance");
    load(&fleet, "busy", &bundle("t", 10, 0), None).unwrap();
    fleet.load(bundle("t", 10, 0), FunctionOptions { queue_capacity: Some(1), ..options("f") }, None).unwrap();
    (0..4).for_each(|_| drop(submit(&fleet, chain(&["busy"]))));
    let (id, waiting) = submit(&fleet, chain(&["f"]));
    let full = submit(&fleet, chain(&["f"])).1;
    assert_eq!(answer(&full), Some(InvokeError::QueueFull { capacity: 1 }));
    fleet.cancel(id);
    assert_eq!(answer(&waiting), Some(InvokeError::Cancelled));
    let late = submit(&fleet, ChainRequest { deadline: Some(Duration::from_millis(1)), ..chain(&["f"]) }).1;
    let error = late.recv_timeout(Duration::from_secs(60)).expect("the pool's thread answers");
    assert_eq!(error, Some(InvokeError::DeadlineExceeded));
    let waiting = submit(&fleet, chain(&["f"])).1;
    fleet.unload(&FunctionKey::local("f")).unwrap();
    assert_eq!(answer(&waiting), Some(InvokeError::Unloaded));
    assert_eq!(held(&notes), [2, 2], "the devices were busy all the time");
}

#[test]
fn a_request_in_flight_is_cancelled_on_its_device() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    let (id, answered) = submit(&fleet, chain(&["f"]));
    fleet.cancel(id);
    let at = held(&notes).iter().position(|held| *held == 1).unwrap();
    assert_eq!(*notes[at].cancelled.lock().unwrap(), *notes[at].submitted.lock().unwrap());
    notes[at].answer(Err(InvokeError::Cancelled));
    assert_eq!(answer(&answered), Some(InvokeError::Cancelled));
    fleet.cancel(id);
}

#[test]
fn many_requests_that_fail_at_once_do_not_nest() {
    let (fleet, notes) = pool(2, "balance");
    // The queue is so long that nested calls would overflow the stack.
    let options = FunctionOptions { queue_capacity: Some(20_000), ..options("f") };
    fleet.load(bundle("t", 1, 0), options, None).unwrap();
    let answers: Vec<Answered> = (0..20_000).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    notes.iter().for_each(|notes| notes.refuses.store(true, SeqCst));
    (0..2).for_each(|_| notes.iter().for_each(|notes| notes.answer(Ok(()))));
    let failed = answers.iter().filter(|answered| answer(answered).is_some()).count();
    assert_eq!(failed, 19_996, "all but those in flight");
}

#[test]
fn a_device_that_cannot_take_a_function_is_left_out() {
    let (fleet, notes) = pool(2, "cost");
    notes[1].is_full.store(true, SeqCst);
    let placed = fleet.load(bundle("t", 10, 0), options("f"), None).unwrap();
    assert_eq!(placed.devices.iter().map(|device| device.0).collect::<Vec<_>>(), [0]);
    notes[0].is_full.store(true, SeqCst);
    load(&fleet, "g", &bundle("t", 10, 0), None).unwrap_err();
    assert!(matches!(fleet.unload(&FunctionKey::local("g")), Err(atoll_engine::EngineError::NotLoaded(_))));
    fleet.submit(chain(&["f"]), ignore());
    assert_eq!(held(&notes), [1, 0]);
}

#[test]
fn a_function_of_a_lost_device_is_loaded_elsewhere() {
    for is_lost in [true, false] {
        let (fleet, notes) = pool(2, "cost");
        notes[1].is_full.store(true, SeqCst);
        load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
        load(&fleet, "pinned", &bundle("t", 10, 0), Some("host:0")).unwrap();
        if is_lost {
            notes[0].lose();
        } else {
            fleet.set_drained("host:0", true).unwrap();
        }
        let wait = |answered: &Answered| answered.recv_timeout(Duration::from_secs(60)).expect("an answer");
        assert!(wait(&submit(&fleet, chain(&["f"])).1).is_some(), "there is no room for it yet");
        notes[1].is_full.store(false, SeqCst);
        // It is tried again once a second. A request that waits for it is held in the end.
        let answered = loop {
            let answered = submit(&fleet, chain(&["f"])).1;
            match answered.recv_timeout(Duration::from_millis(10)) {
                Ok(error) => assert!(error.is_some()),
                Err(_) => break answered,
            }
        };
        while held(&notes)[1] == 0 {
            std::thread::yield_now();
        }
        notes[1].answer(Ok(()));
        assert_eq!(wait(&answered), None);
        assert_eq!(*notes[1].loaded.lock().unwrap(), [FunctionKey::local("f")]);
        let second = submit(&fleet, chain(&["f"])).1;
        assert_eq!(held(&notes), [0, 1], "it is a function of the pool there");
        notes[1].answer(Ok(()));
        assert_eq!(wait(&second), None);
        assert!(wait(&submit(&fleet, chain(&["pinned"])).1).is_some(), "it names the device");
        fleet.unload(&FunctionKey::local("f")).unwrap();
        assert!(notes[1].loaded.lock().unwrap().is_empty());
    }
}

#[test]
fn chains_go_to_a_device_that_has_all_their_functions() {
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "everywhere", &bundle("t", 10, 0), None).unwrap();
    load(&fleet, "pinned", &bundle("t", 10, 0), Some("host:1")).unwrap();
    fleet.submit(chain(&["everywhere", "pinned"]), ignore());
    assert_eq!(held(&notes), [0, 1]);
}

#[test]
fn chains_use_all_devices() {
    let (fleet, notes) = pool(2, "cost");
    ["f", "g"].iter().for_each(|name| _ = load(&fleet, name, &bundle("t", 10, 0), None).unwrap());
    (0..4).for_each(|_| _ = fleet.submit(chain(&["f", "g"]), ignore()));
    assert_eq!(held(&notes), [2, 2]);
    (0..2).for_each(|_| notes[1].answer(Ok(())));
    (0..2).for_each(|_| _ = fleet.submit(chain(&["f", "g"]), ignore()));
    assert_eq!(held(&notes), [2, 2], "those that have ended do not count");
    fleet.set_drained("host:0", true).unwrap();
    fleet.submit(chain(&["f", "g"]), ignore());
    assert_eq!(held(&notes), [2, 3]);
    notes[1].lose();
    let refused = answer(&submit(&fleet, chain(&["f", "g"])).1);
    assert!(refused.is_some(), "one device is drained, and one is lost");
}

#[test]
fn a_device_without_executor_gives_its_requests_to_another_one() {
    let gone = || Err(InvokeError::Unavailable("it was killed".into()));
    let (fleet, notes) = pool(2, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    let answers: Vec<Answered> = (0..4).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    assert_eq!(held(&notes), [2, 2]);
    notes[0].answer(gone());
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![1, 2], 1), "it waits for the other one");
    notes[1].answer(Ok(()));
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![1, 2], 0));
    // The second device refuses as well, while the first one is suspended: the clients get the
    // error.
    notes[0].answer(gone());
    (0..2).for_each(|_| notes[1].answer(gone()));
    while held(&notes).iter().sum::<usize>() > 0 {
        notes.iter().filter(|notes| !notes.held.lock().unwrap().is_empty()).for_each(|notes| notes.answer(gone()));
    }
    let errors: Vec<_> = answers.iter().filter_map(answer).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error, InvokeError::Unavailable(_))), "{errors:?}");
}
