//! Chooses a version of a function by weight. The same request always gets the same version.

/// Versions that one name may have.
pub const VERSIONS_MAX: usize = 16;

/// The highest weight. Weights are relative to their sum.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// Weights of versions, at least one of them above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    list: Box<[u32]>,
    total: u64,
}

impl Weights {
    /// Checks weights; `None` if there are none or too many, one is too high, or all are 0.
    pub fn new(list: &[u32]) -> Option<Weights> {
        let total = list.iter().map(|weight| u64::from(*weight)).sum();
        let is_valid = list.len() <= VERSIONS_MAX && list.iter().all(|weight| *weight <= WEIGHT_MAX) && total > 0;
        is_valid.then(|| Weights { list: list.into(), total })
    }

    /// The weights, in order.
    pub fn list(&self) -> &[u32] {
        &self.list
    }

    /// The index of the version that serves a request: a pure function of the common name of the
    /// versions and the request's id. If the weight of a version grows by as much as that of the
    /// next version shrinks, requests move from the next version to it and no others move.
    pub fn choose(&self, name: &str, id: &str) -> usize {
        let at = (u128::from(hash(name, id)) * u128::from(self.total)) >> 64;
        let mut end = 0;
        let found = self.list.iter().position(|weight| {
            end += u128::from(*weight);
            at < end
        });
        // The hash is below 2^64, so `at` is below the total.
        found.unwrap_or(self.list.len() - 1)
    }
}

/// A hash that is the same on all machines: FNV-1a over both texts, then the mixer of SplitMix64,
/// because the upper bits of FNV are alike for similar texts.
fn hash(name: &str, id: &str) -> u64 {
    let bytes = name.bytes().chain([0]).chain(id.bytes());
    let mut hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(weights: &[u32], name: &str) -> Vec<u32> {
        let weights = Weights::new(weights).unwrap();
        let mut counts = vec![0; weights.list().len()];
        (0..10_000).for_each(|id| counts[weights.choose(name, &format!("request-{id}"))] += 1);
        counts
    }

    #[test]
    fn requests_are_divided_by_weight() {
        for name in ["a", "local/classify"] {
            let counts = counts(&[90, 0, 10], name);
            assert!((8_850..=9_150).contains(&counts[0]) && counts[1] == 0, "{name}: {counts:?}");
        }
        assert_eq!(counts(&[0, 5], "a"), [0, 10_000]);
    }

    #[test]
    fn a_request_gets_the_same_version_again_and_moves_only_for_its_weight() {
        let [few, more] = [[10, 90], [20, 80]].map(|weights| Weights::new(&weights).unwrap());
        let mut moved = 0;
        for id in (0..10_000).map(|id| id.to_string()) {
            let before = few.choose("a", &id);
            assert_eq!(before, few.choose("a", &id));
            let after = more.choose("a", &id);
            assert!(after <= before, "request {id} goes from the first to the second version");
            moved += usize::from(after != before);
        }
        assert!((850..=1_150).contains(&moved), "a tenth moves: {moved}");
        // The choice is part of what users see: it does not change between releases.
        let three = Weights::new(&[3, 2, 1]).unwrap();
        let chosen: Vec<usize> = (0..16).map(|id| three.choose("a", &id.to_string())).collect();
        assert_eq!(chosen, [1, 1, 1, 0, 0, 1, 0, 2, 0, 0, 2, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn names_choose_independently() {
        let weights = Weights::new(&[1, 1]).unwrap();
        let alike = (0..10_000).map(|id| id.to_string());
        let alike = alike.filter(|id| weights.choose("a", id) == weights.choose("b", id)).count();
        assert!((4_750..=5_250).contains(&alike), "{alike}");
    }

    #[test]
    fn bad_weights_are_refused() {
        for bad in [&[][..], &[0, 0], &[WEIGHT_MAX + 1], &[1; VERSIONS_MAX + 1]] {
            assert_eq!(Weights::new(bad), None, "{bad:?}");
        }
        assert!(Weights::new(&[WEIGHT_MAX; VERSIONS_MAX]).is_some());
    }
}
