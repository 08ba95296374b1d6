//! Patterns of model names. `*` matches any number of characters except `:`.
//!
//! A name without `:` is a model of the repository or a function of tenant `local`; a function of
//! another tenant is called `TENANT:NAME`. Since `*` never matches `:`, the pattern `*` allows no
//! function of another tenant.

use crate::limits::{PATTERN_BYTES_MAX, PATTERNS_MAX};

/// Names longer than this match nothing: no model has such a name.
const NAME_BYTES_MAX: usize = 512;

/// The names that a tenant may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patterns(Vec<String>);

impl Patterns {
    /// Every model and every public function.
    pub(super) fn all() -> Patterns {
        Patterns(vec!["*".into(), "*:*".into()])
    }

    /// Every model of the repository, and no function of another tenant.
    pub(super) fn repository() -> Patterns {
        Patterns(vec!["*".into()])
    }

    /// Checks the patterns of a configuration.
    pub(super) fn new(patterns: Vec<String>) -> Result<Patterns, String> {
        if patterns.len() > PATTERNS_MAX {
            return Err(format!("models has {} entries; the limit is {PATTERNS_MAX}", patterns.len()));
        }
        let long = |pattern: &&String| pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX;
        match patterns.iter().find(long) {
            Some(wrong) => Err(format!(
                "models has an entry of {} bytes; an entry is a name or a pattern of 1 to {PATTERN_BYTES_MAX} bytes",
                wrong.len()
            )),
            None => Ok(Patterns(patterns)),
        }
    }

    pub(super) fn allow(&self, name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX && self.0.iter().any(|pattern| is_match(pattern.as_bytes(), name.as_bytes()))
    }
}

/// Whether a name matches a pattern. Takes O(pattern × name) steps.
fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The last `*`, and the end of the part of the name that it matches so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(letter) if *letter == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, end)) if name[end] != b':' => {
                    star = Some((at, end + 1));
                    (p, n) = (at + 1, end + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allows(patterns: &[&str], name: &str) -> bool {
        Patterns::new(patterns.iter().map(|pattern| (*pattern).to_owned()).collect()).unwrap().allow(name)
    }

    #[test]
    fn a_star_stands_for_anything_but_the_border_of_a_tenant() {
        for (pattern, name, expected) in [
            ("resnet", "resnet", true),
            ("resnet", "resnet50", false),
            ("resnet*", "resnet50", true),
            ("*net*", "resnet50", true),
            ("*", "", true),
            ("*", "team:affine", false),
            ("t*", "team:affine", false),
            ("team:*", "team:affine", true),
            ("team:*", "team", false),
            ("*:*", "team:affine", true),
            ("*:*", "resnet", false),
            ("a*b*c", "a__b__b_c", true),
            ("a*b*c", "a__b__b_", false),
        ] {
            assert_eq!(allows(&[pattern], name), expected, "{pattern} {name}");
        }
        assert!(!allows(&[], "resnet"));
        assert!(!allows(&["*"], &"x".repeat(NAME_BYTES_MAX + 1)));
        assert!(Patterns::new(vec![String::new()]).is_err());
        assert!(Patterns::new(vec!["x".into(); PATTERNS_MAX + 1]).is_err());
    }

    /// The definition of a match, in exponential time.
    fn plainly(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => {
                plainly(rest, name)
                    || name.split_first().is_some_and(|(l, after)| *l != b':' && plainly(pattern, after))
            }
            Some((letter, rest)) => {
                name.split_first().is_some_and(|(first, after)| first == letter && plainly(rest, after))
            }
        }
    }

    proptest! {
        #[test]
        fn matching_is_as_defined(pattern in "[ab:*]{0,8}", name in "[ab:]{0,8}") {
            let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(is_match(pattern, name), plainly(pattern, name));
        }
    }
}
