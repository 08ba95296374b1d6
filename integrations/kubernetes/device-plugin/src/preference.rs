//! Which units a container should get: those of few devices.

use crate::resource::UnitId;
use std::collections::{BTreeMap, BTreeSet};

/// Chooses `count` of the available ids, with those that are required. A lease is of one device, so
/// units of one device are taken where one has enough: of the device that has fewest left, so that
/// others keep room for large leases. Fewer than `count` are chosen if no more are available.
pub(crate) fn choose(available: &[String], required: &[String], count: usize) -> Vec<String> {
    let mut chosen: Vec<String> = required.to_vec();
    let taken: BTreeSet<&str> = required.iter().map(String::as_str).collect();
    let mut of_device: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
    for id in available.iter().map(String::as_str).filter(|id| !taken.contains(id)) {
        // Ids of other plugins would be devices of their own.
        let UnitId { device, number } = UnitId::parse(id).unwrap_or(UnitId { device: id, number: 0 });
        of_device.entry(device).or_default().push((number, id));
    }
    let mut is_begun: BTreeSet<&str> = taken.iter().filter_map(|id| Some(UnitId::parse(id)?.device)).collect();
    while let Some(missing) = count.checked_sub(chosen.len()).filter(|missing| *missing > 0) {
        let rank = |(device, units): &(&&str, &Vec<(u64, &str)>)| {
            let is_enough = units.len() >= missing;
            // The smallest that is enough, else the largest.
            let left = if is_enough { units.len() } else { usize::MAX - units.len() };
            (!is_begun.contains(**device), !is_enough, left)
        };
        let Some(device) = of_device.iter().min_by_key(rank).map(|(device, _)| *device) else { break };
        let mut units = of_device.remove(device).unwrap_or_default();
        units.sort_unstable();
        chosen.extend(units.into_iter().take(missing).map(|(_, id)| id.to_owned()));
        is_begun.insert(device);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(device: &str, numbers: std::ops::Range<u64>) -> Vec<String> {
        numbers.map(|number| format!("{device}-{number}")).collect()
    }

    #[test]
    fn one_device_is_taken_if_it_has_enough() {
        let available = [ids("a", 0..50), ids("b", 0..20), ids("c", 0..100)].concat();
        assert_eq!(choose(&available, &[], 10), ids("b", 0..10));
        assert_eq!(choose(&available, &[], 30), ids("a", 0..30));
        assert_eq!(choose(&available, &[], 60), ids("c", 0..60));
        // No device has enough: the largest first, then the smallest that has the rest.
        assert_eq!(choose(&available, &[], 110), [ids("c", 0..100), ids("b", 0..10)].concat());
        assert_eq!(choose(&available, &[], 0), Vec::<String>::new());
    }

    #[test]
    fn what_is_required_is_among_them_and_decides_the_device() {
        let available = [ids("a", 0..50), ids("b", 0..20)].concat();
        let required = ids("a", 7..9);
        assert_eq!(choose(&available, &required, 4), [ids("a", 7..9), ids("a", 0..2)].concat());
        assert_eq!(choose(&available, &required, 2), required);
        // More than there are.
        let all = choose(&available, &required, 1000);
        assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (70, 70));
        assert_eq!(choose(&["odd".into()], &[], 1), ["odd"]);
    }
}
