//! A fleet of fake engines in which executors are lost, hang and are replaced: the requests of such a
//! device go to another one, once, and every request is answered exactly once.

use crate::pool::{Answered, answer, held, pool, submit};
use crate::support::{Notes, bundle, chain, load, options};
use atoll_core::rng::Rng;
use atoll_engine::{ChainRequest, Class, InputTensor, InvokeError, StageInput};
use atoll_fleet::{FleetHandle, Inference};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn killed() -> Result<(), InvokeError> {
    Err(InvokeError::ExecutorLost("executor 1 was killed".into()))
}

/// A pool with a function `f`, which is on all devices.
fn pool_with_f(devices: usize) -> (FleetHandle, Vec<Arc<Notes>>) {
    let (fleet, notes) = pool(devices, "cost");
    load(&fleet, "f", &bundle("t", 10, 0), None).unwrap();
    (fleet, notes)
}

/// The only device that holds requests.
fn busy(notes: &[Arc<Notes>]) -> usize {
    let busy: Vec<usize> = (0..notes.len()).filter(|at| held(notes)[*at] > 0).collect();
    assert_eq!(busy.len(), 1, "{busy:?}");
    busy[0]
}

fn is_movable(notes: &Notes) -> bool {
    notes.is_movable.load(SeqCst)
}

/// Answers all requests, also those that wait.
fn answer_all(notes: &[Arc<Notes>]) {
    while held(notes).iter().sum::<usize>() > 0 {
        notes.iter().filter(|notes| !notes.held.lock().unwrap().is_empty()).for_each(|notes| notes.answer(Ok(())));
    }
}

#[test]
fn a_request_whose_executor_is_lost_goes_to_another_device_once() {
    for class in [Class::BestEffort, Class::RealTime] {
        let (fleet, notes) = pool_with_f(3);
        let request = ChainRequest { class: Some(class), ..chain(&["f"]) };
        let answered = submit(&fleet, request.clone()).1;
        let first = busy(&notes);
        assert!(is_movable(&notes[first]));
        notes[first].answer(killed());
        let second = busy(&notes);
        assert_ne!(second, first);
        assert!(!is_movable(&notes[second]), "the second device waits for its next executor");
        assert_eq!(fleet.devices_state().devices[first].moved, 1);
        let next = submit(&fleet, request).1;
        assert_eq!(held(&notes)[first], 0, "the device is not chosen for a while");
        notes[second].answer(Err(InvokeError::Device("executor 2 was killed".into())));
        assert_eq!(answer(&answered), Some(InvokeError::Device("executor 2 was killed".into())));
        answer_all(&notes);
        assert_eq!(answer(&next), None);
    }
}

#[test]
fn a_request_that_loses_two_devices_gets_no_third_one() {
    let (fleet, notes) = pool_with_f(3);
    let answered = submit(&fleet, chain(&["f"])).1;
    let first = busy(&notes);
    notes[first].answer(killed());
    notes[busy(&notes)].lose();
    assert_eq!(held(&notes), [0, 0, 0]);
    assert!(answer(&answered).is_some());
}

/// The next request may notice a loss before the engine has answered those that it had.
#[test]
fn requests_that_no_other_device_can_run_are_told_that_theirs_is_lost() {
    let (fleet, notes) = pool_with_f(2);
    load(&fleet, "only", &bundle("t", 10, 0), Some("host:0")).unwrap();
    let answered = submit(&fleet, chain(&["only"])).1;
    notes[0].lost.store(true, SeqCst);
    submit(&fleet, chain(&["f"]));
    assert!(matches!(answer(&answered), Some(InvokeError::DeviceLost(_))));
}

