//! CUDA sessions that are suspended to host memory and come back, on the same or another engine.

use crate::fake;
use crate::fake::fallible::FallibleDevice;
use crate::fake::{Controls, FakeDevice, Refusal};
use crate::toy;
use crate::toy::Constants;
use atoll_device::Device;
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

type Answer = Result<InvocationResult, InvokeError>;

/// Bytes of a session: two pieces of a copy. The device has 1 MiB, and sessions may have three
/// quarters of it.
const BYTES: u64 = 300 << 10;

/// Bytes of a flush: two sessions and a flush fit the device.
const THIRD: u64 = BYTES / 3;

const PATIENCE: Duration = Duration::from_secs(20);

/// An engine of a device with this number, with a function that is billed.
fn start(number: u16, suspension: &SuspensionConfig) -> (Engine, EngineHandle, Controls) {
    let (device, controls) = FakeDevice::new(number.into());
    let engine = start_on(device, number, suspension);
    let handle = engine.handle();
    (engine, handle, controls)
}

fn start_on(device: Box<dyn Device>, number: u16, suspension: &SuspensionConfig) -> Engine {
    let config = EngineConfig { device: DeviceId(number), suspension: suspension.clone(), ..EngineConfig::default() };
    let engine = Engine::start(device, config).expect("an engine");
    let options = FunctionOptions {
        key: base(),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    };
    engine.handle().load(toy::bundle_of(&Constants::default(), fake::TARGET, b"fake"), options).expect("a function");
    engine
}

fn base() -> FunctionKey {
    FunctionKey::local("base")
}

/// Sessions leave for others at once.
fn at_once(limits: HostLimits) -> SuspensionConfig {
    SuspensionConfig { idle: Some(Duration::ZERO), host: HostRoom::new(limits) }
}

fn on_request() -> SuspensionConfig {
    SuspensionConfig { idle: None, host: HostRoom::new(HostLimits::UNLIMITED) }
}

fn submit(handle: &EngineHandle, session: SessionId, work: Vec<FlushWork>) -> (InvocationId, Receiver<Answer>) {
    let (send, answer) = channel();
    let request = FlushRequest { work, ..FlushRequest::default() };
    let id = handle.submit_flush(session, request, Box::new(move |result| drop(send.send(result))));
    (id, answer)
}

fn run(handle: &EngineHandle, session: SessionId, work: Vec<FlushWork>) -> Answer {
    submit(handle, session, work).1.recv_timeout(PATIENCE).expect("an answer")
}

/// Contents that differ by session, with zeros in the first piece.
fn contents(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| if at < 200 << 10 { 0 } else { (at as u8).wrapping_mul(31) ^ seed }).collect()
}

/// A session with contents.
fn open(handle: &EngineHandle, seed: u8) -> SessionId {
    let session = handle.open_memory(&base(), BYTES).expect("a session");
    for (at, bytes) in contents(seed).chunks(THIRD as usize).enumerate() {
        let work = FlushWork::CopyIn { to: at as u64 * THIRD, bytes: bytes.to_vec() };
        run(handle, session, vec![work]).expect("it fits");
    }
    session
}

/// The contents of a session.
fn read(handle: &EngineHandle, session: SessionId) -> Result<Vec<u8>, InvokeError> {
    let mut contents = Vec::new();
    for at in 0..3 {
        let result = run(handle, session, vec![FlushWork::CopyOut { from: at * THIRD, bytes: THIRD }])?;
        contents.extend_from_slice(&result.outputs[0].bytes);
    }
    Ok(contents)
}

fn place(handle: &EngineHandle, session: SessionId) -> Option<SessionPlace> {
    handle.memory_sessions().into_iter().find(|known| known.session == session).map(|known| known.place)
}

fn suspended(handle: &EngineHandle) -> SuspensionStatistics {
    handle.statistics().suspension
}

