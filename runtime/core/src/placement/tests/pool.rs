//! Tests of the pool that hold for all policies.

use super::world::World;
use crate::ids::{Class, DeviceId, Nanos};
use crate::placement::*;

fn world(policy: &str, devices: u16) -> World {
    let mut world = World::with_devices(policy, PoolOptions::default(), devices, 1000);
    world.add_timed(1, 10, 5);
    world
}

fn spec(world: &World, class: Class) -> RequestSpec {
    let (function, is_batched, arrival) = (FunctionId(1), false, world.now);
    RequestSpec { function, class, is_batched, arrival, deadline: None, may_retry: true }
}

fn rejections(world: &World) -> Vec<(u64, RejectReason)> {
    let rejection = |action: &PoolAction| match action {
        PoolAction::Reject { request, reason } => Some((request.0, *reason)),
        _ => None,
    };
    world.log.iter().filter_map(rejection).collect()
}

#[test]
fn real_time_requests_go_at_once_to_where_they_finish_first() {
    for entry in PLACEMENTS {
        let mut world = world(entry.name, 2);
        world.send(PoolEvent::Resident { device: DeviceId(1), function: FunctionId(1) });
        (1..=4).for_each(|request| world.request(request, 1));
        let taken = world.dispatches().len();
        for request in 10..13 {
            let spec = spec(&world, Class::RealTime);
            world.arrive(request, spec);
        }
        let places: Vec<u16> = world.dispatches()[taken..].iter().map(|dispatch| dispatch.1).collect();
        assert_eq!(places.len(), 3, "{}: no slot is needed", entry.name);
        assert!(places.contains(&0) && places.contains(&1), "{}: {places:?}", entry.name);
    }
}

#[test]
fn batched_requests_go_at_once_but_do_not_count_on_preemption() {
    for entry in PLACEMENTS.iter().filter(|entry| !["static", "exclusive"].contains(&entry.name)) {
        let mut world = world(entry.name, 2);
        world.add_timed(2, 10, 0);
        world.request(1, 1);
        let busy = world.dispatches()[0].1;
        for device in [0, 1] {
            world.send(PoolEvent::Resident { device: DeviceId(device), function: FunctionId(2) });
        }
        let batched = RequestSpec { function: FunctionId(2), is_batched: true, ..spec(&world, Class::BestEffort) };
        world.arrive(2, batched);
        assert_eq!(world.dispatches()[1..], [(2, 1 - busy)], "{}: the other one is idle", entry.name);
        // Both devices are about equally late now. One run more or two: later ones join the run that
        // gathers, so they stay where it is.
        (3..40).for_each(|request| world.arrive(request, batched));
        assert_eq!(world.dispatches().len(), 39, "{}: no slot is needed", entry.name);
        let left = |device| world.pool.state.member(DeviceId(device)).best_effort.left_ns(world.now);
        assert!(left(busy) <= 35 && left(1 - busy) <= 30, "{}: two runs at most", entry.name);
        world.request(100, 1);
        assert_eq!(world.dispatches().last(), Some(&(100, 1 - busy)), "{}: a slot is free there", entry.name);
    }
}

#[test]
fn the_requests_of_a_lost_device_come_first_again_in_order() {
    for entry in PLACEMENTS.iter().filter(|entry| !["mlfqs", "static", "exclusive"].contains(&entry.name)) {
        let mut world = world(entry.name, 1);
        world.add_device(1, DeviceSpec { kind: DeviceKind(0), slots: 3, memory_bytes: 1000 });
        world.send(PoolEvent::DeviceLost { device: DeviceId(0) });
        world.devices.remove(&DeviceId(0));
        (1..=2).for_each(|request| world.request(request, 1));
        let once = RequestSpec { may_retry: false, ..spec(&world, Class::BestEffort) };
        world.arrive(3, once);
        (4..=6).for_each(|request| world.request(request, 1));
        world.add_device(2, DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes: 1000 });
        let first: Vec<u64> = world.dispatches().iter().map(|dispatch| dispatch.0).collect();
        assert_eq!(first, [1, 2, 3, 4], "{}", entry.name);
        world.lose(1);
        assert_eq!(rejections(&world), [(3, RejectReason::DeviceLost { device: DeviceId(1) })], "{}", entry.name);
        for request in [4, 1, 2, 5] {
            assert_eq!(world.dispatches().last().unwrap().0, request, "{}", entry.name);
            world.done(request, 10);
        }
        // The device may still report its end, which is ignored.
        let end = RequestEnd::Done { service: Nanos(1), loaded: None };
        world.send(PoolEvent::Finished { request: RequestId(6), device: DeviceId(1), end });
        world.done(6, 10);
        assert_eq!(world.pool.waiting(), 0);
    }
}

