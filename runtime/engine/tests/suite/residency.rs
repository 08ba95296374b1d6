//! Constants that do not all fit the device: which invocations wait, which constants are reclaimed,
//! which requests are refused, and that all results are correct.
//!
//! A failure names its seed; `ATOLL_SEED=<seed> cargo test -p atoll-engine --test suite residency` runs
//! only that seed.

mod movable;
mod quotas;
mod reports;

use crate::fake;
use crate::fake::fallible::FallibleDevice;
use crate::fake::{Controls, FakeDevice};
use crate::toy;
use crate::toy::Constants;
use atoll_core::residency::RESIDENCY_POLICIES;
use atoll_core::rng::Rng;
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

/// An engine whose device has `limit` bytes.
fn start(limit: u64, config: EngineConfig) -> (Engine, EngineHandle, Controls) {
    let (device, controls) = FakeDevice::new(config.evict_at_random.unwrap_or(0));
    let engine = Engine::start(device, EngineConfig { memory_limit_bytes: Some(limit), ..config }).expect("an engine");
    let handle = engine.handle();
    (engine, handle, controls)
}

/// Like [`start`], with a device that can lose its memory.
fn start_fallible(limit: u64, config: EngineConfig) -> (Engine, EngineHandle, Controls) {
    let (device, controls) = FakeDevice::new(config.evict_at_random.unwrap_or(0));
    let engine = Engine::start(FallibleDevice::new(device), EngineConfig { memory_limit_bytes: Some(limit), ..config })
        .expect("an engine");
    let handle = engine.handle();
    (engine, handle, controls)
}

/// A model with `granules` constants of 256 bytes, none of them shared.
fn model(number: u32, granules: u32) -> Constants {
    model_of(number, granules, 256)
}

/// Like [`model`], with constants of `bytes` bytes.
fn model_of(number: u32, pieces: u32, bytes: u32) -> Constants {
    Constants { model: number, more: (1..pieces).map(|i| (bytes, (number * 31 + i) as u8)).collect() }
}

fn load(handle: &EngineHandle, name: &str, constants: &Constants, class: Class) -> Result<FunctionInfo, EngineError> {
    load_for(handle, FunctionKey::local(name), constants, class)
}

fn load_for(
    handle: &EngineHandle,
    key: FunctionKey,
    constants: &Constants,
    class: Class,
) -> Result<FunctionInfo, EngineError> {
    let options = FunctionOptions { key, class, queue_capacity: Some(1000), lane: Default::default(), batching: None };
    handle.load(toy::bundle_of(constants, fake::TARGET, b"fake"), options)
}

fn submit(handle: &EngineHandle, function: &str, class: Class, input: &[u32]) -> (InvocationId, Receiver<Answer>) {
    let (send, answer) = channel();
    let id = handle.submit(toy::request(function, class, input), Box::new(move |result| drop(send.send(result))));
    (id, answer)
}

fn check(answer: &Receiver<Answer>, constants: &Constants, input: &[u32]) -> InvocationResult {
    let result = answer.recv_timeout(Duration::from_secs(20)).expect("an answer").expect("a result");
    assert!(result.outputs[0].bytes == toy::expected_of(constants, input), "a wrong answer");
    result
}

fn input(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed) | 1 << 31).collect()
}

fn function(handle: &EngineHandle, name: &str) -> FunctionStatistics {
    handle.statistics().functions.into_iter().find(|f| f.key.name == name).expect("it is loaded")
}

#[test]
fn a_function_without_room_is_loaded_and_gets_its_constants_when_it_is_called() {
    let (_engine, handle, _) = start(256 * 24 + toy::invocation_memory(64), EngineConfig::default());
    let (a, b) = (model(1, 20), model(2, 20));
    assert!(load(&handle, "a", &a, Class::BestEffort).expect("room").weights_resident);
    assert!(
        !load(&handle, "b", &b, Class::BestEffort).expect("a place in host memory").weights_resident,
        "loading a function reclaims nothing"
    );
    for round in 0..3 {
        for (name, constants) in [("a", &a), ("b", &b)] {
            let input = input(64, round);
            check(&submit(&handle, name, Class::BestEffort, &input).1, constants, &input);
            let memory = function(&handle, name).memory;
            assert_eq!(
                (memory.state, memory.constant_bytes, memory.constant_device_bytes),
                (ConstantState::Device, 20 * 256, 20 * 256)
            );
        }
    }
    let statistics = handle.statistics();
    // On this device constants and invocations share one range, so more may have to be reclaimed
    // when it is fragmented.
    assert_eq!((statistics.constants.cold_starts, statistics.constants.loads - statistics.constants.evictions), (5, 1));
    assert!((6..=12).contains(&statistics.constants.loads), "{statistics:?}");
    assert_eq!(function(&handle, "a").memory.state, ConstantState::Host);
}

