//! Single cases of the ledger: which group gets lent time, and launches that overlap.

use super::device::{Device, Work};
use atoll_core::tokens::{BusyTime, ShareRequest, ShareSpec, TokenConfig, TokenLedger};
use atoll_core::{Class, ClientId, Nanos};

const WINDOW: u64 = 10_000;

fn config() -> TokenConfig {
    TokenConfig::for_device(0).with_window(WINDOW, 100).expect("valid settings")
}

fn share(request: f64, limit: f64, group: u32) -> ShareSpec {
    let share = ShareRequest { sm_partition: 100.0, quota_request: request, quota_limit: limit, group };
    ShareSpec::new(&share).expect("a valid share")
}

/// The device time of two clients that always have work. A third client of the first one's group
/// has none, and its 70 % are lent.
fn received_beside_a_lender(group_of_other: u32) -> (u64, u64) {
    let mut device = Device::new(config());
    let shares = [(0, share(0.1, 1.0, 1)), (1, share(0.1, 1.0, group_of_other)), (2, share(0.7, 0.7, 1))];
    for (client, share) in shares {
        assert!(device.set(ClientId(client), share), "the requests fit");
    }
    for client in [ClientId(0), ClientId(1)] {
        let work = Work { class: Class::BestEffort, left: u64::MAX, launch: 50, block: 10 };
        device.workers.get_mut(&client).expect("set").work = Some(work);
    }
    device.advance(0);
    while device.now < 40 * WINDOW {
        let next = device.next().expect("there is work");
        device.advance(next);
    }
    (device.received_since(ClientId(0), 0), device.received_since(ClientId(1), 0))
}

#[test]
fn lent_time_goes_first_to_the_group_of_the_lender() {
    let (own, other) = received_beside_a_lender(2);
    assert!(own > 2 * other, "the lender's group got {own}, and the other {other}");
    let (first, second) = received_beside_a_lender(1);
    assert!(first < 2 * second && second < 2 * first, "in one group: {first} and {second}");
}

#[test]
fn launches_that_begin_together_count_once() {
    let mut ledger = TokenLedger::new(config());
    let client = ClientId(0);
    ledger.set(Nanos(0), client, share(0.5, 0.5, 0)).expect("it fits");
    (0..3).for_each(|_| ledger.issued(Nanos(0), client));
    // The launches of a CUDA graph have one start time.
    for ended in [100, 200, 300] {
        ledger.ended(Nanos(ended), client, Some(BusyTime { ended: Nanos(ended), ns: ended }));
    }
    let state = ledger.shares(Nanos(300)).next().expect("it has a share");
    assert_eq!((state.received_ns, state.used_ns, state.asked_ns), (300, 300, 300));
}
