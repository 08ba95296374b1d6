//! The pool's view of constants: what the engines load, reclaim and report decides where requests
//! go.

use crate::pool::{Answered, answer, held, placing, pool, submit};
use crate::support::{Notes, bundle, chain, fleet_of, load};
use atoll_core::DeviceId;
use atoll_core::placement::Why;
use atoll_engine::{FunctionKey, InvokeError};
use atoll_fleet::{FleetHandle, Inference};
use atoll_trace::EventKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Loads take so long that no request waits as long.
const LOAD_NS: u64 = 3_600_000_000_000;

/// Two devices without constants, and a function `f`.
fn empty() -> (FleetHandle, Vec<Arc<Notes>>) {
    let (fleet, notes) = pool(2, "cost");
    notes.iter().for_each(|notes| notes.is_empty.store(true, SeqCst));
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    notes.iter().for_each(|notes| notes.is_empty.store(false, SeqCst));
    (fleet, notes)
}

/// The devices of the latest placements, and the reasons.
fn placed(fleet: &FleetHandle) -> Vec<(u32, Why)> {
    let records = fleet.trace(DeviceId(2), Some(0)).expect("the pool has a trace").records;
    let place = |kind| match kind {
        EventKind::Placed { device, why, .. } => (device, why),
        other => panic!("{other:?}"),
    };
    records.into_iter().map(|record| place(record.kind)).collect()
}

/// Submits a request and answers it at once. Returns where it was and why.
fn call(fleet: &FleetHandle, notes: &[Arc<Notes>], load_ns: u64) -> (usize, Why) {
    let answered = submit(fleet, chain(&["f"])).1;
    let (device, why) = *placed(fleet).last().expect("it was placed");
    notes[device as usize].answer_after(load_ns, 1_000, Ok(()));
    assert_eq!(answer(&answered), None);
    (device as usize, why)
}

#[test]
fn requests_go_to_the_device_that_reports_the_constants() {
    let (fleet, notes) = empty();
    let (first, why) = call(&fleet, &notes, LOAD_NS);
    assert_eq!(why, Why::Load);
    assert_eq!(call(&fleet, &notes, 0), (first, Why::Holder));
    notes[first].report("f", false);
    notes[1 - first].report("f", true);
    assert_eq!(call(&fleet, &notes, 0), (1 - first, Why::Holder), "they have moved");
    notes[1 - first].report("f", false);
    assert_eq!(call(&fleet, &notes, 0).1, Why::Load, "they are nowhere");
    notes[0].report("unknown", true);
    call(&fleet, &notes, 0);
}

#[test]
fn a_load_ahead_is_carried_out_and_taken_back_if_it_fails() {
    let (fleet, notes) = empty();
    let (first, _) = call(&fleet, &notes, LOAD_NS);
    let other = 1 - first;
    let on =
        |first_count, other_count| if first == 0 { [first_count, other_count] } else { [other_count, first_count] };
    // The third request waits for the holder, and the function is loaded onto the other device.
    let answers: Vec<Answered> = (0..3).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    assert_eq!(held(&notes), on(2, 0));
    assert_eq!(*notes[other].preloaded.lock().unwrap(), [FunctionKey::local("f")]);
    assert!(notes[first].preloaded.lock().unwrap().is_empty());
    notes[other].report("f", false);
    let fourth = submit(&fleet, chain(&["f"])).1;
    assert_eq!(held(&notes), on(2, 0), "there was no memory for it, so the requests wait");
    assert_eq!(notes[other].preloaded.lock().unwrap().len(), 2, "it is tried again");
    notes[other].report("f", true);
    let fifth = submit(&fleet, chain(&["f"])).1;
    assert_eq!((held(&notes), fleet.devices_state().waiting), (on(2, 2).into(), 1));
    (0..2).for_each(|_| notes[first].answer(Ok(())));
    (0..2).for_each(|_| notes[other].answer(Ok(())));
    notes[held(&notes).iter().position(|held| *held == 1).expect("one is left")].answer(Ok(()));
    assert!(answers.iter().chain([&fourth, &fifth]).all(|answered| answer(answered).is_none()));
}

#[test]
fn a_device_that_failed_a_request_before_it_loaded_anything_holds_nothing() {
    let (fleet, notes) = empty();
    let answered = submit(&fleet, chain(&["f"])).1;
    let (device, _) = *placed(&fleet).last().expect("it was placed");
    notes[device as usize].is_empty.store(true, SeqCst);
    notes[device as usize].answer(Err(InvokeError::DeadlineExceeded));
    assert!(answer(&answered).is_some());
    assert_eq!(call(&fleet, &notes, 0).1, Why::Load, "no device holds it");
}

#[test]
fn replicas_are_reclaimed_for_functions_that_do_not_fit() {
    let notes: Vec<Arc<Notes>> = (0..2).map(|_| Arc::default()).collect();
    // Memory for two functions on each device.
    notes.iter().for_each(|notes| notes.memory_bytes.store(20, SeqCst));
    let fleet = fleet_of(&["t", "t"], placing("cost"), &notes);
    for name in ["a", "b"] {
        load(&fleet, name, &bundle("t", 10, 0), None).unwrap();
    }
    notes.iter().for_each(|notes| notes.is_empty.store(true, SeqCst));
    load(&fleet, "c", &bundle("t", 10, 0), None).unwrap();
    submit(&fleet, chain(&["c"]));
    let device = held(&notes).iter().position(|held| *held == 1).expect("it was submitted");
    assert_eq!(*notes[device].reclaimed.lock().unwrap(), [FunctionKey::local("a")], "another device has it, too");
    let counts = fleet.devices_state().decisions;
    assert!(counts.placed().any(|(why, count)| (why, count) == ("load", 1)), "{counts:?}");
}

#[test]
fn a_slow_device_that_holds_the_constants_does_not_get_what_a_fast_one_finishes_sooner() {
    let notes: Vec<Arc<Notes>> = (0..2).map(|_| Arc::default()).collect();
    for (notes, kind) in notes.iter().zip(["cpu", "gpu"]) {
        *notes.kind.lock().unwrap() = kind.into();
    }
    let fleet = fleet_of(&["t", "t"], placing("cost"), &notes);
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    // Hours, so that no request waits as long as the slow device takes.
    let run_ns = [50 * LOAD_NS, LOAD_NS];
    let call = || {
        let answered = submit(&fleet, chain(&["f"])).1;
        let device = placed(&fleet).last().expect("it was placed").0 as usize;
        notes[device].answer_after(0, run_ns[device], Ok(()));
        assert_eq!(answer(&answered), None);
        device
    };
    let tried: Vec<usize> = (0..5).map(|_| call()).collect();
    assert_eq!(tried.iter().filter(|device| **device == 0).count(), 1, "each kind is tried: {tried:?}");
    notes[1].report("f", false);
    assert_eq!(call(), 1, "it is loaded there");
    let answers: Vec<Answered> = (0..4).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![0, 2], 2), "the slow one stays idle");
    (0..4).for_each(|_| notes[1].answer(Ok(())));
    assert!(answers.iter().all(|answered| answer(answered).is_none()));
}