#[test]
fn no_invocation_waits_behind_constants_that_are_loading() {
    let (_engine, handle, device) = start(
        256 * 24 + 2 * toy::invocation_memory(64),
        EngineConfig { policy: "sequential".into(), ..EngineConfig::default() },
    );
    let (big, small) = (model(1, 20), model(2, 2));
    load(&handle, "small", &small, Class::BestEffort).expect("room");
    load(&handle, "other", &model(3, 20), Class::BestEffort).expect("room");
    load(&handle, "big", &big, Class::BestEffort).expect("a place in host memory");
    device.pause();
    let input = input(64, 1);
    let running = submit(&handle, "other", Class::BestEffort, &input);
    device.wait_for_launches();
    // There is no room beside the running invocation, but warm invocations are served.
    let cold = submit(&handle, "big", Class::BestEffort, &input);
    let warm = submit(&handle, "small", Class::BestEffort, &input);
    assert_eq!(handle.statistics().cold_invocations, 1);
    device.resume();
    check(&warm.1, &small, &input);
    check(&running.1, &model(3, 20), &input);
    check(&cold.1, &big, &input);
}

#[test]
fn a_cold_invocation_can_be_cancelled_and_expires() {
    let (_engine, handle, device) = start(256 * 10 + 2 * toy::invocation_memory(64), EngineConfig::default());
    let (a, b) = (model(1, 7), model(2, 7));
    load(&handle, "a", &a, Class::BestEffort).expect("room");
    load(&handle, "b", &b, Class::BestEffort).expect("a place in host memory");
    device.pause();
    let input = input(64, 1);
    let running = submit(&handle, "a", Class::BestEffort, &input);
    device.wait_for_launches();
    let cold = submit(&handle, "b", Class::BestEffort, &input);
    let (send, expired) = channel();
    let request =
        InvocationRequest { deadline: Some(Duration::from_millis(5)), ..toy::request("b", Class::RealTime, &input) };
    handle.submit(request, Box::new(move |result| drop(send.send(result))));
    assert_eq!(expired.recv().expect("an answer").expect_err("no memory until then"), InvokeError::DeadlineExceeded);
    handle.cancel(cold.0);
    assert_eq!(cold.1.recv().expect("an answer").expect_err("cancelled"), InvokeError::Cancelled);
    device.resume();
    check(&running.1, &a, &input);
    assert_eq!(handle.statistics().cold_invocations, 0);
}

#[test]
fn an_invocation_that_can_never_fit_is_refused_at_once_with_all_figures() {
    let total = 256 * 8 + toy::invocation_memory(16);
    let (_engine, handle, _) = start(total, EngineConfig { memory_overcommit: 2.0, ..EngineConfig::default() });
    load(&handle, "a", &model(1, 8), Class::BestEffort).expect("room");
    let refused =
        submit(&handle, "a", Class::BestEffort, &input(256, 1)).1.recv().expect("an answer").expect_err("too large");
    let wanted = 8 * 256 + toy::invocation_memory(256);
    let InvokeError::OutOfMemory { wanted: told, constants, free, obtainable, total: all } = refused else {
        panic!("{refused}")
    };
    assert_eq!((told, constants, free, obtainable, all), (wanted, 8 * 256, total - 8 * 256, total, total));
    let error = load(&handle, "b", &model(2, 100), Class::BestEffort).expect_err("larger than the device");
    assert!(matches!(error, EngineError::OutOfMemory { wanted: 25_600, .. }), "{error}");
    load(&handle, "c", &model(3, 8), Class::BestEffort).expect("a place in host memory");
    let error = load(&handle, "d", &model(4, 13), Class::BestEffort).expect_err("too much for all");
    let EngineError::OverCommitted { wanted, all, limit, .. } = error else { panic!("{error}") };
    assert_eq!((wanted, all, limit), (13 * 256, 29 * 256, 2 * total));
    // Constants that are loaded already are not counted again.
    load(&handle, "e", &model(3, 8), Class::BestEffort).expect("nothing new");
    assert_eq!(handle.statistics().device.constant_bytes_all, 16 * 256);
}

