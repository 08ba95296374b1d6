//! FaST-GShare §3.3.2. Clients that have used up their limit wait for the next window. The others
//! get tokens in the order of their shortfall until the first that does not fit.
//!
//! The paper does not say how long a token is; here it is the request of a window, as in the
//! published code. The paper has no classes and does not stop launches: work that is on the device
//! when a token expires runs to its end.

use super::{Decision, Round, Standing, WHOLE, end_expired};
use std::cmp::Reverse;

pub(super) fn plan(round: &Round<'_>, clients: &mut [Standing], decisions: &mut Vec<Decision>) {
    let now = round.now;
    let mut running = end_expired(now, clients, decisions);
    clients.sort_by_key(|client| (Reverse(i128::from(client.request) - i128::from(client.used)), client.client));
    for client in clients {
        let Some(class) = client.wants.filter(|_| !client.runs(now) && client.used < client.limit) else { continue };
        if client.units.part + running > WHOLE {
            break;
        }
        running += client.units.part;
        decisions.push(Decision::Grant { at: client.at, class, until: now.saturating_add(client.request.max(1)) });
    }
}
