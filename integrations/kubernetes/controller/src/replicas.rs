//! Which instances of a function to make and to delete, so that there are as many as it states.
//!
//! An instance that no longer fits the specification, or whose node is being drained, is deleted
//! only when a replacement is ready.

/// An instance of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) standing: Standing,
    /// Whether it has the share that the function states, on a node that may have instances.
    pub(crate) fits: bool,
}

/// The state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It cannot get a lease, or has lost it: no request is lost if it is deleted.
    Failed,
    /// It waits for the answer of its daemon.
    Waiting,
    /// Its lease is valid.
    Ready,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// How many instances to make.
    pub(crate) make: usize,
    /// Names of the instances to delete.
    pub(crate) delete: Vec<String>,
}

/// Plans the instances of a function, without those that are being deleted. `crowd` is the number
/// of instances on a node, and `packs` whether instances go to few nodes.
pub(crate) fn plan(replicas: usize, seen: &[Seen], packs: bool, crowd: impl Fn(&str) -> usize) -> Plan {
    let is_useless = |one: &&Seen| one.standing == Standing::Failed || (!one.fits && one.standing == Standing::Waiting);
    let mut delete: Vec<String> = seen.iter().filter(is_useless).map(|one| one.name.clone()).collect();
    let mut good: Vec<&Seen> = seen.iter().filter(|one| one.fits && one.standing > Standing::Failed).collect();
    let old: Vec<&Seen> = seen.iter().filter(|one| !one.fits && one.standing == Standing::Ready).collect();
    // The first ones are deleted first.
    good.sort_by_key(|one| {
        let crowd = crowd(&one.node);
        (one.standing, if packs { crowd } else { usize::MAX - crowd }, std::cmp::Reverse(one.name.clone()))
    });
    let surplus = good.len().saturating_sub(replicas);
    delete.extend(good.drain(..surplus).map(|one| one.name.clone()));
    let ready = good.iter().filter(|one| one.standing == Standing::Ready).count();
    let replaced = (ready + old.len()).saturating_sub(replicas).min(old.len());
    delete.extend(old.iter().take(replaced).map(|one| one.name.clone()));
    // One more than there should be, while old ones are replaced.
    let total_max = replicas + usize::from(!old.is_empty());
    let make = (replicas - good.len()).min(total_max.saturating_sub(good.len() + old.len()));
    Plan { make, delete }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Failed, Ready, Waiting};

    fn seen(name: &str, node: &str, standing: Standing, fits: bool) -> Seen {
        Seen { name: name.into(), node: node.into(), standing, fits }
    }

    fn planned(replicas: usize, all: &[Seen]) -> (usize, Vec<String>) {
        let crowd = |node: &str| all.iter().filter(|one| one.node == node).count();
        let Plan { make, delete } = plan(replicas, all, false, crowd);
        (make, delete)
    }

    #[test]
    fn there_are_as_many_as_are_stated() {
        assert_eq!(planned(3, &[]), (3, vec![]));
        let all = [seen("f-0", "a", Ready, true), seen("f-1", "b", Waiting, true), seen("f-2", "a", Ready, true)];
        assert_eq!(planned(3, &all), (0, vec![]));
        assert_eq!(planned(2, &all), (0, vec!["f-1".into()]), "one that waits goes first");
        assert_eq!(planned(1, &all), (0, vec!["f-1".into(), "f-2".into()]), "then one of the fullest node");
        assert_eq!(planned(0, &all).1.len(), 3);
    }

    #[test]
    fn a_failed_instance_is_replaced_at_once() {
        let all = [seen("f-0", "a", Failed, true), seen("f-1", "b", Ready, true), seen("f-2", "b", Failed, false)];
        assert_eq!(planned(2, &all), (1, vec!["f-0".into(), "f-2".into()]));
    }

    #[test]
    fn an_old_instance_serves_until_another_one_is_ready() {
        let old = |name| seen(name, "a", Ready, false);
        assert_eq!(planned(2, &[old("f-0"), old("f-1")]), (1, vec![]), "one more at a time");
        assert_eq!(planned(2, &[old("f-0"), old("f-1"), seen("f-2", "b", Waiting, true)]), (0, vec![]));
        assert_eq!(planned(2, &[old("f-0"), old("f-1"), seen("f-2", "b", Ready, true)]), (0, vec!["f-0".into()]));
        assert_eq!(planned(2, &[old("f-1"), seen("f-2", "b", Ready, true)]), (1, vec![]));
        let new = |name| seen(name, "b", Ready, true);
        assert_eq!(planned(2, &[old("f-1"), new("f-2"), new("f-3")]), (0, vec!["f-1".into()]));
        assert_eq!(planned(0, &[old("f-1"), new("f-2")]), (0, vec!["f-2".into(), "f-1".into()]));
        assert_eq!(planned(1, &[seen("f-0", "a", Waiting, false)]), (1, vec!["f-0".into()]), "it never served");
    }
}
