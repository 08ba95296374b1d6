//! Packing: the paper's pods, random sets compared with an exhaustive packer, and instances that
//! are added and removed.
//!
//! A failure prints its seed; `ATOLL_SEED=7` runs it alone.

use atoll_core::packing::{Demand, InstanceId, PackError, Packer, Rect, SIDE};
use atoll_core::rng::Rng;
use std::collections::BTreeMap;

const BYTES: u64 = 16 << 30;

fn is_full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    only.map_or(0..if is_full() { 20 * count } else { count }, |seed| seed..seed + 1)
}

fn demand(quota: u32, partition: u32) -> Demand {
    Demand::new(quota, partition, 1 << 30).expect("a valid demand")
}

/// Packs demands as they arrive, and moves instances before another device is used; returns the
/// number of devices.
fn pack(demands: &[(u32, u32)], devices: usize) -> usize {
    let mut packer = Packer::new(devices, BYTES * 64).expect("devices");
    for (number, &(quota, partition)) in demands.iter().enumerate() {
        let plan = packer.plan(InstanceId(number as u64), demand(quota, partition)).expect("it fits");
        packer.adopt(plan);
        check(&packer);
    }
    packer.devices_used()
}

/// Checks that no two instances of a device overlap, and that none overlaps a free rectangle.
fn check(packer: &Packer) {
    let mut placed: BTreeMap<usize, Vec<Rect>> = BTreeMap::new();
    for (_, device, rect, _) in packer.instances() {
        assert!(rect.x + rect.w <= SIDE && rect.y + rect.h <= SIDE, "{rect:?} is not on the device");
        let others = placed.entry(device).or_default();
        assert!(!others.iter().any(|other| other.overlaps(rect)), "two instances overlap at {rect:?}");
        assert!(!packer.free(device).iter().any(|free| free.overlaps(rect)), "{rect:?} counts as free");
        others.push(rect);
    }
}

/// The pods of FaST-GShare §5.4: 4 ResNet, 2 RNNT, 2 BERT.
const PAPER: [(u32, u32); 8] = [(40, 12), (40, 12), (40, 12), (40, 12), (40, 24), (40, 24), (60, 50), (60, 50)];

/// Calls `f` with every permutation (Heap's algorithm); stops at the first that returns `false`.
fn permutations(items: &mut [(u32, u32)], count: usize, f: &mut impl FnMut(&[(u32, u32)])) {
    if count <= 1 {
        return f(items);
    }
    for at in 0..count {
        permutations(items, count - 1, f);
        let other = if count.is_multiple_of(2) { at } else { 0 };
        items.swap(other, count - 1);
    }
}

#[test]
fn the_pods_of_the_paper_need_one_device_in_every_order() {
    let (mut orders, mut tried) = (0, 0);
    permutations(&mut PAPER.clone(), PAPER.len(), &mut |order| {
        orders += 1;
        if is_full() || orders % 101 == 0 {
            tried += 1;
            assert_eq!(pack(order, 4), 1, "{order:?}");
        }
    });
    assert!(orders == 40_320 && tried > 390, "{tried} of {orders}");
}

#[test]
fn area_alone_admits_nothing() {
    let mut packer = Packer::new(1, BYTES).expect("a device");
    assert_eq!(packer.place(InstanceId(1), demand(80, 60)), Ok(0));
    let error = packer.plan(InstanceId(2), demand(80, 60)).expect_err("96 % of the area, and they exclude each other");
    assert_eq!(error.to_string(), "no room on 1 devices, even if all instances are moved; add a device");
}

#[test]
fn invalid_demands_are_refused_with_the_cause() {
    let refused = |quota, partition| Demand::new(quota, partition, 0).expect_err("refused").to_string();
    assert_eq!(refused(0, 10), "a quota of 0 %; 1 to 100 is possible");
    assert_eq!(refused(101, 10), "a quota of 101 %; 1 to 100 is possible");
    assert_eq!(refused(10, 0), "a partition of 0 %; 1 to 100 is possible");
    assert_eq!(refused(10, 130), "a partition of 130 %; 1 to 100 is possible");
    let mut packer = Packer::new(1, 10).expect("a device");
    let large = Demand::new(1, 1, 11).expect("valid");
    assert_eq!(packer.place(InstanceId(1), large), Err(PackError::Memory { wanted: 11, of: 10 }));
    let half = Demand::new(1, 1, 6).expect("valid");
    assert_eq!(packer.place(InstanceId(1), half), Ok(0));
    assert_eq!(packer.place(InstanceId(1), half), Err(PackError::Taken(InstanceId(1))));
    assert_eq!(packer.place(InstanceId(2), half), Err(PackError::NoDevice { devices: 1 }), "the memory is full");
    assert!(Packer::new(0, 1).is_err() && Packer::new(1_000, 1).is_err());
}

