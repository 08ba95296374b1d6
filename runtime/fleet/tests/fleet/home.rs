//! A fleet of fake engines in which each function has one device: placement of functions, routing of
//! requests and cancellations, and lost devices.

use crate::support::{Notes, bundle, chain, fleet, ignore, load};
use atoll_core::DeviceId;
use atoll_engine::{EngineError, FunctionKey, InvocationId, InvokeError};
use atoll_fleet::{Fleet, FleetError, Inference, Placing};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

#[test]
fn functions_go_to_the_emptiest_device_unless_they_name_one() {
    let (fleet, notes) = fleet(&["t", "t"], Placing::Home);
    let (small, large) = (bundle("t", 100, 1), bundle("t", 1000, 2));
    assert_eq!(load(&fleet, "large", &large, None).unwrap(), 0, "both are empty");
    assert_eq!(load(&fleet, "a", &small, None).unwrap(), 1);
    assert_eq!(load(&fleet, "b", &bundle("t", 100, 3), None).unwrap(), 1, "200 bytes are fewer than 1000");
    assert_eq!(load(&fleet, "pinned", &large, Some("host:1")).unwrap(), 1);
    assert_eq!(load(&fleet, "c", &small, None).unwrap(), 0);
    let places = notes.iter().map(|notes| notes.loaded.lock().unwrap().len()).collect::<Vec<_>>();
    assert_eq!(places, [2, 3]);
    assert_eq!(
        fleet.statistics().iter().map(|engine| engine.preemptions).collect::<Vec<_>>(),
        [2, 3],
        "in the order of the devices"
    );
}

#[test]
fn equal_constants_on_a_device_count_once_and_code_counts() {
    let (fleet, _) = fleet(&["t", "t"], Placing::Home);
    let (shared, other) = (bundle("t", 1000, 1), bundle("t", 1500, 2));
    assert_eq!(load(&fleet, "a", &shared, Some("host:0")).unwrap(), 0);
    assert_eq!(load(&fleet, "b", &shared, Some("host:0")).unwrap(), 0);
    assert_eq!(load(&fleet, "c", &other, Some("host:1")).unwrap(), 1);
    assert_eq!(
        load(&fleet, "d", &bundle("t", 0, 0), None).unwrap(),
        0,
        "1002 bytes, and not 2002, are fewer than 1501"
    );
    let (fleet, _) = crate::support::fleet(&["t", "t", "t"], Placing::Home);
    let nothing = bundle("t", 0, 0);
    let places: Vec<u16> =
        ["a", "b", "c", "d"].into_iter().map(|name| load(&fleet, name, &nothing, None).unwrap()).collect();
    assert_eq!(places, [0, 1, 2, 0], "functions without constants are spread by their code");
}

#[test]
fn a_function_goes_where_its_code_runs() {
    let (fleet, notes) = fleet(&["x", "y"], Placing::Home);
    assert_eq!(load(&fleet, "a", &bundle("y", 10, 0), None).unwrap(), 1);
    assert_eq!(load(&fleet, "b", &bundle("y", 10, 1), None).unwrap(), 1, "although the other is empty");
    let refused = load(&fleet, "c", &bundle("z", 0, 0), None).unwrap_err();
    assert!(matches!(refused, EngineError::NoTarget { .. }), "{refused}");
    assert_eq!(load(&fleet, "c", &bundle("x", 0, 0), None).unwrap(), 0, "a rejected function leaves no placement");
    assert_eq!(notes[0].loaded.lock().unwrap().len(), 1);
}

#[test]
fn names_are_unique_in_the_fleet_and_devices_are_checked() {
    let (fleet, _) = fleet(&["t", "t"], Placing::Home);
    let f = bundle("t", 10, 0);
    load(&fleet, "f", &f, Some("host:1")).unwrap();
    for device in [None, Some("host:0"), Some("host:1")] {
        assert!(matches!(load(&fleet, "f", &f, device), Err(EngineError::AlreadyLoaded(_))), "{device:?}");
    }
    let unknown = load(&fleet, "g", &f, Some("cuda:0")).unwrap_err();
    assert_eq!(unknown.to_string(), "there is no device `cuda:0`; choose one of: host:0, host:1");
    fleet.unload(&FunctionKey::local("f")).unwrap();
    assert!(matches!(fleet.unload(&FunctionKey::local("f")), Err(EngineError::NotLoaded(_))));
    assert_eq!(load(&fleet, "f", &f, Some("host")).unwrap(), 0, "a kind alone means the first of it");
}

