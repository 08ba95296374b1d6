//! Placing of instances on a fleet: where they go, what moves for them and at which cost, and
//! seeded fleets whose instances come, leave, and lose their devices.
//!
//! A failure prints its seed; `ATOLL_SEED=7` runs it alone.

use atoll_core::packing::{Divisible, InstanceId};
use atoll_core::rng::Rng;
use atoll_core::scaling::{
    Assignment, Constants, Host, Need, Nowhere, Placed, Relocation, Spot, Stay, assign, consolidate, resized,
};
use atoll_core::tokens::{ShareRequest, ShareSpec};
use std::collections::{BTreeMap, BTreeSet};

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const ALL: u64 = u64::MAX;

fn is_full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    only.map_or(0..if is_full() { 20 * count } else { count }, |seed| seed..seed + 1)
}

fn share(percent: u32, quota: u32) -> ShareSpec {
    let quota = f64::from(quota) / 100.0;
    let request = ShareRequest { sm_partition: f64::from(percent), quota_request: quota, quota_limit: quota, group: 0 };
    ShareSpec::new(&request).expect("a valid share")
}

fn host(units: u32, bytes: u64) -> Host {
    let divisible = Divisible { units, step: 1, lanes_max: 64 };
    Host { divisible, bytes, is_open: true, reserved: Vec::new() }
}

/// An instance of function `function`, whose constants take 100 MiB.
fn need(function: u32, percent: u32, quota: u32) -> Need {
    let constants = Constants { function, bytes: 100 * MIB };
    Need { share: share(percent, quota), bytes: 0, constants, devices: ALL }
}

fn movable(id: u64, need: Need, device: usize) -> Placed {
    Placed { id: InstanceId(id), need, device, stay: Stay::Movable { drain_ns: 1_000_000 } }
}

fn now(device: usize) -> Spot {
    Spot::Now { device, is_over_memory: false }
}

fn want(hosts: &[Host], placed: &[Placed], need: Need) -> Assignment {
    assign(hosts, placed, &[(InstanceId(1_000), need)], 30 * SECOND)
}

#[test]
fn the_pods_of_the_paper_go_to_one_device_and_the_largest_comes_first() {
    let hosts = vec![host(80, 16 << 30); 4];
    let pods = [(12, 40), (12, 40), (12, 40), (12, 40), (24, 40), (24, 40), (50, 60), (50, 60)];
    let wanted: Vec<(InstanceId, Need)> =
        (0..).zip(pods).map(|(id, (percent, quota))| (InstanceId(id), need(percent, percent, quota))).collect();
    let Assignment { spots, moves } = assign(&hosts, &[], &wanted, 30 * SECOND);
    let order: Vec<u64> = spots.iter().map(|(id, _)| id.0).collect();
    assert_eq!(order, [6, 7, 4, 5, 0, 1, 2, 3]);
    let devices: BTreeSet<usize> = spots.iter().map(|(_, spot)| device_of(*spot).expect("a place")).collect();
    assert_eq!((devices.len(), moves.len()), (1, 0), "{spots:?}");
    // The pods one after the other, the smallest first: what is there is arranged anew.
    let mut placed = Vec::new();
    for (id, need) in wanted {
        let found = assign(&hosts, &placed, &[(id, need)], 30 * SECOND);
        assert_eq!((found.spots[0].1, found.moves.len()), (now(0), 0), "{id:?}");
        placed.push(movable(id.0, need, 0));
    }
}

fn device_of(spot: Spot) -> Option<usize> {
    match spot {
        Spot::Now { device, .. } | Spot::Later { device } => Some(device),
        Spot::Nowhere(_) => None,
    }
}

#[test]
fn an_instance_goes_where_the_least_room_is_left_and_to_another_device_only_without_room() {
    let hosts = vec![host(10, 1 << 30); 3];
    let placed = [movable(0, need(0, 100, 40), 0), movable(1, need(0, 100, 61), 1)];
    assert_eq!(want(&hosts, &placed, need(0, 100, 30)).spots[0].1, now(1), "9 % of its time are left then");
    assert_eq!(want(&hosts, &placed, need(0, 100, 50)).spots[0].1, now(0));
    let third = want(&hosts, &placed, need(0, 100, 90));
    assert_eq!((third.spots[0].1, third.moves.len()), (now(2), 0), "the device without instances");
}