#[test]
fn every_rejection_has_its_cause() {
    let mut world = world("balance", 1);
    let best_effort = spec(&world, Class::BestEffort);
    world.arrive(1, RequestSpec { function: FunctionId(9), ..best_effort });
    let large = FunctionSpec { constant_bytes: 2000, ..FunctionSpec::default() };
    world.add_function(2, large);
    world.arrive(2, RequestSpec { function: FunctionId(2), ..best_effort });
    world.add_function(3, FunctionSpec { suits: Suits::Only(vec![DeviceId(7)]), ..FunctionSpec::default() });
    world.arrive(3, RequestSpec { function: FunctionId(3), ..best_effort });
    world.now = Nanos(10);
    world.arrive(4, RequestSpec { deadline: Some(Nanos(10)), ..spec(&world, Class::BestEffort) });
    world.request(5, 1);
    world.arrive(6, RequestSpec { deadline: Some(Nanos(20)), ..spec(&world, Class::BestEffort) });
    assert_eq!(world.pool.wakeup(), Some(Nanos(20)));
    world.now = Nanos(20);
    world.send(PoolEvent::Tick);
    for _ in 0..3 {
        world.finish(5, RequestEnd::Failed { retryable: true });
    }
    world.request(7, 1);
    world.request(8, 1);
    world.send(PoolEvent::FunctionRemoved { function: FunctionId(1) });
    world.done(7, 10);
    world.add_timed(4, 10, 5);
    world.request(9, 4);
    world.request(10, 4);
    world.lose(0);
    let expected = [
        (1, RejectReason::UnknownFunction),
        (2, RejectReason::TooLarge { constant_bytes: 2000, largest_bytes: 1000 }),
        (3, RejectReason::NoDevice),
        (4, RejectReason::DeadlinePassed),
        (6, RejectReason::DeadlinePassed),
        (5, RejectReason::TooManyAttempts { attempts: 3 }),
        (8, RejectReason::FunctionRemoved),
        (9, RejectReason::NoDevice),
        (10, RejectReason::NoDevice),
    ];
    let mut found = rejections(&world);
    found[7..].sort_by_key(|rejection| rejection.0);
    assert_eq!(found, expected);
    assert!(found.iter().all(|(_, reason)| !reason.to_string().is_empty()));
}

#[test]
fn a_larger_device_takes_what_is_too_large_for_the_others() {
    let mut world = world("cost", 2);
    world.add_function(2, FunctionSpec { constant_bytes: 5000, ..FunctionSpec::default() });
    world.add_device(5, DeviceSpec { kind: DeviceKind(1), slots: 1, memory_bytes: 5000 });
    let spec = RequestSpec { function: FunctionId(2), ..spec(&world, Class::BestEffort) };
    (1..=2).for_each(|request| world.arrive(request, spec));
    assert_eq!(world.dispatches(), [(1, 5)]);
    world.done(1, 10);
    assert_eq!(world.dispatches(), [(1, 5), (2, 5)]);
}

#[test]
fn a_function_that_comes_to_another_device_runs_there() {
    for entry in PLACEMENTS.iter().filter(|entry| !["static", "exclusive"].contains(&entry.name)) {
        let mut world = world(entry.name, 2);
        let suits = |device| Suits::Only(vec![DeviceId(device)]);
        world.add_function(2, FunctionSpec { suits: suits(0), ..FunctionSpec::default() });
        let of_it = |world: &World, class| RequestSpec { function: FunctionId(2), ..spec(world, class) };
        (1..=2).for_each(|request| world.arrive(request, of_it(&world, Class::BestEffort)));
        assert_eq!(world.dispatches(), [(1, 0)], "{}", entry.name);
        world.functions.get_mut(&FunctionId(2)).expect("added above").suits = suits(1);
        world.send(PoolEvent::SuitsChanged { function: FunctionId(2), suits: suits(1) });
        assert_eq!(world.dispatches(), [(1, 0), (2, 1)], "{}", entry.name);
        world.arrive(3, of_it(&world, Class::RealTime));
        assert_eq!(world.dispatches()[2..], [(3, 1)], "{}", entry.name);
        [1, 2, 3].iter().for_each(|request| world.done(*request, 10));
        world.send(PoolEvent::SuitsChanged { function: FunctionId(9), suits: suits(1) });
    }
}