#[test]
fn requests_go_to_the_device_of_their_function_and_cancellations_follow_by_the_id() {
    let (fleet, notes) = fleet(&["t", "t", "t"], Placing::Home);
    let f = bundle("t", 10, 0);
    for device in 0..3 {
        load(&fleet, &format!("f{device}"), &f, Some(&format!("host:{device}"))).unwrap();
    }
    for device in [2_usize, 0, 1, 2] {
        let function = format!("f{device}");
        let id = fleet.submit(chain(&[&function, &function]), ignore());
        assert_eq!(DeviceId::of_id(id.0), DeviceId(device as u16));
        fleet.cancel(id);
        assert_eq!(notes[device].cancelled.lock().unwrap().last(), Some(&id));
        assert_eq!(fleet.trace(DeviceId(device as u16), Some(5)).unwrap().device, format!("host:{device}"));
    }
    let counts = |of: fn(&Notes) -> usize| notes.iter().map(|notes| of(notes)).collect::<Vec<_>>();
    assert_eq!(counts(|notes| notes.submitted.lock().unwrap().len()), [1, 1, 2]);
    assert_eq!(counts(|notes| notes.cancelled.lock().unwrap().len()), [1, 1, 2]);
    fleet.cancel(InvocationId(DeviceId(3).first_id()));
    assert_eq!(counts(|notes| notes.cancelled.lock().unwrap().len()), [1, 1, 2], "no device has that");
    assert!(fleet.trace(DeviceId(3), None).is_none());
}

#[test]
fn a_chain_across_devices_is_refused_and_told_where_each_function_is() {
    let (fleet, notes) = fleet(&["t", "t"], Placing::Home);
    let f = bundle("t", 10, 0);
    load(&fleet, "a", &f, Some("host:0")).unwrap();
    load(&fleet, "b", &f, Some("host:1")).unwrap();
    let refused = |functions: &[&str]| {
        let (answer, answered) = mpsc::channel();
        let id = fleet.submit(chain(functions), Box::new(move |result| answer.send(result.map(drop)).unwrap()));
        fleet.cancel(id);
        answered.try_recv().expect("it is answered at once").unwrap_err()
    };
    let InvokeError::BadInput(message) = refused(&["a", "a", "b"]) else { panic!("another error") };
    assert!(message.contains("one device: `a` is on host:0, `a` is on host:0, `b` is on host:1"), "{message}");
    assert_eq!(refused(&["a", "c"]), InvokeError::UnknownFunction);
    assert!(
        notes
            .iter()
            .all(|notes| notes.submitted.lock().unwrap().is_empty() && notes.cancelled.lock().unwrap().is_empty())
    );
}

#[test]
fn nothing_is_placed_on_a_lost_device_and_the_other_goes_on() {
    let (fleet, notes) = fleet(&["t", "t"], Placing::Home);
    load(&fleet, "a", &bundle("t", 10, 0), Some("host:0")).unwrap();
    load(&fleet, "b", &bundle("t", 1000, 1), Some("host:1")).unwrap();
    notes[0].lost.store(true, SeqCst);
    assert_eq!(load(&fleet, "c", &bundle("t", 10, 2), None).unwrap(), 1, "although it is fuller");
    let id = fleet.submit(chain(&["b"]), ignore());
    assert_eq!(DeviceId::of_id(id.0), DeviceId(1));
    fleet.unload(&FunctionKey::local("a")).unwrap();
    assert_eq!(
        load(&fleet, "a", &bundle("t", 10, 0), None).unwrap(),
        1,
        "a function of the lost device finds another one"
    );
}

#[test]
fn a_fleet_of_nothing_does_not_start() {
    assert!(matches!(Fleet::start(vec![], &Default::default(), Placing::Home), Err(FleetError::NoDevice)));
}