#[test]
fn others_move_before_another_device_is_asked_for_if_that_pays() {
    let hosts = vec![host(10, 1 << 30); 3];
    // 40 % and 30 % are left, and 60 % fit once the 30 % of device 0 are on device 1.
    let placed = [movable(0, need(0, 100, 30), 0), movable(1, need(1, 100, 30), 0), movable(2, need(2, 100, 70), 1)];
    let wanted = need(3, 100, 60);
    let found = want(&hosts, &placed, wanted);
    let cost_ns = 1_000_000 + 100 * MIB;
    assert_eq!(found.moves, [Relocation { instance: InstanceId(0), from: 0, to: 1, cost_ns }]);
    assert_eq!(found.spots[0].1, Spot::Later { device: 0 }, "the old place is taken until its requests have ended");
    assert_eq!(found.cost_ns(), cost_ns);
    // Another instance of the function is there: its constants are, too, so this one is cheaper.
    let with_constants = [placed[0], placed[1], movable(2, need(1, 100, 70), 1)];
    let found = want(&hosts, &with_constants, wanted);
    assert_eq!(found.moves, [Relocation { instance: InstanceId(1), from: 0, to: 1, cost_ns: 1_000_000 }]);
    // Moves that cost more than the device is worth are not made.
    let short = assign(&hosts, &placed, &[(InstanceId(9), wanted)], cost_ns - 1);
    assert_eq!((short.spots[0].1, short.moves.len()), (now(2), 0));
    // What does not move is an operator's.
    let fixed = placed.map(|placed| Placed { stay: Stay::Fixed, ..placed });
    assert_eq!(want(&hosts, &fixed, wanted).spots[0].1, now(2));
    // Once it has left, there is room.
    let left = [movable(3, need(0, 100, 30), 1), placed[1], placed[2]];
    assert_eq!(want(&hosts, &left, wanted).spots[0].1, now(0));
    let leaving = [Placed { stay: Stay::Leaving, ..placed[0] }, left[0], left[1], left[2]];
    let waits = want(&hosts, &leaving, wanted);
    assert_eq!((waits.spots[0].1, waits.moves.len()), (Spot::Later { device: 0 }, 0), "nothing more moves meanwhile");
}

#[test]
fn an_instance_that_can_be_on_one_device_only_has_others_make_room() {
    let hosts = vec![host(10, 1 << 30); 2];
    let placed = [movable(0, need(0, 100, 60), 0)];
    let bound = Need { devices: 1, ..need(1, 100, 50) };
    let found = want(&hosts, &placed, bound);
    assert_eq!(found.moves.iter().map(|found| (found.instance, found.to)).collect::<Vec<_>>(), [(InstanceId(0), 1)]);
    assert_eq!(found.spots[0].1, Spot::Later { device: 0 });
    // It brings half a device for as long as it stays.
    let brings = assign(&hosts, &placed, &[(InstanceId(9), bound)], found.cost_ns() * 2 - 2);
    assert_eq!(brings.spots[0].1, Spot::Nowhere(Nowhere::Room));
    assert_eq!(assign(&hosts, &placed, &[(InstanceId(9), bound)], found.cost_ns() * 2), found_as(&found, 9));
}

/// The same assignment for another number.
fn found_as(found: &Assignment, id: u64) -> Assignment {
    Assignment { spots: vec![(InstanceId(id), found.spots[0].1)], moves: found.moves.clone() }
}