#[test]
fn instances_come_and_go_and_the_devices_are_empty_in_the_end() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let mut packer = Packer::new(3, BYTES).expect("devices");
        let mut placed = Vec::new();
        for number in 0..200 {
            if rng.below(5) < 3 {
                let (id, wanted) = (InstanceId(number), demand(1 + rng.below(60) as u32, 1 + rng.below(60) as u32));
                match packer.plan(id, wanted) {
                    Ok(plan) => {
                        let between = plan.moves.iter().filter(|other| other.from != other.to).count() as u64;
                        assert_eq!(plan.bytes(), between << 30, "ATOLL_SEED={seed}");
                        packer.adopt(plan);
                        placed.push(id);
                    }
                    Err(error) => assert_eq!(error, PackError::NoDevice { devices: 3 }, "ATOLL_SEED={seed}"),
                }
            } else if !placed.is_empty() {
                let id = placed.swap_remove(rng.below(placed.len() as u64) as usize);
                assert!(packer.remove(id) && !packer.remove(id), "ATOLL_SEED={seed}");
            }
            check(&packer);
            assert_eq!(packer.instances().count(), placed.len(), "ATOLL_SEED={seed}");
        }
        placed.into_iter().for_each(|id| assert!(packer.remove(id)));
        let whole = Rect { x: 0, y: 0, w: SIDE, h: SIDE };
        assert!(packer.devices_used() == 0 && (0..3).all(|device| packer.free(device) == [whole]), "ATOLL_SEED={seed}");
    }
}

/// `packing/rectpack.txt` has the sets with the bins that rectpack needs;
/// `tests/python/rectpack_sets.py` writes it.
#[test]
fn random_sets_need_no_more_devices_than_with_rectpack() {
    let (mut sets, mut fewer) = (0, 0);
    let every = if is_full() { 1 } else { 10 };
    let lines = include_str!("packing/rectpack.txt").lines().filter(|line| !line.starts_with('#'));
    for line in lines.step_by(every) {
        let (bins, rectangles) = line.split_once(' ').expect("bins and rectangles");
        let bins: usize = bins.parse().expect("a number");
        let side = |text: &str| text.parse::<u32>().expect("a number");
        let demands: Vec<(u32, u32)> = rectangles
            .split(' ')
            .map(|rectangle| rectangle.split_once('x').expect("WIDTHxHEIGHT"))
            .map(|(width, height)| (side(width), side(height)))
            .collect();
        let used = pack(&demands, demands.len());
        assert!(used <= bins, "{used} devices, rectpack needs {bins}: {line}");
        (sets, fewer) = (sets + 1, fewer + usize::from(used < bins));
    }
    assert!(sets * every == 1_000 && fewer > 0, "{fewer} of {sets}");
}

/// Whether rectangles fit onto one device: tries each rectangle at each corner formed by others.
fn fits(placed: &mut Vec<Rect>, rest: &[(u32, u32)]) -> bool {
    let Some((&(w, h), rest)) = rest.split_first() else { return true };
    let edges = |edge: fn(&Rect) -> u32| [0].into_iter().chain(placed.iter().map(edge)).collect::<Vec<u32>>();
    let (xs, ys) = (edges(|rect| rect.x + rect.w), edges(|rect| rect.y + rect.h));
    for &x in &xs {
        for &y in &ys {
            let rect = Rect { x, y, w, h };
            let is_free = x + w <= SIDE && y + h <= SIDE && !placed.iter().any(|other| other.overlaps(rect));
            if is_free {
                placed.push(rect);
                if fits(placed, rest) {
                    return true;
                }
                placed.pop();
            }
        }
    }
    false
}

#[test]
fn small_sets_need_no_more_devices_than_an_exhaustive_packer() {
    let (mut best, mut total) = (0, 0);
    for seed in seeds(150) {
        let mut rng = Rng::new(seed ^ 0x9ac);
        let count = 2 + rng.below(4);
        let demands: Vec<(u32, u32)> =
            (0..count).map(|_| (10 * (1 + rng.below(8) as u32), 10 * (1 + rng.below(8) as u32))).collect();
        // Every order, since a corner may form only once another rectangle is placed.
        let mut is_one = false;
        permutations(&mut demands.clone(), demands.len(), &mut |order| {
            is_one = is_one || fits(&mut Vec::new(), order);
        });
        let used = pack(&demands, 6);
        total += 1;
        best += u64::from(is_one == (used == 1));
        assert!(is_one || used > 1, "ATOLL_SEED={seed}: an impossible packing of {demands:?}");
    }
    assert_eq!(best, total, "sets that fit on one device took more");
}