#[test]
fn requests_that_cannot_run_twice_stay_on_their_device() {
    let (fleet, notes) = pool_with_f(2);
    load(&fleet, "only", &bundle("t", 10, 0), Some("host:0")).unwrap();
    submit(&fleet, chain(&["only"]));
    assert!(!is_movable(&notes[0]), "no other device has it");
    let mut large = chain(&["f"]);
    let tensor = InputTensor { dtype: None, shape: vec![], bytes: vec![0; 17 << 20] };
    large.stages[0].inputs = vec![StageInput::Tensor(tensor)];
    submit(&fleet, large);
    let at = usize::from(held(&notes)[1] > 0);
    assert!(!is_movable(&notes[at]), "its inputs are not kept");
    fleet.set_drained("host:1", true).unwrap();
    submit(&fleet, chain(&["f"]));
    assert!(!is_movable(&notes[0]), "the other device is drained");
}

#[test]
fn a_moved_request_keeps_its_deadline_and_is_cancelled_where_it_is() {
    let (fleet, notes) = pool_with_f(2);
    let late = ChainRequest { deadline: Some(Duration::from_millis(1)), ..chain(&["f"]) };
    let answered = submit(&fleet, late).1;
    std::thread::sleep(Duration::from_millis(2));
    notes[busy(&notes)].answer(killed());
    assert_eq!(answer(&answered), Some(InvokeError::DeadlineExceeded));

    let (fleet, notes) = pool_with_f(2);
    let (id, answered) = submit(&fleet, chain(&["f"]));
    notes[busy(&notes)].answer(killed());
    let second = busy(&notes);
    fleet.cancel(id);
    assert_eq!(*notes[second].cancelled.lock().unwrap(), *notes[second].submitted.lock().unwrap());
    notes[second].answer(Err(InvokeError::Cancelled));
    assert_eq!(answer(&answered), Some(InvokeError::Cancelled));

    let (fleet, notes) = pool_with_f(2);
    let (id, answered) = submit(&fleet, chain(&["f"]));
    fleet.cancel(id);
    notes[busy(&notes)].answer(killed());
    assert_eq!(answer(&answered), Some(InvokeError::Cancelled), "no client waits for it");
    assert_eq!(held(&notes), [0, 0]);
}

