//! Tests of the policy `cost` in pools of different kinds of devices.

use super::world::World;
use crate::ids::{DeviceId, Nanos};
use crate::placement::*;

const CPU: u16 = 0;
const GPU: u16 = 1;

/// A CPU, and a GPU that is fifty times as fast. Both have room for everything.
fn world() -> World {
    let mut world = World::new("cost", PoolOptions::default());
    for device in [CPU, GPU] {
        world.add_device(device, DeviceSpec { kind: DeviceKind(device), slots: 1, memory_bytes: 1000 });
    }
    world
}

/// Adds a function that takes 500 ns on the CPU, 10 ns on the GPU, and 100 ns to load there.
fn add(world: &mut World, id: u32) {
    let expected = |service, reload| Expected { service: Some(Nanos(service)), reload: Some(Nanos(reload)) };
    world.add_function(
        id,
        FunctionSpec {
            group: GroupId(id),
            constant_bytes: 1,
            suits: Suits::All,
            expected: vec![(DeviceKind(CPU), expected(500, 0)), (DeviceKind(GPU), expected(10, 100))],
        },
    );
}

fn resident(world: &mut World, device: u16, function: u32) {
    world.send(PoolEvent::Resident { device: DeviceId(device), function: FunctionId(function) });
}

/// Requests that were dispatched to a device.
fn count(world: &World, device: u16) -> usize {
    world.dispatches().iter().filter(|dispatch| dispatch.1 == device).count()
}

#[test]
fn cost_leaves_a_slow_device_idle_if_the_fast_one_is_sooner() {
    let mut world = world();
    add(&mut world, 1);
    resident(&mut world, CPU, 1);
    world.request(1, 1);
    assert_eq!(world.dispatches(), [(1, GPU)], "a load and a run there are sooner than a run on the holder");
    world.request(2, 1);
    assert_eq!(world.dispatches().len(), 1, "the CPU is free and holds it, and takes longer");
    assert!(world.pool.wakeup().is_some_and(|at| at <= Nanos(500)), "it does not wait for ever");
    world.now = Nanos(110);
    world.done(1, 10);
    assert_eq!(world.dispatches(), [(1, GPU), (2, GPU)]);
}

#[test]
fn cost_uses_a_slow_device_if_many_requests_wait() {
    let mut world = world();
    add(&mut world, 1);
    [CPU, GPU].iter().for_each(|device| resident(&mut world, *device, 1));
    (1..=40).for_each(|request| world.request(request, 1));
    assert_eq!((count(&world, CPU), count(&world, GPU)), (0, 1), "the GPU has finished them after 400 ns");
    (41..=60).for_each(|request| world.request(request, 1));
    assert_eq!((count(&world, CPU), count(&world, GPU)), (1, 1), "the last one would end after 500 ns");
}

#[test]
fn cost_leaves_a_slow_device_idle_with_many_functions_too() {
    let mut world = world();
    (1..=5).for_each(|function| add(&mut world, function));
    for function in 1..=5 {
        [CPU, GPU].iter().for_each(|device| resident(&mut world, *device, function));
        world.request(u64::from(function), function);
    }
    for request in 1..=5 {
        assert_eq!((count(&world, CPU), count(&world, GPU)), (0, request), "{:?}", world.dispatches());
        world.now.0 += 10;
        let running = world.dispatches()[request - 1].0;
        world.done(running, 10);
    }
}

#[test]
fn no_request_waits_longer_for_a_fast_device_than_a_slow_one_takes() {
    let mut world = world();
    add(&mut world, 1);
    [CPU, GPU].iter().for_each(|device| resident(&mut world, *device, 1));
    (1..=2).for_each(|request| world.request(request, 1));
    assert_eq!(world.dispatches(), [(1, GPU)]);
    // The GPU does not answer.
    while let Some(at) = world.pool.wakeup().filter(|_| world.dispatches().len() == 1) {
        assert!(at > world.now && at <= Nanos(500), "{at:?}");
        world.now = at;
        world.send(PoolEvent::Tick);
    }
    assert_eq!((world.dispatches(), world.now), (vec![(1, GPU), (2, CPU)], Nanos(500)));
}

#[test]
fn each_kind_of_device_is_tried_once_and_then_the_faster_one_is_used() {
    let mut world = world();
    world.add_function(1, FunctionSpec { constant_bytes: 1, ..FunctionSpec::default() });
    [CPU, GPU].iter().for_each(|device| resident(&mut world, *device, 1));
    for request in 1..=6 {
        world.request(request, 1);
        let (_, device) = *world.dispatches().last().expect("a device is free");
        world.now.0 += 1000;
        world.done(request, if device == GPU { 10 } else { 500 });
    }
    assert_eq!((count(&world, CPU), count(&world, GPU)), (1, 5), "{:?}", world.dispatches());
}

#[test]
fn a_pool_whose_fast_devices_are_lost_or_drained_uses_the_slow_one() {
    for is_lost in [true, false] {
        let mut world = world();
        add(&mut world, 1);
        if is_lost {
            world.lose(GPU);
        } else {
            world.devices.get_mut(&DeviceId(GPU)).expect("a device").draining = true;
            world.send(PoolEvent::DeviceDraining { device: DeviceId(GPU) });
        }
        world.request(1, 1);
        assert_eq!(world.dispatches(), [(1, CPU)], "lost: {is_lost}");
    }
}