#[test]
fn a_real_time_invocation_takes_memory_from_waiting_best_effort_ones() {
    let (_engine, handle, device) = start(256 * 22 + 4 * toy::invocation_memory(64), EngineConfig::default());
    let models: Vec<Constants> = (0..4).map(|number| model(number, 10)).collect();
    for (number, constants) in models.iter().enumerate() {
        load(&handle, &format!("f{number}"), constants, Class::BestEffort).expect("a place");
    }
    device.pause();
    let input = input(64, 1);
    let best_effort: Vec<_> =
        (0..9).map(|i| (i % 3, submit(&handle, &format!("f{}", i % 3), Class::BestEffort, &input))).collect();
    let real_time = submit(&handle, "f3", Class::RealTime, &input);
    device.resume();
    check(&real_time.1, &models[3], &input);
    for (number, (_, answer)) in &best_effort {
        check(answer, &models[*number], &input);
    }
}

fn tenant(name: &str) -> Tenant {
    name.parse().expect("a name")
}

/// Bytes of a large constant, which is written in one chunk.
const LARGE: u32 = 256 << 10;

/// The resource that is full.
#[derive(Clone, Copy, Debug)]
enum Full {
    Device,
    /// The tenant's quota, which is checked first.
    Quota,
}

/// A device with room for three of the models, each of which takes `load` to load.
fn start_slow(full: Full, models: &[Constants], load: Duration) -> (Engine, EngineHandle, Controls) {
    let room = 3 * u64::from(LARGE) + 4 * toy::invocation_memory(16);
    let quota = match full {
        Full::Device => TenantBytes::UNLIMITED,
        Full::Quota => TenantBytes { all: room, ..TenantBytes::UNLIMITED },
    };
    let memory_quotas = MemoryQuotas { tenants: [(Tenant::default(), quota)].into(), ..MemoryQuotas::default() };
    let (engine, handle, device) = start(room, EngineConfig { memory_quotas, ..EngineConfig::default() });
    device.delay_loading(load);
    for (number, constants) in models.iter().enumerate() {
        let info =
            self::load(&handle, &format!("f{number}"), constants, Class::BestEffort).expect("a place in host memory");
        assert_eq!(info.weights_resident, number < 3, "there is room for three");
    }
    (engine, handle, device)
}

fn large_models(count: u32) -> Vec<Constants> {
    (0..count).map(|number| Constants { model: number, more: vec![(LARGE, number as u8)] }).collect()
}

#[test]
fn a_client_that_calls_again_at_once_finds_its_constants_on_the_device() {
    [Full::Device, Full::Quota].into_iter().for_each(calls_again_at_once);
}

fn calls_again_at_once(full: Full) {
    const REQUESTS: u32 = 25;
    let models = large_models(4);
    // Much longer than a request.
    let (_engine, handle, _device) = start_slow(full, &models, Duration::from_millis(20));
    let ask_all = |requests: u32| {
        std::thread::scope(|scope| {
            for (number, constants) in models.iter().enumerate() {
                let handle = &handle;
                scope.spawn(move || {
                    for round in 0..requests {
                        let input = input(16, round);
                        check(&submit(handle, &format!("f{number}"), Class::BestEffort, &input).1, constants, &input);
                    }
                });
            }
        });
        handle.statistics().constants.cold_starts
    };
    // The engine learns how long loading takes.
    let before = ask_all(REQUESTS / 5);
    let cold_starts = ask_all(REQUESTS) - before;
    let requests = u64::from(4 * REQUESTS);
    // If constants were reclaimed as soon as a request has finished, nearly all requests would be
    // cold.
    assert!(
        (1..=requests * 3 / 4).contains(&cold_starts),
        "{full:?}: {cold_starts} cold starts of {requests} requests"
    );
}

#[test]
fn an_invocation_that_respects_minimum_residency_is_served_without_another_event() {
    [Full::Device, Full::Quota].into_iter().for_each(is_served_without_an_event);
}

fn is_served_without_an_event(full: Full) {
    let models = large_models(5);
    let (_engine, handle, device) = start_slow(full, &models, Duration::from_millis(300));
    handle.unload(&FunctionKey::local("f2")).expect("it is loaded");
    let input = input(16, 1);
    // One set was used recently, one is running, and there is room for the first of two cold
    // invocations, which is served before the second may reclaim the recently used set.
    device.delay_loading(Duration::ZERO);
    check(&submit(&handle, "f1", Class::BestEffort, &input).1, &models[1], &input);
    device.pause();
    let running = submit(&handle, "f0", Class::BestEffort, &input);
    device.wait_for_launches();
    check_cold(&handle, &[(1, ConstantState::Device), (3, ConstantState::Host), (4, ConstantState::Host)]);
    let cold = [3, 4].map(|number| (number, submit(&handle, &format!("f{number}"), Class::BestEffort, &input)));
    // Reading statistics would wake the engine.
    std::thread::sleep(Duration::from_secs(1));
    check_cold(&handle, &[(1, ConstantState::Host), (3, ConstantState::Device), (4, ConstantState::Device)]);
    device.resume();
    check(&running.1, &models[0], &input);
    cold.iter().for_each(|(number, answer)| drop(check(&answer.1, &models[*number], &input)));
}