#[test]
fn a_device_that_hangs_gets_nothing_until_its_executor_is_replaced() {
    let (fleet, notes) = pool_with_f(2);
    let answers: Vec<Answered> = (0..6).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![2, 2], 2));
    // The engine has declared the device hung. It gives back its requests, and those that arrive
    // before the executor is replaced.
    notes[0].is_restarting.store(true, SeqCst);
    (0..2).for_each(|_| notes[0].answer(killed()));
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![0, 2], 4));
    answer_all(&notes);
    assert!(answers.iter().all(|answered| answer(answered).is_none()));
    // Another function is given back by the device as well.
    load(&fleet, "g", &bundle("t", 10, 0), None).unwrap();
    let answers: Vec<Answered> = (0..4).map(|_| submit(&fleet, chain(&["g"])).1).collect();
    assert_eq!((held(&notes), fleet.devices_state().waiting), (vec![0, 2], 2));
    answer_all(&notes);
    assert!(answers.iter().all(|answered| answer(answered).is_none()));
    notes[0].is_restarting.store(false, SeqCst);
    // It is tried again once a second.
    let mut is_back = false;
    while !is_back {
        let answers: Vec<Answered> = (0..3).map(|_| submit(&fleet, chain(&["f"])).1).collect();
        is_back = held(&notes)[0] > 0;
        answer_all(&notes);
        assert!(answers.iter().all(|answered| answer(answered).is_none()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_wait_if_the_executors_of_all_devices_are_being_replaced() {
    let (fleet, notes) = pool_with_f(2);
    notes.iter().for_each(|notes| notes.is_restarting.store(true, SeqCst));
    let answers: Vec<Answered> = (0..2).map(|_| submit(&fleet, chain(&["f"])).1).collect();
    assert_eq!(held(&notes).iter().sum::<usize>(), 2, "one of the devices keeps them until it has an executor");
    let at = busy(&notes);
    (0..2).for_each(|_| notes[at].answer(Ok(())));
    assert!(answers.iter().all(|answered| answer(answered).is_none()));
}

#[test]
fn a_chain_whose_device_or_executor_is_lost_goes_to_another_device_once() {
    for is_device in [false, true] {
        let (fleet, notes) = pool_with_f(3);
        load(&fleet, "g", &bundle("t", 10, 0), None).unwrap();
        let (id, answered) = submit(&fleet, chain(&["f", "g"]));
        let first = busy(&notes);
        assert_eq!(fleet.place_of(id).map(|device| usize::from(device.0)), Some(first));
        if is_device {
            notes[first].lose()
        } else {
            notes[first].answer(killed())
        }
        let second = busy(&notes);
        assert_ne!(second, first);
        assert_eq!(fleet.place_of(id).map(|device| usize::from(device.0)), Some(second));
        assert_eq!(fleet.devices_state().devices[first].moved, 1);
        assert!(!is_movable(&notes[second]));
        let next = submit(&fleet, chain(&["f", "g"])).1;
        assert_eq!(held(&notes)[first], 0, "the device is not chosen for a while");
        fleet.cancel(id);
        assert_eq!(notes[second].cancelled.lock().unwrap().len(), 1);
        notes[second].answer(Err(InvokeError::Device("executor 2 was killed".into())));
        assert!(answer(&answered).is_some(), "it is not given to a third device");
        assert_eq!(fleet.place_of(id), None, "it has ended");
        notes[busy(&notes)].answer(Ok(()));
        assert_eq!(answer(&next), None);
    }
}

#[test]
fn a_chain_keeps_its_deadline_and_is_not_moved_if_it_is_cancelled() {
    let (fleet, notes) = pool_with_f(2);
    load(&fleet, "g", &bundle("t", 10, 0), None).unwrap();
    let late = ChainRequest { deadline: Some(Duration::ZERO), ..chain(&["f", "g"]) };
    let answered = submit(&fleet, late).1;
    notes[busy(&notes)].answer(killed());
    assert_eq!(answer(&answered), Some(InvokeError::DeadlineExceeded));
    let (id, answered) = submit(&fleet, chain(&["f", "g"]));
    fleet.cancel(id);
    notes[busy(&notes)].answer(killed());
    assert!(answer(&answered).is_some());
    assert_eq!(held(&notes), [0, 0]);
}

#[test]
fn a_thousand_kills_under_load_lose_no_request_and_answer_none_twice() {
    let (fleet, notes) = pool(4, "cost");
    let (mut rng, mut open) = (Rng::new(1), Vec::new());
    for round in 0..1_000 {
        // Devices give back the first requests of each function.
        let name = format!("f{round}");
        fleet.load(bundle("t", 10, 0), options(&name), None).unwrap();
        for _ in 0..=rng.below(6) {
            let functions = [&name[..]].repeat(1 + rng.below(2) as usize);
            let class = if rng.one_in(3) { Class::RealTime } else { Class::BestEffort };
            open.push(submit(&fleet, ChainRequest { class: Some(class), ..chain(&functions) }).1);
        }
        let victim = &notes[rng.below(4) as usize];
        victim.is_restarting.store(true, SeqCst);
        victim.give_back();
        victim.is_restarting.store(rng.one_in(2), SeqCst);
        for notes in notes.iter().filter(|notes| !notes.is_restarting.load(SeqCst)) {
            let answers = rng.below(4).min(notes.held.lock().unwrap().len() as u64);
            (0..answers).for_each(|_| notes.answer(Ok(())));
        }
        open.retain(|answered: &Answered| match answered.try_recv() {
            Ok(error) => {
                assert_eq!(error, None, "round {round}");
                assert!(answered.try_recv().is_err(), "it is answered once");
                false
            }
            Err(_) => true,
        });
    }
    notes.iter().for_each(|notes| notes.is_restarting.store(false, SeqCst));
    answer_all(&notes);
    assert!(open.iter().all(|answered| answer(answered).is_none()));
    assert_eq!(fleet.devices_state().waiting, 0);
}

#[test]
fn a_loss_is_visible_before_the_pool_has_an_event() {
    let (fleet, notes) = pool_with_f(2);
    let lost = || fleet.devices_state().devices.iter().map(|device| device.is_lost).collect::<Vec<_>>();
    assert_eq!(lost(), [false, false]);
    notes[1].lose();
    assert_eq!(lost(), [false, true]);
}