#[test]
fn constants_count_once_and_memory_is_exceeded_only_at_last() {
    let hosts = vec![host(10, 250 * MIB); 2];
    let placed = [movable(0, need(0, 100, 10), 0), movable(1, need(1, 100, 10), 0)];
    assert_eq!(want(&hosts, &placed, need(1, 100, 10)).spots[0].1, now(0), "its constants are there");
    assert_eq!(want(&hosts, &placed, need(2, 100, 10)).spots[0].1, now(1), "300 MiB of constants");
    let large = Need { constants: Constants { function: 2, bytes: 300 * MIB }, ..need(2, 100, 10) };
    let over = want(&hosts, &placed, large).spots[0].1;
    assert_eq!(over, Spot::Now { device: 1, is_over_memory: true }, "the device that lacks the least");
    let own = Need { bytes: 60 * MIB, ..need(1, 100, 10) };
    assert_eq!(want(&hosts, &placed, own).spots[0].1, now(1));
}

#[test]
fn devices_that_are_lost_or_promised_to_tenants_take_nothing() {
    let mut hosts = vec![host(10, 1 << 30); 2];
    hosts[0].is_open = false;
    assert_eq!(want(&hosts, &[], need(0, 50, 50)).spots[0].1, now(1));
    assert_eq!(want(&hosts, &[], Need { devices: 1, ..need(0, 50, 50) }).spots[0].1, Spot::Nowhere(Nowhere::Closed));
    hosts[1].reserved = vec![share(100, 80)];
    assert_eq!(want(&hosts, &[], need(0, 50, 30)).spots[0].1, Spot::Nowhere(Nowhere::Room));
    assert_eq!(want(&hosts, &[], need(0, 50, 20)).spots[0].1, now(1));
    // A device that cannot be divided keeps shares in time, two halves beside each other.
    hosts[1] =
        Host { divisible: Divisible { units: 80, step: 0, lanes_max: 0 }, reserved: Vec::new(), ..hosts[1].clone() };
    let placed = [movable(0, need(0, 50, 100), 1)];
    assert_eq!(want(&hosts, &placed, need(0, 50, 100)).spots[0].1, now(1));
    assert_eq!(want(&hosts, &placed, need(0, 60, 10)).spots[0].1, Spot::Nowhere(Nowhere::Room));
}

#[test]
fn a_device_is_freed_when_others_have_room_and_that_pays() {
    let hosts = vec![host(10, 1 << 30); 3];
    let placed = [movable(0, need(0, 100, 60), 0), movable(1, need(1, 100, 30), 1), movable(2, need(2, 100, 20), 2)];
    let moves = consolidate(&hosts, &placed, false, 30 * SECOND);
    assert_eq!(moves.iter().map(|found| (found.instance.0, found.from, found.to)).collect::<Vec<_>>(), [(2, 2, 0)]);
    assert_eq!(consolidate(&hosts, &placed, false, moves[0].cost_ns - 1), []);
    let leaving = [placed[0], placed[1], placed[2], Placed { stay: Stay::Leaving, ..movable(3, need(1, 1, 1), 1) }];
    assert_eq!(consolidate(&hosts, &leaving, false, 30 * SECOND), []);
    let full = [movable(0, need(0, 100, 60), 0), movable(1, need(1, 100, 50), 1)];
    assert_eq!(consolidate(&hosts, &full, false, 30 * SECOND), []);
}

#[test]
fn the_first_sets_of_each_device_are_tried() {
    let hosts = vec![host(10, 1 << 30); 3];
    // Device 0 has more sets than are tried, and none of its instances may leave it.
    let stuck = |id| movable(id, Need { devices: 1, ..need(0, 100, 4) }, 0);
    let mut placed: Vec<Placed> = (0..24).map(stuck).collect();
    placed.extend([movable(30, need(1, 100, 60), 1), movable(31, need(2, 100, 10), 2)]);
    let found = want(&hosts, &placed, Need { devices: 0b11, ..need(3, 100, 50) });
    assert_eq!(found.moves.iter().map(|found| (found.instance.0, found.to)).collect::<Vec<_>>(), [(30, 2)]);
    assert_eq!(found.spots[0].1, Spot::Later { device: 1 });
}