/// Checks where the constants of functions are.
fn check_cold(handle: &EngineHandle, expected: &[(usize, ConstantState)]) {
    let functions = handle.statistics().functions;
    for (number, state) in expected {
        let function =
            functions.iter().find(|function| function.key.name == format!("f{number}")).expect("it is loaded");
        assert_eq!(function.memory.state, *state, "f{number}");
    }
}

#[test]
fn constants_that_the_device_lost_are_loaded_again() {
    let (_engine, handle, device) = start_fallible(256 * 64 + 4 * toy::invocation_memory(64), EngineConfig::default());
    let (a, b) = (model(1, 20), model(2, 20));
    load(&handle, "a", &a, Class::BestEffort).expect("room");
    load(&handle, "b", &b, Class::BestEffort).expect("room");
    let input = input(64, 1);
    check(&submit(&handle, "a", Class::BestEffort, &input).1, &a, &input);
    device.pause();
    let running = submit(&handle, "a", Class::BestEffort, &input);
    device.wait_for_launches();
    device.lose_memory();
    // The device ends what was in flight before it gets new memory.
    let behind = submit(&handle, "b", Class::RealTime, &input);
    device.resume();
    check(&running.1, &a, &input);
    check(&behind.1, &b, &input);
    let statistics = handle.statistics();
    assert_eq!(statistics.constants.evictions, 0, "they were lost, not reclaimed");
    assert!(
        statistics.constants.loads >= 4 && function(&handle, "a").memory.state == ConstantState::Device,
        "{statistics:?}"
    );
    assert!(statistics.retries >= 1, "{statistics:?}");
}

#[test]
fn an_invocation_whose_outputs_were_lost_is_retried() {
    let (_engine, handle, device) = start_fallible(256 * 64 + 4 * toy::invocation_memory(64), EngineConfig::default());
    let a = model(1, 20);
    load(&handle, "a", &a, Class::BestEffort).expect("room");
    let input = input(64, 1);
    device.lose_memory_at_read();
    check(&submit(&handle, "a", Class::BestEffort, &input).1, &a, &input);
    assert_eq!(handle.statistics().retries, 1);
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("ATOLL_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..if std::env::var_os("ATOLL_TEST_FULL").is_some() { 400 } else { 8 },
    }
}

/// Functions of three tenants that share some constants, on a device that holds only part of them,
/// with random loads, unloads, cancellations, deadlines, traps and evictions; half of the devices
/// also lose all memory now and then.
#[test]
fn random_events_under_memory_pressure_leave_no_resources_behind() {
    let mut evictions = 0;
    for seed in seeds() {
        evictions += std::panic::catch_unwind(|| life(seed)).unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().cloned().or(cause.downcast_ref::<&str>().map(|s| s.to_string()));
            panic!("ATOLL_SEED={seed}: {}", text.unwrap_or_default());
        });
    }
    assert!(evictions > 10 || seeds().count() == 1, "{evictions} evictions are too few to prove anything");
}

