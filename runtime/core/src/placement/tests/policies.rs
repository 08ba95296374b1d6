//! Tests of the decisions of each policy.

use super::world::World;
use crate::ids::{DeviceId, Nanos};
use crate::placement::*;

const ROOM: u64 = 1000;

fn plain(policy: &str, devices: u16) -> World {
    World::with_devices(policy, PoolOptions::default(), devices, ROOM)
}

/// Moves of devices between groups, without the first division.
fn moves(world: &World) -> Vec<(u16, u32)> {
    let moved = |action: &PoolAction| match action {
        PoolAction::Move { device, from: Some(_), to } => Some((device.0, to.0)),
        _ => None,
    };
    world.log.iter().filter_map(moved).collect()
}

#[test]
fn names_are_unique_and_the_default_exists() {
    for (i, entry) in PLACEMENTS.iter().enumerate() {
        assert!(PLACEMENTS[..i].iter().all(|other| other.name != entry.name), "two are called {}", entry.name);
        assert!(!entry.about.is_empty());
    }
    assert!(placement_by_name(PLACEMENT_DEFAULT).is_some() && placement_by_name("fastest").is_none());
}

#[test]
fn round_robin_waits_for_its_device_and_balance_does_not() {
    for (policy, third) in [("round-robin", 0), ("balance", 1)] {
        let mut world = plain(policy, 2);
        world.add_timed(1, 10, 5);
        world.request(1, 1);
        world.request(2, 1);
        world.done(2, 10);
        world.request(3, 1);
        if policy == "round-robin" {
            assert_eq!(world.dispatches().len(), 2, "the first device is busy");
            world.done(1, 10);
        }
        assert_eq!(world.dispatches(), [(1, 0), (2, 1), (3, third)], "{policy}");
    }
}

#[test]
fn round_robin_skips_devices_that_drain() {
    let mut world = plain("round-robin", 3);
    world.add_timed(1, 10, 5);
    world.devices.get_mut(&DeviceId(1)).unwrap().draining = true;
    world.send(PoolEvent::DeviceDraining { device: DeviceId(1) });
    (1..=2).for_each(|request| world.request(request, 1));
    assert_eq!(world.dispatches(), [(1, 0), (2, 2)]);
}

#[test]
fn srtf_learns_what_is_short() {
    let mut world = plain("srtf", 1);
    for function in [1, 2] {
        world.add_function(function, FunctionSpec::default());
    }
    for (request, function, service) in [(1, 1, 1000), (2, 2, 10)] {
        world.request(request, function);
        world.done(request, service);
    }
    world.request(3, 2);
    (4..=5).for_each(|request| world.request(request, 1));
    world.request(6, 2);
    for request in [3, 6, 4] {
        world.done(request, 10);
    }
    assert_eq!(world.dispatches()[2..], [(3, 0), (6, 0), (4, 0), (5, 0)]);
}

#[test]
fn mlfqs_serves_every_bucket_by_its_weight() {
    for (buckets, least, most) in [(BucketWeights::Uniform, 60, 140), (BucketWeights::InverseDuration, 10, 50)] {
        let options = PoolOptions { buckets, seed: 7, ..PoolOptions::default() };
        let mut world = World::with_devices("mlfqs", options, 1, ROOM);
        world.add_timed(1, 10, 0);
        world.add_timed(2, 100, 0);
        for request in 0..500 {
            world.request(request, 1 + request as u32 % 2);
        }
        for index in 0..200 {
            let request = world.dispatches()[index].0;
            world.done(request, if request.is_multiple_of(2) { 10 } else { 100 });
        }
        let long = world.dispatches().iter().filter(|(request, _)| request % 2 == 1).count();
        assert!((least..most).contains(&long), "{buckets:?}: {long} long ones of 200");
    }
}

#[test]
fn exclusive_groups_keep_to_their_devices() {
    let options =
        PoolOptions { steal: Steal { measure: StealMeasure::Never, ..Steal::default() }, ..Default::default() };
    let mut world = World::with_devices("exclusive", options, 4, ROOM);
    world.add_timed(1, 10, 5);
    world.add_timed(2, 10, 5);
    (1..=4).for_each(|request| world.request(request, 1));
    world.request(5, 2);
    assert_eq!(world.dispatches(), [(1, 0), (2, 1), (5, 2)]);
    world.done(2, 10);
    assert_eq!(world.dispatches()[3..], [(3, 1)]);
    // A function whose only suitable device belongs to another group runs there.
    let spec = FunctionSpec { group: GroupId(1), suits: Suits::Only(vec![DeviceId(3)]), ..FunctionSpec::default() };
    world.add_function(3, spec);
    world.request(6, 3);
    assert_eq!(world.dispatches()[4..], [(6, 3)]);
    assert_eq!(moves(&world), []);
}