#[test]
fn instances_that_made_room_do_not_move_back_before_it_is_used() {
    let hosts = vec![host(10, 1 << 30); 2];
    let fixed = Placed { stay: Stay::Fixed, ..movable(1, need(2, 100, 20), 0) };
    let placed = vec![movable(0, need(0, 100, 60), 0), fixed];
    let mut fleet = Simulated { hosts, placed, next: 100, seed: 0 };
    let wanted = Need { devices: 1, ..need(1, 100, 50) };
    let first = want(&fleet.hosts, &fleet.placed, wanted);
    assert_eq!((first.spots[0].1, first.moves.len()), (Spot::Later { device: 0 }, 1));
    fleet.relocate(&first.moves);
    fleet.placed.retain(|placed| placed.stay != Stay::Leaving);
    let back = consolidate(&fleet.hosts, &fleet.placed, false, 30 * SECOND);
    assert_eq!(back.iter().map(|found| (found.from, found.to)).collect::<Vec<_>>(), [(1, 0)], "the place is free");
    assert_eq!(consolidate(&fleet.hosts, &fleet.placed, true, 30 * SECOND), [], "another one waits for it");
    assert_eq!(want(&fleet.hosts, &fleet.placed, wanted).spots[0].1, now(0));
}

#[test]
fn shares_that_are_not_bound_are_promised_their_time() {
    let divisible = Divisible { units: 10, step: 1, lanes_max: 1 };
    let hosts = [Host { divisible, ..host(10, 1 << 30) }];
    // The second one has no lane, so it has no rectangle.
    let placed = [movable(0, need(0, 50, 70), 0), movable(1, need(1, 40, 80), 0)];
    assert_eq!(want(&hosts, &placed, need(2, 50, 30)).spots[0].1, now(0));
    // There is a rectangle beside the first one, but not as much time beside the second one.
    assert_eq!(want(&hosts, &placed, need(2, 100, 30)).spots[0].1, Spot::Nowhere(Nowhere::Room));
}

#[test]
fn an_instance_grows_where_it_is_once_those_that_leave_have_left() {
    let hosts = vec![host(10, 1 << 30); 2];
    let mut placed: Vec<Placed> = (0..5).map(|id| movable(id, need(0, 100, 20), 0)).collect();
    placed[4].stay = Stay::Leaving;
    let grown = |placed: &[Placed], quota| resized(&hosts, placed, InstanceId(0), share(100, quota));
    // With the leaving one, the shares would come to 120 %, which a device refuses.
    assert_eq!(grown(&placed, 40), Spot::Later { device: 0 });
    assert_eq!((grown(&placed, 20), grown(&placed, 10)), (now(0), now(0)));
    assert_eq!((grown(&placed[..4], 40), grown(&placed[..4], 41)), (now(0), Spot::Nowhere(Nowhere::Room)));
    assert_eq!(resized(&hosts, &placed, InstanceId(9), share(100, 10)), Spot::Nowhere(Nowhere::Closed));
}

/// A fleet whose instances are moved by successors, as the daemon moves them.
struct Simulated {
    hosts: Vec<Host>,
    placed: Vec<Placed>,
    next: u64,
    seed: u64,
}

impl Simulated {
    /// All that is on a device at the moment has room there, constants included unless that was
    /// said.
    fn check(&self, is_over: &BTreeSet<usize>) {
        for (at, host) in self.hosts.iter().enumerate() {
            let of_device: Vec<&Placed> = self.placed.iter().filter(|placed| placed.device == at).collect();
            let size = |need: &Need| {
                u64::from(need.share.request().millionths()) * u64::from(need.share.partition().millionths())
            };
            let time: u64 = of_device.iter().map(|placed| size(&placed.need) / 1_000_000).sum();
            assert!(time <= 1_000_000, "ATOLL_SEED={}: device {at} is promised {time} ppm", self.seed);
            let constants: BTreeMap<u32, u64> =
                of_device.iter().map(|placed| (placed.need.constants.function, placed.need.constants.bytes)).collect();
            let bytes: u64 = constants.values().sum();
            assert!(bytes <= host.bytes || is_over.contains(&at), "ATOLL_SEED={}: {bytes} on {at}", self.seed);
        }
    }