#[test]
fn a_suspended_session_takes_host_memory_only_and_comes_back_as_it_was() {
    let config = on_request();
    let (engine, handle, controls) = start(0, &config);
    let session = open(&handle, 1);
    let used = handle.statistics().device.memory_used_bytes;
    assert!(matches!(place(&handle, session), Some(SessionPlace::Device { idle_ns: Some(_) })));
    handle.suspend_session(session, PATIENCE).expect("there is room");
    assert_eq!(place(&handle, session), Some(SessionPlace::Host));
    assert_eq!(config.host.used(), BYTES);
    assert!(handle.statistics().device.memory_used_bytes + BYTES <= used);
    handle.suspend_session(session, PATIENCE).expect("it is suspended already");
    assert_eq!(read(&handle, session).expect("it comes back"), contents(1));
    assert_eq!(config.host.used(), 0);
    let SuspensionStatistics { sessions, bytes, suspensions, resumptions, failures } = suspended(&handle);
    assert_eq!((sessions, bytes, suspensions, resumptions, failures), (0, 0, 1, 1, 0));
    // Changes after that are kept as well.
    run(&handle, session, vec![FlushWork::Fill { to: 0, pattern: [7; 8], bytes: 8 }]).expect("it runs");
    handle.suspend_session(session, PATIENCE).expect("there is room");
    assert_eq!(read(&handle, session).expect("it comes back")[..9], [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    handle.close_session(session);
    assert_eq!(handle.suspend_session(session, PATIENCE), Err(SuspendError::NoSession));
    handle.unload(&base()).expect("it was loaded");
    assert_eq!((controls.parts(), handle.statistics().device.memory_used_bytes), (0, 0));
    engine.shutdown();
}

#[test]
fn a_suspended_session_moves_to_another_engine() {
    let config = on_request();
    let (_one, first, _) = start(0, &config);
    let (_two, second, _) = start(1, &config);
    let session = open(&first, 2);
    assert_eq!(first.take_suspended(session).map(drop), Err(SuspendError::OnDevice));
    first.suspend_session(session, PATIENCE).expect("there is room");
    let contents_of = first.take_suspended(session).expect("it is suspended");
    assert_eq!((contents_of.bytes(), config.host.used()), (BYTES, BYTES));
    assert_eq!(read(&first, session), Err(InvokeError::NoSession));
    let failed = second.open_suspended(&FunctionKey::local("none"), contents_of).expect_err("no such function");
    let (error, contents_of) = *failed;
    assert_eq!(error, InvokeError::UnknownFunction);
    let moved = second.open_suspended(&base(), contents_of).expect("a session");
    assert_eq!(DeviceId::of_id(moved.0), DeviceId(1));
    assert_eq!(place(&second, moved), Some(SessionPlace::Host));
    assert_eq!(read(&second, moved).expect("it comes back"), contents(2));
    assert_eq!(config.host.used(), 0);
    // And back again, without a flush in between.
    second.suspend_session(moved, PATIENCE).expect("there is room");
    let back = second.take_suspended(moved).expect("it is suspended");
    let back = first.open_suspended(&base(), back).expect("a session");
    let back = first.take_suspended(back).expect("it did not come back yet");
    let back = first.open_suspended(&base(), back).expect("a session");
    assert_eq!(read(&first, back).expect("it comes back"), contents(2));
}

#[test]
fn idle_sessions_leave_for_others_which_all_keep_their_contents() {
    let config = at_once(HostLimits::UNLIMITED);
    let (_engine, handle, _) = start(0, &config);
    let sessions: Vec<SessionId> = (0..4).map(|seed| open(&handle, seed)).collect();
    assert_eq!(suspended(&handle).sessions, 2, "two fit the device");
    for round in 0..3 {
        for (seed, session) in sessions.iter().enumerate() {
            assert_eq!(read(&handle, *session).expect("it comes back"), contents(seed as u8), "round {round}");
        }
    }
    assert!(suspended(&handle).resumptions >= 8);
    // All at the same time.
    let work = || vec![FlushWork::CopyOut { from: BYTES - 1, bytes: 1 }];
    let answers: Vec<_> = sessions.iter().map(|session| submit(&handle, *session, work()).1).collect();
    for (seed, answer) in answers.iter().enumerate() {
        let result = answer.recv_timeout(PATIENCE).expect("an answer").expect("it comes back");
        assert_eq!(result.outputs[0].bytes, contents(seed as u8)[BYTES as usize - 1..]);
    }
    sessions.into_iter().for_each(|session| handle.close_session(session));
    handle.unload(&base()).expect("it was loaded");
    assert_eq!((config.host.used(), handle.statistics().device.memory_used_bytes), (0, 0));
}

#[test]
fn limits_of_host_memory_keep_sessions_on_the_device() {
    let config = at_once(HostLimits { all: 2 * BYTES, tenant: BYTES });
    let (_engine, handle, _) = start(0, &config);
    let [first, second] = [1, 2].map(|seed| open(&handle, seed));
    handle.suspend_session(first, PATIENCE).expect("there is room");
    let refused = handle.suspend_session(second, PATIENCE).expect_err("there is no more room");
    assert!(matches!(refused, SuspendError::HostMemory(HostRefusal::Tenant { used: BYTES, limit: BYTES, .. })));
    assert!(refused.to_string().contains("the suspended sessions of tenant `local` have 307200 of at most 307200"));
    assert_eq!(read(&handle, second).expect("it stays"), contents(2));
    assert_eq!(read(&handle, first).expect("it comes back"), contents(1));
    assert_eq!(suspended(&handle).failures, 1);
    let config = at_once(HostLimits { all: BYTES - 1, tenant: u64::MAX });
    let (_engine, handle, _) = start(0, &config);
    let [first, second] = [1, 2].map(|seed| open(&handle, seed));
    let third = handle.open_memory(&base(), BYTES).expect("it takes no memory yet");
    let refused = read(&handle, third);
    assert!(matches!(refused, Err(InvokeError::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(read(&handle, first).expect("it stays"), contents(1));
    assert_eq!(read(&handle, second).expect("it stays"), contents(2));
}

#[test]
fn a_session_that_is_held_leaves_after_its_release() {
    let (_engine, handle, _) = start(0, &on_request());
    let session = open(&handle, 3);
    assert!(!handle.hold_session(session));
    assert_eq!(handle.suspend_session(session, Duration::from_millis(50)), Err(SuspendError::Busy));
    assert_eq!(read(&handle, session).expect("it is on the device"), contents(3));
    handle.release_session(session);
    let begin = Instant::now();
    while place(&handle, session) != Some(SessionPlace::Host) {
        assert!(begin.elapsed() < PATIENCE, "it is not suspended");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(handle.hold_session(session), "it is suspended");
    handle.release_session(session);
    assert_eq!(read(&handle, session).expect("it comes back"), contents(3));
}

#[test]
fn a_flush_that_is_cancelled_while_its_session_returns_loses_nothing() {
    let config = on_request();
    let (_engine, handle, _) = start(0, &config);
    let session = open(&handle, 4);
    for round in 0..30 {
        handle.suspend_session(session, PATIENCE).expect("there is room");
        let (id, answer) = submit(&handle, session, vec![FlushWork::CopyOut { from: 0, bytes: 1 }]);
        if round % 3 > 0 {
            std::thread::sleep(Duration::from_micros(50 * (round % 3)));
        }
        handle.cancel(id);
        let answer = answer.recv_timeout(PATIENCE).expect("an answer");
        assert!(matches!(answer, Ok(_) | Err(InvokeError::Cancelled)), "{answer:?}");
        if round % 2 == 0 {
            assert_eq!(read(&handle, session).expect("it comes back"), contents(4), "round {round}");
        }
    }
    assert_eq!(read(&handle, session).expect("it comes back"), contents(4));
    assert_eq!(config.host.used(), 0);
}

#[test]
fn a_session_that_is_closed_or_unloaded_while_suspended_leaves_nothing() {
    let config = on_request();
    let (_engine, handle, controls) = start(0, &config);
    let [first, second] = [5, 6].map(|seed| open(&handle, seed));
    for session in [first, second] {
        handle.suspend_session(session, PATIENCE).expect("there is room");
    }
    handle.close_session(first);
    assert_eq!((place(&handle, first), config.host.used()), (None, BYTES));
    handle.unload(&base()).expect("it was loaded");
    assert_eq!((place(&handle, second), config.host.used()), (None, 0));
    assert_eq!((controls.parts(), handle.statistics().device.memory_used_bytes), (0, 0));
}

#[test]
fn a_session_whose_memory_cannot_be_had_stays_suspended() {
    let config = on_request();
    let (_engine, handle, controls) = start(0, &config);
    let session = open(&handle, 7);
    handle.suspend_session(session, PATIENCE).expect("there is room");
    controls.refuse(Refusal::Part, 0);
    let refused = read(&handle, session);
    assert!(matches!(refused, Err(InvokeError::Unavailable(_))), "{refused:?}");
    assert_eq!((place(&handle, session), config.host.used()), (Some(SessionPlace::Host), BYTES));
    controls.accept();
    assert_eq!(read(&handle, session).expect("it comes back"), contents(7));
}

#[test]
fn a_piece_that_the_device_refuses_is_written_for_the_next_flush() {
    let config = on_request();
    let (device, controls) = FakeDevice::new(0);
    let engine = start_on(FallibleDevice::new(device), 0, &config);
    let handle = engine.handle();
    let session = open(&handle, 10);
    handle.suspend_session(session, PATIENCE).expect("there is room");
    controls.refuse(Refusal::Piece, 1);
    let refused = read(&handle, session);
    let is_reason = |reason: &str| reason.contains("the session cannot be resumed");
    assert!(matches!(&refused, Err(InvokeError::Device(reason)) if is_reason(reason)), "{refused:?}");
    controls.accept();
    assert_eq!(read(&handle, session).expect("it comes back"), contents(10));
    assert_eq!(config.host.used(), 0);
}

#[test]
fn memory_of_a_suspended_session_that_cannot_be_cleared_is_withheld() {
    let (_engine, handle, controls) = start(0, &on_request());
    let session = open(&handle, 11);
    let used = handle.statistics().device.memory_used_bytes;
    controls.refuse(Refusal::Fill, 0);
    handle.suspend_session(session, PATIENCE).expect("there is room");
    controls.accept();
    assert_eq!(handle.statistics().device.memory_used_bytes, used, "it counts as used");
}

#[test]
fn a_suspended_session_outlives_the_memory_of_its_device() {
    let config = on_request();
    let (device, controls) = FakeDevice::new(0);
    let engine = start_on(FallibleDevice::new(device), 0, &config);
    let handle = engine.handle();
    let [kept, lost] = [8, 9].map(|seed| open(&handle, seed));
    handle.suspend_session(kept, PATIENCE).expect("there is room");
    controls.lose_memory();
    let answer = read(&handle, lost);
    assert!(matches!(answer, Err(InvokeError::SessionLost)), "{answer:?}");
    assert_eq!(read(&handle, kept).expect("it comes back"), contents(8));
}