#[test]
fn a_full_queue_rejects() {
    let policy = placement_by_name("balance").unwrap();
    let mut pool = Pool::new(PoolConfig { waiting_max: 1, ..PoolConfig::new(policy) });
    let mut actions = Vec::new();
    let spec = DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes: 10 };
    pool.handle(Nanos(0), PoolEvent::DeviceAdded { device: DeviceId(0), spec }, &mut actions);
    let added = PoolEvent::FunctionAdded { function: FunctionId(1), spec: FunctionSpec::default() };
    pool.handle(Nanos(0), added, &mut actions);
    for request in 1..=3 {
        let spec = RequestSpec {
            function: FunctionId(1),
            class: Class::BestEffort,
            is_batched: false,
            arrival: Nanos(0),
            deadline: None,
            may_retry: true,
        };
        pool.handle(Nanos(0), PoolEvent::Arrived { request: RequestId(request), spec }, &mut actions);
    }
    let expected = [
        PoolAction::Dispatch { request: RequestId(1), device: DeviceId(0) },
        PoolAction::Reject { request: RequestId(3), reason: RejectReason::QueueFull },
    ];
    assert_eq!(actions, expected);
}

#[test]
fn a_request_in_flight_has_the_grounds_of_its_dispatch() {
    let mut world = world("cost", 2);
    let why = |world: &World, request| world.pool.grounds(RequestId(request)).map(|grounds| grounds.why);
    world.arrive(1, spec(&world, Class::BestEffort));
    assert_eq!(why(&world, 1), Some(Why::Load));
    world.done(1, 10);
    assert_eq!(why(&world, 1), None, "it has ended");
    world.arrive(2, spec(&world, Class::BestEffort));
    let grounds = world.pool.grounds(RequestId(2)).unwrap();
    assert_eq!((grounds.why, grounds.reload, grounds.service), (Why::Holder, Nanos(0), Nanos(10)));
    world.arrive(3, spec(&world, Class::RealTime));
    assert_eq!(why(&world, 3), Some(Why::RealTime));
    let until = Nanos(world.now.0 + 1000);
    world.finish(2, RequestEnd::Refused { until });
    assert_eq!(why(&world, 2), Some(Why::Again));
}

#[test]
fn a_device_that_refuses_a_function_does_not_attract_its_requests() {
    for entry in PLACEMENTS {
        for class in [Class::BestEffort, Class::RealTime] {
            let mut world = world(entry.name, 2);
            world.arrive(1, spec(&world, class));
            let refusing = world.dispatches()[0].1;
            let other = 1 - refusing;
            let until = Nanos(world.now.0 + 1000);
            world.finish(1, RequestEnd::Refused { until });
            assert_eq!(world.dispatches()[1..], [(1, other)], "{}: it is given to the other one", entry.name);
            world.done(1, 10);
            for request in 2..6 {
                world.arrive(request, spec(&world, class));
                assert_eq!(world.dispatches().last(), Some(&(request, other)), "{}", entry.name);
                world.done(request, 10);
            }
            assert_eq!(world.pool.wakeup(), Some(until), "{}", entry.name);
            world.now = until;
            world.send(PoolEvent::Tick);
            // The function may run on both devices again.
            (6..10).for_each(|request| world.arrive(request, spec(&world, class)));
            let places: Vec<u16> = world.dispatches().iter().skip(6).map(|dispatch| dispatch.1).collect();
            assert!(places.contains(&refusing) || entry.name == "exclusive", "{}: {places:?}", entry.name);
        }
    }
}

#[test]
fn the_only_device_is_not_suspended() {
    let mut world = world("cost", 2);
    world.send(PoolEvent::DeviceDraining { device: DeviceId(1) });
    world.request(1, 1);
    world.finish(1, RequestEnd::Refused { until: Nanos(1000) });
    let mut attempts = 1;
    while rejections(&world).is_empty() {
        assert_eq!(world.dispatches().last(), Some(&(1, 0)), "it is tried there again");
        world.finish(1, RequestEnd::Refused { until: Nanos(1000) });
        attempts += 1;
    }
    assert_eq!(rejections(&world), [(1, RejectReason::TooManyAttempts { attempts })]);
    world.send(PoolEvent::DeviceResumed { device: DeviceId(1) });
    // After the loss of the other device, the refusing device is the only one.
    world.request(2, 1);
    let (_, refusing) = world.dispatches().last().copied().unwrap();
    world.finish(2, RequestEnd::Refused { until: Nanos(1000) });
    world.lose(1 - refusing);
    assert_eq!(world.dispatches().last(), Some(&(2, refusing)));
}
