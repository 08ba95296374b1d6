//! The connections of each address to the port of sessions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the connections of addresses, so that one machine cannot take the places of all others.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Most connections of one address.
    pub(super) most: u32,
    open: Mutex<BTreeMap<IpAddr, u32>>,
}

/// A connection of an address, counted until it is dropped.
#[derive(Debug)]
pub(super) struct AddressSeat {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    pub(crate) fn new(most: u32) -> Addresses {
        Addresses { most, open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection. `None` if the address has the most already.
    pub(super) fn take(self: &Arc<Addresses>, address: IpAddr) -> Option<AddressSeat> {
        let address = network(address);
        let mut open = self.lock();
        let count = open.entry(address).or_default();
        if *count >= self.most {
            if *count == 0 {
                open.remove(&address);
            }
            return None;
        }
        *count += 1;
        Some(AddressSeat { addresses: self.clone(), address })
    }
}

impl Drop for AddressSeat {
    fn drop(&mut self) {
        let mut open = self.addresses.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// What counts as one address: of IPv6 the first 64 bits, since a machine can choose the others.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_cannot_take_all_places() {
        let addresses = Arc::new(Addresses::new(2));
        let take = |text: &str| addresses.take(text.parse().unwrap());
        for [one, same, other] in
            [["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"], ["2001:db8::1", "2001:db8::ffff:0:0:2", "2001:db8:0:1::1"]]
        {
            let (first, second) = (take(one), take(same));
            assert!(first.is_some() && second.is_some(), "{one}");
            assert!(take(one).is_none() && take(same).is_none(), "{one} and {same} are one");
            assert!(take(other).is_some(), "{other} is another one");
            drop(first);
            assert!(take(one).is_some(), "a closed connection leaves its place");
        }
        assert!(addresses.lock().is_empty());
        assert!(Arc::new(Addresses::new(0)).take("10.0.0.1".parse().unwrap()).is_none());
    }
}