#[test]
fn exclusive_steals_by_depth_and_leaves_one() {
    let run = |hysteresis| {
        let options = PoolOptions { steal: Steal { hysteresis, ..Steal::default() }, ..PoolOptions::default() };
        let mut world = World::with_devices("exclusive", options, 4, ROOM);
        world.add_timed(1, 10, 5);
        world.add_timed(2, 10, 5);
        world.now = Nanos(5);
        (1..=6).for_each(|request| world.request(request, 1));
        assert_eq!(moves(&world), [(2, 1)], "one of the two idle devices; the other is the last one");
        world.now = Nanos(6);
        (7..=20).for_each(|request| world.request(request, 2));
        for request in [1, 2, 3] {
            world.done(request, 10);
        }
        (moves(&world).len(), world)
    };
    assert!(run(Nanos(0)).0 > 1, "the other group is in need now");
    let (count, world) = run(Nanos(1000));
    assert!(!moves(&world)[1..].contains(&(2, 2)), "{count} moves; device 2 was moved a moment ago");
}

#[test]
fn exclusive_moves_by_rate_without_going_back_and_forth() {
    let run = |measure| {
        let steal = Steal { measure, percent: 150, hysteresis: Nanos(0) };
        let mut world = World::with_devices("exclusive", PoolOptions { steal, ..PoolOptions::default() }, 8, ROOM);
        world.add_timed(1, 30, 5);
        world.add_timed(2, 10, 5);
        let mut ends: Vec<(u64, u64)> = Vec::new();
        for request in 0..6000 {
            world.now.0 += 4;
            while let Some(at) = ends.iter().position(|(end, _)| *end <= world.now.0) {
                let (_, done) = ends.swap_remove(at);
                let before = world.dispatches().len();
                world.done(done, 10);
                let started = world.dispatches()[before..].to_vec();
                ends.extend(
                    started.iter().map(|(id, _)| (world.now.0 + if id.is_multiple_of(2) { 30 } else { 10 }, *id)),
                );
            }
            let before = world.log.len();
            world.request(request, 1 + request as u32 % 2);
            let started: Vec<u64> = world.log[before..]
                .iter()
                .filter_map(|action| match action {
                    PoolAction::Dispatch { request, .. } => Some(request.0),
                    _ => None,
                })
                .collect();
            ends.extend(started.iter().map(|id| (world.now.0 + if id.is_multiple_of(2) { 30 } else { 10 }, *id)));
            if request > 400 {
                break;
            }
        }
        moves(&world).len()
    };
    let moved = run(StealMeasure::Rate);
    assert!((1..=3).contains(&moved), "4 + 4 becomes 6 + 2 and stays: {moved} moves");
}

#[test]
fn exclusive_groups_take_turns_if_there_are_too_few_devices() {
    let mut world = plain("exclusive", 1);
    for function in 1..=3 {
        world.add_timed(function, 10, 5);
    }
    for request in 1..=6 {
        world.now.0 += 1;
        world.request(request, 1 + (request as u32 - 1) % 3);
    }
    for index in 0..6 {
        world.now.0 += 10;
        let request = world.dispatches()[index].0;
        world.done(request, 10);
    }
    assert_eq!(world.dispatches().len(), 6, "no function starves");
}

#[test]
fn affinity_prefers_holders_and_shares_by_weight() {
    let mut world = plain("affinity", 2);
    world.add_timed(1, 10, 5);
    world.add_timed(2, 10, 5);
    world.send(PoolEvent::Resident { device: DeviceId(1), function: FunctionId(1) });
    world.request(1, 1);
    assert_eq!(world.dispatches(), [(1, 1)], "it is loaded there");
    world.done(1, 10);
    world.send(PoolEvent::GroupWeight { group: GroupId(2), weight: 3 });
    for device in 0..2 {
        for function in 1..=2 {
            world.send(PoolEvent::Resident { device: DeviceId(device), function: FunctionId(function) });
        }
    }
    (10..410).for_each(|request| world.request(request, 1 + request as u32 % 2));
    for index in 1..201 {
        let request = world.dispatches()[index].0;
        world.done(request, 10);
    }
    let second = world.dispatches()[1..201].iter().filter(|(request, _)| request % 2 == 1).count();
    assert!((140..=160).contains(&second), "three of four: {second} of 200");
}