    fn relocate(&mut self, moves: &[Relocation]) {
        for &Relocation { instance, from, to, .. } in moves {
            let at = self.placed.iter().position(|placed| placed.id == instance && placed.device == from);
            let at = at.unwrap_or_else(|| panic!("ATOLL_SEED={}: {instance:?} is not on {from}", self.seed));
            let moved = self.placed[at];
            assert!(matches!(moved.stay, Stay::Movable { .. }), "ATOLL_SEED={}: {moved:?} moves", self.seed);
            assert!(
                self.hosts[to].is_open && to != from && moved.need.devices >> to & 1 == 1,
                "ATOLL_SEED={}",
                self.seed
            );
            self.placed[at].stay = Stay::Leaving;
            self.next += 1;
            self.placed.push(Placed { id: InstanceId(self.next), device: to, ..moved });
        }
    }

    fn used(&self) -> usize {
        let stays = self.placed.iter().filter(|placed| placed.stay != Stay::Leaving);
        stays.map(|placed| placed.device).collect::<BTreeSet<usize>>().len()
    }
}

#[test]
fn seeded_fleets_keep_their_promises_while_instances_come_move_and_leave() {
    let (mut moved, mut freed, mut refused, mut waited) = (0, 0, 0, 0);
    for seed in seeds(60) {
        let mut rng = Rng::new(seed ^ 0x91ac);
        let hosts = (0..2 + rng.below(3)).map(|_| host([2, 10, 80][rng.below(3) as usize], 400 * MIB)).collect();
        let mut fleet = Simulated { hosts, placed: Vec::new(), next: 0, seed };
        let mut is_over = BTreeSet::new();
        for _ in 0..60 {
            match rng.below(11) {
                10 if !fleet.placed.is_empty() => {
                    let at = rng.below(fleet.placed.len() as u64) as usize;
                    let Placed { id, device, stay, .. } = fleet.placed[at];
                    let other = share([10, 25, 50, 100][rng.below(4) as usize], 5 * (1 + rng.below(12) as u32));
                    let stays: Vec<Placed> =
                        fleet.placed.iter().filter(|placed| placed.stay != Stay::Leaving).copied().collect();
                    match resized(&fleet.hosts, &fleet.placed, id, other) {
                        _ if stay == Stay::Leaving => {}
                        Spot::Now { device: there, .. } => {
                            assert_eq!(there, device, "ATOLL_SEED={seed}: it is resized where it is");
                            fleet.placed[at].need.share = other;
                        }
                        Spot::Later { device: there } => {
                            waited += 1;
                            let after = resized(&fleet.hosts, &stays, id, other);
                            assert!(there == device && device_of(after) == Some(device), "ATOLL_SEED={seed}");
                            assert!(matches!(after, Spot::Now { .. }), "ATOLL_SEED={seed}: the room is missing");
                        }
                        Spot::Nowhere(_) => {
                            let after = resized(&fleet.hosts, &stays, id, other);
                            assert_eq!(device_of(after), None, "ATOLL_SEED={seed}: there would be room");
                        }
                    }
                }
                0..=4 => {
                    let devices = if rng.below(4) == 0 { 1 << rng.below(fleet.hosts.len() as u64) } else { ALL };
                    let percents = [10, 25, 50, 100];
                    let wanted = Need {
                        devices,
                        ..need(rng.below(5) as u32, percents[rng.below(4) as usize], 5 * (1 + rng.below(12) as u32))
                    };
                    fleet.next += 1;
                    let id = InstanceId(fleet.next);
                    let found = assign(&fleet.hosts, &fleet.placed, &[(id, wanted)], 10 * SECOND);
                    let again = assign(&fleet.hosts, &fleet.placed, &[(id, wanted)], 10 * SECOND);
                    assert_eq!(found, again, "ATOLL_SEED={seed}: not deterministic");
                    assert!(found.cost_ns() <= 10 * SECOND, "ATOLL_SEED={seed}: moves that do not pay");
                    moved += found.moves.len();
                    fleet.relocate(&found.moves);
                    match found.spots[0].1 {
                        Spot::Now { device, is_over_memory } => {
                            assert!(fleet.hosts[device].is_open && devices >> device & 1 == 1, "ATOLL_SEED={seed}");
                            if is_over_memory {
                                is_over.insert(device);
                            }
                            let stay = if rng.below(5) == 0 { Stay::Fixed } else { Stay::Movable { drain_ns: 1 } };
                            fleet.placed.push(Placed { id, need: wanted, device, stay });
                        }
                        Spot::Later { .. } => {}
                        Spot::Nowhere(_) => refused += 1,
                    }
                }
                5..=6 => fleet.placed.retain(|placed| placed.stay != Stay::Leaving),
                7 if !fleet.placed.is_empty() => {
                    let at = rng.below(fleet.placed.len() as u64) as usize;
                    fleet.placed[at].stay = Stay::Leaving;
                }
                8 => {
                    let used = fleet.used();
                    let moves = consolidate(&fleet.hosts, &fleet.placed, false, SECOND);
                    fleet.relocate(&moves);
                    if !moves.is_empty() {
                        assert_eq!(fleet.used(), used - 1, "ATOLL_SEED={seed}");
                        freed += 1;
                    }
                }
                _ => {
                    // A device is drained, or taken up again; what moves from it moves by itself.
                    let at = rng.below(fleet.hosts.len() as u64) as usize;
                    fleet.hosts[at].is_open = !fleet.hosts[at].is_open;
                    if !fleet.hosts[at].is_open {
                        fleet.placed.retain(|placed| placed.device != at);
                        is_over.remove(&at);
                    }
                }
            }
            fleet.check(&is_over);
        }
    }
    let is_one = std::env::var_os("ATOLL_SEED").is_some();
    let all = moved > 0 && freed > 0 && refused > 0 && waited > 0;
    assert!(is_one || all, "{moved} moves, {freed} freed, {refused} refused, {waited} waited");
}

