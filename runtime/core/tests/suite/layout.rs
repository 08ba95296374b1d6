//! The division of a device's compute units among its clients: the paper's pods, devices that
//! assign groups of units, and random clients that are added, changed and removed.
//!
//! A failure prints its seed; `ATOLL_SEED=7` runs it alone.

use atoll_core::ClientId;
use atoll_core::packing::{Divisible, Layout, Place, Reason, Rect, TIME};
use atoll_core::rng::Rng;
use atoll_core::tokens::{ShareRequest, ShareSpec, Span};
use std::collections::BTreeSet;

fn share(percent: f64, request: f64) -> ShareSpec {
    let request = ShareRequest { sm_partition: percent, quota_request: request, quota_limit: 1.0, group: 0 };
    ShareSpec::new(&request).expect("a valid share")
}

fn layout(units: u32, step: u32, lanes_max: u32) -> Layout {
    Layout::new(Divisible { units, step, lanes_max })
}

/// The layout of clients in this order, and the place of each.
fn places(mut layout: Layout, clients: &[(f64, f64)]) -> Vec<Place> {
    for (id, &(percent, request)) in (0..).zip(clients) {
        layout.set(ClientId(id), &share(percent, request));
        check(&layout, 16);
    }
    layout.places().map(|(_, place)| place).collect()
}

fn bound(first: u32, count: u32) -> Place {
    Place::Bound(Span { first, count })
}

/// Checks that rectangles do not overlap, and that there are at most `lanes_max` lanes.
fn check(layout: &Layout, lanes_max: u32) {
    let spans = layout.places().filter_map(|(_, place)| if let Place::Bound(span) = place { Some(span) } else { None });
    let lanes: BTreeSet<(u32, u32)> = spans.map(|span| (span.first, span.count)).collect();
    assert!(lanes.len() as u32 <= lanes_max, "more than {lanes_max} lanes: {lanes:?}");
    let ids: Vec<ClientId> = layout.places().map(|(id, _)| id).collect();
    let rects: Vec<Rect> = ids.iter().filter_map(|id| layout.rect(*id)).collect();
    for (at, rect) in rects.iter().enumerate() {
        assert!(rect.x + rect.w <= TIME, "{rect:?} is beyond the end of the time");
        assert!(!rects[at + 1..].iter().any(|other| other.overlaps(*rect)), "two clients overlap: {rects:?}");
    }
}

#[test]
fn a_client_gets_units_of_its_own_then_those_of_a_lane_with_time_then_others_move() {
    let two = layout(2, 1, 8);
    assert_eq!(places(two.clone(), &[(50.0, 0.5), (50.0, 0.5)]), [bound(0, 1), bound(1, 1)]);
    let three = places(two.clone(), &[(50.0, 0.5), (50.0, 0.7), (50.0, 0.5)]);
    assert_eq!(three, [bound(0, 1), bound(1, 1), bound(0, 1)], "the third one fits into the time of the first");
    let whole = places(two.clone(), &[(50.0, 0.6), (50.0, 0.6), (100.0, 0.4)]);
    assert_eq!(whole, [bound(0, 1), bound(1, 1), Place::Whole]);
    // Six of ten units, then four: with the whole device for half of the time, both move into the
    // other half.
    let moved = places(layout(10, 1, 8), &[(40.0, 0.5), (60.0, 0.5), (100.0, 0.5)]);
    assert_eq!((moved.len(), moved[2]), (3, Place::Whole));
    assert!(moved[..2].iter().all(|place| matches!(place, Place::Bound(_))), "{moved:?}");
}

#[test]
fn the_pods_of_the_paper_are_bound_on_one_device_in_any_order() {
    let paper =
        [(12.0, 0.4), (12.0, 0.4), (12.0, 0.4), (12.0, 0.4), (24.0, 0.4), (24.0, 0.4), (50.0, 0.6), (50.0, 0.6)];
    for first in 0..paper.len() {
        let mut order = paper;
        order.rotate_left(first);
        let found = places(layout(100, 1, 16), &order);
        assert!(found.iter().all(|place| matches!(place, Place::Bound(_))), "from {first}: {found:?}");
    }
}

