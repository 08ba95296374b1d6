//! FaST-GShare's published code (ST-vGPU, 2025-09-30), with its faults: it ignores the compute
//! units of other tokens given in the same round; small clients overtake large ones; compute units
//! count as free as soon as a token expires. The ledger charges tokens in full.

use super::{Decision, Round, Standing, WHOLE, end_expired};
use std::cmp::Ordering;

pub(super) fn plan(round: &Round<'_>, clients: &mut [Standing], decisions: &mut Vec<Decision>) {
    let now = round.now;
    let running = end_expired(now, clients, decisions);
    clients.sort_by(order);
    for client in clients {
        let Some(class) = client.wants.filter(|_| !client.runs(now) && client.used < client.limit) else { continue };
        if client.units.part + running <= WHOLE {
            decisions.push(Decision::Grant { at: client.at, class, until: now.saturating_add(client.request.max(1)) });
        }
    }
}

/// Clients below their request come first, those that lack the larger part of it before the others.
/// Clients above it follow, those with the least use first.
fn order(a: &Standing, b: &Standing) -> Ordering {
    let missing =
        |client: &Standing, other: &Standing| u128::from(client.request - client.used) * u128::from(other.request);
    let by_use = match (a.is_below_request(), b.is_below_request()) {
        (true, true) => missing(b, a).cmp(&missing(a, b)),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => a.used.cmp(&b.used),
    };
    by_use.then(a.client.cmp(&b.client))
}
