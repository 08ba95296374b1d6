//! Which versions of a model are served.

use crate::limits::VERSIONS_MAX;
use atoll_protocol::ConfigVersionPolicy;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Which of the versions in a model's folder are served. The text forms are `latest`, `latest:2`,
/// `all` and `specific:1,3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionPolicy {
    /// The highest ones, this many.
    Latest(NonZeroU32),
    /// All.
    All,
    /// These, which have to be there.
    Specific(BTreeSet<u64>),
}

impl VersionPolicy {
    /// The policy in Triton's configuration.
    pub(crate) fn config(&self) -> ConfigVersionPolicy {
        match self {
            VersionPolicy::Latest(count) => ConfigVersionPolicy::Latest { num_versions: count.get() },
            VersionPolicy::All => ConfigVersionPolicy::All {},
            VersionPolicy::Specific(versions) => {
                ConfigVersionPolicy::Specific { versions: versions.iter().copied().collect() }
            }
        }
    }

    /// The wanted versions of those that were found, the highest first.
    ///
    /// # Errors
    /// The wanted versions that were not found.
    pub(super) fn choose(&self, found: impl Iterator<Item = u64>) -> Result<Vec<u64>, Vec<u64>> {
        let found: BTreeSet<u64> = found.collect();
        match self {
            VersionPolicy::Latest(count) => Ok(found.into_iter().rev().take(count.get() as usize).collect()),
            VersionPolicy::All => Ok(found.into_iter().rev().collect()),
            VersionPolicy::Specific(wanted) => {
                // As many as are considered: a policy may name any number of versions.
                let missing: Vec<u64> = wanted.difference(&found).copied().take(VERSIONS_MAX).collect();
                if missing.is_empty() { Ok(wanted.iter().rev().copied().collect()) } else { Err(missing) }
            }
        }
    }
}

impl Default for VersionPolicy {
    fn default() -> VersionPolicy {
        VersionPolicy::Latest(NonZeroU32::MIN)
    }
}

impl fmt::Display for VersionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionPolicy::Latest(count) if count.get() == 1 => f.write_str("latest"),
            VersionPolicy::Latest(count) => write!(f, "latest:{count}"),
            VersionPolicy::All => f.write_str("all"),
            VersionPolicy::Specific(versions) => write!(f, "specific:{}", listed(versions.iter().copied(), ",")),
        }
    }
}

impl FromStr for VersionPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<VersionPolicy, String> {
        let bad = || {
            format!(
                "`{}` is no policy of versions; use latest, latest:NUMBER, all, or specific:VERSION,...",
                text.chars().take(64).flat_map(char::escape_debug).collect::<String>()
            )
        };
        match text.split_once(':') {
            None if text == "latest" => Ok(VersionPolicy::default()),
            None if text == "all" => Ok(VersionPolicy::All),
            Some(("latest", count)) => count.trim().parse().map(VersionPolicy::Latest).map_err(|_| bad()),
            Some(("specific", versions)) => {
                let versions = versions.split(',').map(|version| version.trim().parse().map_err(|_| bad()));
                Ok(VersionPolicy::Specific(versions.collect::<Result<_, _>>()?))
            }
            _ => Err(bad()),
        }
    }
}

impl<'de> Deserialize<'de> for VersionPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<VersionPolicy, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Versions as a text, in their order.
pub(super) fn listed(versions: impl Iterator<Item = u64>, separator: &str) -> String {
    versions.map(|version| version.to_string()).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_choose_among_what_is_there() {
        let choose =
            |policy: &str, found: &[u64]| policy.parse::<VersionPolicy>().unwrap().choose(found.iter().copied());
        assert_eq!(choose("latest", &[1, 10, 2]), Ok(vec![10]), "by number, not by text");
        assert_eq!(choose("latest:2", &[1, 10, 2]), Ok(vec![10, 2]));
        assert_eq!(choose("latest:9", &[3]), Ok(vec![3]));
        assert_eq!(choose("all", &[1, 10, 2]), Ok(vec![10, 2, 1]));
        assert_eq!(choose("specific:1, 2", &[1, 10, 2]), Ok(vec![2, 1]));
        assert_eq!(choose("specific:1,3,4", &[1, 10]), Err(vec![3, 4]));
    }

    #[test]
    fn texts_are_read_and_written() {
        for text in ["latest", "latest:2", "all", "specific:1,3"] {
            assert_eq!(text.parse::<VersionPolicy>().unwrap().to_string(), text);
        }
        assert_eq!("latest:1".parse(), Ok(VersionPolicy::default()));
        for text in ["", "newest", "latest:0", "latest:x", "specific:", "specific:-1", "all:1", "specific"] {
            let message = text.parse::<VersionPolicy>().unwrap_err();
            assert!(message.contains("no policy of versions"), "{message}");
        }
    }
}