#[test]
fn no_more_devices_are_used_than_without_moves() {
    let (mut fewer, mut sets) = (0, 0);
    for seed in seeds(30) {
        let mut rng = Rng::new(seed ^ 0xf00d);
        let hosts = vec![host(10, 64 << 30); 8];
        let count = 6 + rng.below(8);
        let needs: Vec<Need> = (0..count)
            .map(|_| need(rng.below(3) as u32, 10 * (2 + rng.below(8) as u32), 10 * (2 + rng.below(7) as u32)))
            .collect();
        let used = |pay_ns: u64| {
            let mut fleet = Simulated { hosts: hosts.clone(), placed: Vec::new(), next: 1_000, seed };
            for (id, need) in (0..).zip(&needs) {
                // It is tried again when those that leave have left.
                let device = loop {
                    let found = assign(&fleet.hosts, &fleet.placed, &[(InstanceId(id), *need)], pay_ns);
                    fleet.relocate(&found.moves);
                    match found.spots[0].1 {
                        Spot::Now { device, .. } => break device,
                        Spot::Later { .. } => fleet.placed.retain(|placed| placed.stay != Stay::Leaving),
                        Spot::Nowhere(why) => panic!("ATOLL_SEED={seed}: {why} on eight devices"),
                    }
                };
                fleet.placed.push(Placed { device, ..movable(id, *need, device) });
            }
            fleet.used()
        };
        let (with, without) = (used(u64::MAX), used(0));
        sets += 1;
        fewer += usize::from(with < without);
        assert!(with <= without + 1, "ATOLL_SEED={seed}: {with} devices with moves, {without} without");
    }
    let is_one = std::env::var_os("ATOLL_SEED").is_some();
    assert!(is_one || fewer > 0, "moves saved a device in {fewer} of {sets} sets");
}
