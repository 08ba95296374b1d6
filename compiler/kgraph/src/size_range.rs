//! Ranges of symbols in command lines and settings, such as `1..512` or `8`.

use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The allowed values of a named size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizeRange {
    /// Smallest.
    pub min: i64,
    /// Largest; equal to `min` for a fixed size.
    pub max: i64,
}

/// Ranges by the names of the sizes.
pub type SizeRanges = BTreeMap<String, SizeRange>;

/// A text that is not a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a range of sizes; give one number, as in 8, or a range MIN..MAX with MIN <= MAX, as in 1..512")]
pub struct InvalidSizeRange(String);

impl FromStr for SizeRange {
    type Err = InvalidSizeRange;

    fn from_str(text: &str) -> Result<SizeRange, InvalidSizeRange> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<i64>().ok().filter(|number| *number >= 0);
        match (number(min), number(max.trim_start_matches('='))) {
            (Some(min), Some(max)) if min <= max => Ok(SizeRange { min, max }),
            _ => Err(InvalidSizeRange(text.into())),
        }
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "{}", self.min),
            false => write!(f, "{}..{}", self.min, self.max),
        }
    }
}

/// From a number or a text.
impl<'de> Deserialize<'de> for SizeRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SizeRange, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Number(number) => number.to_string(),
            Form::Text(text) => text,
        };
        text.parse().map_err(de::Error::custom)
    }
}

/// Parses `seq=1..512,batch=8`.
///
/// # Errors
/// A part is not of the form NAME=RANGE.
pub fn size_ranges(text: &str) -> Result<SizeRanges, InvalidSizeRange> {
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    let range = |part: &str| match part.rsplit_once('=') {
        // `1..=512` contains another equals sign.
        Some((name, max)) if name.ends_with("..") => match name.split_once('=') {
            Some((name, min)) => Ok((name.trim().to_owned(), format!("{min}{max}").parse()?)),
            None => Err(InvalidSizeRange(part.into())),
        },
        Some((name, range)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), range.parse()?)),
        _ => Err(InvalidSizeRange(part.into())),
    };
    parts.map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        let range = |min, max| SizeRange { min, max };
        let found = size_ranges("seq=1..512, batch = 8,n=0..=4,").unwrap();
        assert_eq!(
            found,
            [("batch", range(8, 8)), ("n", range(0, 4)), ("seq", range(1, 512))].map(|(n, r)| (n.to_owned(), r)).into()
        );
        assert_eq!((range(1, 512).to_string(), range(8, 8).to_string()), ("1..512".into(), "8".into()));
        for text in ["seq", "seq=", "=1", "seq=a", "seq=9..1", "seq=-1..4", "seq=1..2..3"] {
            assert!(size_ranges(text).is_err(), "{text}");
        }
    }
}