#[test]
fn static_shares_are_kept_even_if_others_idle() {
    let mut world = plain("static", 4);
    world.add_timed(1, 10, 5);
    world.add_timed(2, 10, 5);
    world.send(PoolEvent::GroupWeight { group: GroupId(1), weight: 3 });
    (1..=6).for_each(|request| world.request(request, 1));
    assert_eq!(world.dispatches().len(), 3, "three of four slots");
    (7..=9).for_each(|request| world.request(request, 2));
    assert_eq!(world.dispatches().len(), 4);
}

#[test]
fn cost_waits_for_a_holder_if_that_is_quicker() {
    // In the last case the first request takes longer than expected.
    for (remaining, reload, expected, is_late) in
        [(10, 100, None, false), (100, 10, Some(1), false), (10, 100, None, true)]
    {
        let mut world = World::with_devices("cost", PoolOptions::default(), 2, 2);
        world.add_timed(1, remaining, reload);
        // Memory is full, so that nothing is loaded ahead.
        world.add_timed(2, 1, 1);
        world.add_timed(3, 1, 1);
        for function in [2, 3] {
            world.send(PoolEvent::Resident { device: DeviceId(1), function: FunctionId(function) });
        }
        world.send(PoolEvent::Resident { device: DeviceId(0), function: FunctionId(1) });
        world.request(1, 1);
        world.request(2, 1);
        assert_eq!(world.dispatches().get(1).map(|dispatch| dispatch.1), expected, "{remaining} {reload}");
        if expected.is_none() {
            let loads_at = Nanos(world.now.0 + reload);
            assert_eq!(world.pool.wakeup(), Some(loads_at));
            world.now = if is_late { loads_at } else { Nanos(remaining) };
            if is_late {
                world.send(PoolEvent::Tick)
            } else {
                world.done(1, 10)
            }
            assert_eq!(world.dispatches()[1..], [(2, u16::from(is_late))], "no longer than a load takes");
        }
    }
}

#[test]
fn cost_replicates_what_is_in_demand_and_unloads_replicas_under_pressure() {
    let mut world = World::with_devices("cost", PoolOptions::default(), 2, 2);
    world.add_timed(1, 50, 60);
    world.add_timed(2, 50, 60);
    world.request(1, 1);
    world.request(2, 2);
    assert_eq!(world.dispatches(), [(1, 0), (2, 1)]);
    (3..=5).for_each(|request| world.request(request, 1));
    assert!(world.log.contains(&PoolAction::Load { function: FunctionId(1), device: DeviceId(1) }));
    // Device 1 holds 1 and 2. A third function needs room: the replica goes, not the only copy.
    world.send(PoolEvent::Resident { device: DeviceId(1), function: FunctionId(1) });
    for request in 3..=5 {
        world.requests.get_mut(&RequestId(request)).unwrap().ended = Some("cancelled");
        world.send(PoolEvent::Cancelled { request: RequestId(request) });
    }
    world.done(1, 50);
    world.request(6, 1);
    world.add_timed(3, 50, 60);
    world.done(2, 50);
    world.done(6, 50);
    // Function 4 runs only on device 0, so that function 3 has to go to device 1.
    let expected = vec![(DeviceKind(0), Expected { service: Some(Nanos(50)), reload: Some(Nanos(60)) })];
    let (group, suits) = (GroupId(4), Suits::Only(vec![DeviceId(0)]));
    world.add_function(4, FunctionSpec { group, constant_bytes: 1, suits, expected });
    world.request(7, 4);
    world.request(8, 3);
    assert_eq!(world.dispatches().last(), Some(&(8, 1)));
    let unloads: Vec<_> = world.log.iter().filter(|action| matches!(action, PoolAction::Unload { .. })).collect();
    assert_eq!(unloads, [&PoolAction::Unload { function: FunctionId(1), device: DeviceId(1) }]);
}

#[test]
fn nothing_starves_under_cost() {
    // One device, twice as many short requests as it can serve, and one long request.
    let mut world = plain("cost", 1);
    world.add_timed(1, 10, 1);
    world.add_timed(2, 1000, 1);
    let mut next = 10;
    world.request(next, 1);
    world.request(1, 2);
    // Requests that arrive within this time overtake it. Serving them takes twice as long.
    let bound = 1000 * 1000 / 20;
    for _ in 0..2 * bound / 10 + 200 {
        for _ in 0..2 {
            next += 1;
            world.request(next, 1);
        }
        world.now.0 += 10;
        let running = world.devices[&DeviceId(0)].in_flight[0];
        world.done(running.0, 10);
        if world.requests[&RequestId(1)].ended.is_some() {
            return;
        }
    }
    panic!("the long request is overtaken by requests that arrive more than {bound} ns after it");
}