#[test]
fn requests_that_come_to_all_of_the_time_are_bound_together() {
    let third = (50.0, 1.0 / 3.0);
    let found = places(layout(2, 1, 8), &[(50.0, 1.0), third, third, third]);
    assert_eq!(found, [bound(0, 1), bound(1, 1), bound(1, 1), bound(1, 1)]);
}

#[test]
fn devices_round_up_and_say_why_a_client_is_not_bound() {
    // 24 % of two units is one unit, and so is 50 %.
    let mut two = layout(2, 1, 8);
    two.set(ClientId(0), &share(24.0, 0.5));
    assert_eq!(two.place(ClientId(0)), Some(bound(0, 1)));
    assert_eq!(two.granted(ClientId(0)).map(|granted| granted.to_string()), Some("50 %".into()));
    // Groups of 8 of 132 units: 12 % are 16 units, the last 4 belong to no group.
    let mut groups = layout(132, 8, 8);
    groups.set(ClientId(0), &share(12.0, 0.5));
    // 96 % are 127 units, so 16 groups; 99 % are 131, more than the groups have.
    groups.set(ClientId(1), &share(96.0, 0.5));
    assert_eq!(groups.place(ClientId(0)), Some(bound(0, 16)));
    assert_eq!(groups.place(ClientId(1)), Some(bound(0, 128)));
    groups.set(ClientId(1), &share(99.0, 0.5));
    assert_eq!(groups.place(ClientId(1)), Some(Place::Whole));
    check(&groups, 8);
    let none = places(layout(4, 0, 8), &[(50.0, 0.5), (100.0, 0.5)]);
    assert_eq!(none, [Place::Unbound(Reason::Indivisible), Place::Whole]);
    let one = places(layout(1, 1, 8), &[(50.0, 0.5)]);
    assert_eq!(one, [Place::Whole], "the one unit of a device is all of it");
    let full = places(layout(2, 1, 8), &[(50.0, 0.9), (50.0, 0.9), (50.0, 0.2)]);
    assert_eq!(full[2], Place::Unbound(Reason::Room));
    // There is only one lane: clients with the same units share it, and another client must wait.
    let mut one_lane = layout(4, 1, 1);
    one_lane.set(ClientId(0), &share(50.0, 0.5));
    one_lane.set(ClientId(1), &share(50.0, 0.5));
    one_lane.set(ClientId(2), &share(25.0, 0.5));
    assert_eq!(one_lane.place(ClientId(1)), Some(bound(0, 2)));
    assert_eq!(one_lane.place(ClientId(2)), Some(Place::Unbound(Reason::Lanes)));
    one_lane.remove(ClientId(0));
    assert_eq!(one_lane.place(ClientId(2)), Some(Place::Unbound(Reason::Lanes)));
    one_lane.remove(ClientId(1));
    assert_eq!(one_lane.place(ClientId(2)), Some(bound(0, 1)), "it is bound once there is a lane");
}

#[test]
fn clients_that_come_change_and_go_never_overlap_and_a_quiet_change_moves_no_other() {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    let (mut moved, mut steps) = (0, 0);
    for seed in only.map_or(0..60, |seed| seed..seed + 1) {
        let mut rng = Rng::new(seed);
        let (units, step) = [(2, 1), (10, 1), (132, 8), (64, 2)][rng.below(4) as usize];
        let lanes_max = 1 + rng.below(8) as u32;
        let mut layout = layout(units, step, lanes_max);
        for _ in 0..60 {
            let id = ClientId(rng.below(10) as u32);
            let before: Vec<_> = layout.places().filter(|(other, _)| *other != id).collect();
            let room = layout.clone();
            if rng.one_in(3) {
                layout.remove(id);
            } else {
                layout.set(id, &share(1.0 + rng.below(100) as f64, 0.05 + rng.below(60) as f64 / 100.0));
            }
            check(&layout, lanes_max);
            let after: Vec<_> = layout.places().filter(|(other, _)| *other != id).collect();
            moved += u64::from(before != after);
            steps += 1;
            let unbound = |layout: &Layout| {
                layout.places().filter(|(other, place)| *other != id && matches!(place, Place::Unbound(_))).count()
            };
            assert!(unbound(&layout) <= unbound(&room), "seed {seed}: a client lost its units to another one");
        }
    }
    assert!(only.is_some() || moved > 0 && moved < steps / 2, "{moved} of {steps} changes moved other clients");
}