fn life(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    // Large ones have a minimum residency longer than an invocation takes.
    let piece = if rng.one_in(2) { 16 << 10 } else { 256 };
    let shared: Vec<(u32, u8)> = (0..3).map(|i| (100 + 300 * i, 200 + i as u8)).collect();
    let models: Vec<Constants> = (0..6)
        .map(|number| {
            let mut constants = model_of(number, 1 + rng.below(12) as u32, piece);
            constants.more.extend(&shared[..rng.below(4) as usize]);
            constants
        })
        .collect();
    let limit = u64::from(piece) * (20 + rng.below(20)) + 3 * toy::invocation_memory(200);
    let policies: Vec<_> =
        atoll_core::POLICIES.iter().filter(|entry| (entry.make)().admits(Class::BestEffort)).collect();
    // One tenant has no quota, one has one, and one has another for best-effort work as well. Some
    // of their functions can never fit.
    let quota = |rng: &mut Rng| u64::from(piece) * (8 + rng.below(20)) + 2 * toy::invocation_memory(200);
    let (mut one, two) = (quota(&mut rng), quota(&mut rng));
    // Functions belong to three tenants in turn, and the device checks that no tenant can read
    // another's constants. Or all belong to one tenant, whose quota is the whole device.
    let is_crowded = rng.one_in(3);
    if is_crowded {
        one = limit;
    }
    let owners = if is_crowded { ["one"; 3] } else { ["local", "one", "two"] };
    let key = |number: usize| FunctionKey { tenant: tenant(owners[number % 3]), name: format!("f{number}") };
    let quotas = [
        ("one", TenantBytes { all: one, best_effort: u64::MAX }),
        ("two", TenantBytes { all: two, best_effort: two / 2 }),
    ];
    let memory_quotas =
        MemoryQuotas { tenants: quotas.map(|(name, quota)| (tenant(name), quota)).into(), ..MemoryQuotas::default() };
    let config = EngineConfig {
        memory_quotas,
        policy: policies[rng.below(policies.len() as u64) as usize].name.into(),
        residency_policy: RESIDENCY_POLICIES[rng.below(RESIDENCY_POLICIES.len() as u64) as usize].name.into(),
        evict_at_random: rng.one_in(2).then_some(seed),
        memory_overcommit: 100.0,
        ..EngineConfig::default()
    };
    let is_fallible = rng.one_in(2);
    let (engine, handle, device) = if is_fallible { start_fallible(limit, config) } else { start(limit, config) };
    device.delay_mapping(Duration::from_micros(rng.below(2) * 3000));
    let mut pending = Vec::new();
    for step in 0..200 {
        let number = rng.below(models.len() as u64) as usize;
        let key = key(number);
        match rng.below(20) {
            0..3 => drop(load_for(
                &handle,
                key.clone(),
                &models[number],
                if rng.one_in(2) { Class::RealTime } else { Class::BestEffort },
            )),
            3 => drop(handle.unload(&key)),
            4 if !pending.is_empty() => {
                let (id, ..): &(InvocationId, Receiver<Answer>, usize, Vec<u32>) =
                    &pending[rng.below(pending.len() as u64) as usize];
                handle.cancel(*id);
            }
            5 if is_fallible && rng.one_in(3) => device.lose_memory(),
            _ => {
                let class = if rng.one_in(4) { Class::RealTime } else { Class::BestEffort };
                let mut input = input(1 + rng.below(200) as u32, step);
                if rng.one_in(20) {
                    input[0] = toy::TRAP;
                }
                let mut request = toy::request_of(key, class, &input);
                request.deadline = rng.one_in(8).then(|| Duration::from_micros(rng.below(20_000)));
                let (send, answer) = channel();
                let id = handle.submit(request, Box::new(move |result| drop(send.send(result))));
                pending.push((id, answer, number, input));
            }
        }
    }
    for (_, answer, number, input) in &pending {
        match answer.recv_timeout(Duration::from_secs(20)).expect("every invocation is answered") {
            Ok(result) => {
                assert!(result.outputs[0].bytes == toy::expected_of(&models[*number], input), "a wrong answer")
            }
            Err(InvokeError::Device(text)) => {
                assert!(input[0] == toy::TRAP || text.contains("the device lost its memory"), "{text}")
            }
            Err(InvokeError::OutOfMemory { wanted, total, .. }) => assert!(wanted > total),
            Err(InvokeError::OverQuota { wanted, quota, .. }) => assert!(wanted > quota),
            Err(_) => {}
        }
        assert!(answer.recv_timeout(Duration::from_secs(20)).is_err(), "one answer each");
    }
    let evictions = handle.statistics().constants.evictions;
    (0..models.len()).for_each(|number| drop(handle.unload(&key(number))));
    let statistics = handle.statistics();
    assert_eq!(
        (statistics.device.memory_used_bytes, statistics.device.constant_bytes_all, device.modules()),
        (0, 0, 0)
    );
    assert_eq!(device.constants(), (0, 0), "no constants are left or mapped");
    assert!(statistics.device.memory_used_bytes_max <= limit);
    for TenantMemory { tenant, quota, used, most } in &statistics.tenants {
        assert!(most.all <= quota.all && most.best_effort <= quota.best_effort, "{tenant} used {most:?} of {quota:?}");
        assert_eq!(*used, TenantBytes::default(), "{tenant} is charged after everything was unloaded");
    }
    assert_eq!(statistics.cold_invocations, 0);
    engine.shutdown();
    evictions
}
