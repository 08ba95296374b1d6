//! The states of a model, as given in options and settings.

use crate::size_range::SizeRanges;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;

/// Options of a model's compilation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Ranges of its named sizes.
    pub symbols: SizeRanges,
    /// Its states.
    pub states: States,
}

/// The inputs and outputs of a model that form states of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// None: invocations are independent.
    #[default]
    None,
    /// Recognized by the names that exporters give to states.
    Auto,
    /// The given pairs.
    Pairs(Vec<StatePair>),
}

/// An input of a model, and the output that is its value in the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePair {
    /// The input.
    pub input: String,
    /// The output.
    pub output: String,
}

/// A text that does not name states.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no states; give `auto`, or pairs INPUT=OUTPUT, as in state=stateN,h=hn")]
pub struct InvalidStates(String);

impl FromStr for States {
    type Err = InvalidStates;

    fn from_str(text: &str) -> Result<States, InvalidStates> {
        let invalid = || InvalidStates(text.into());
        if text == "auto" {
            return Ok(States::Auto);
        }
        let pair = |part: &str| {
            let (input, output) = part.split_once('=').map(|(input, output)| (input.trim(), output.trim()))?;
            (!input.is_empty() && !output.is_empty()).then(|| StatePair { input: input.into(), output: output.into() })
        };
        let pairs: Option<Vec<StatePair>> = text.split(',').map(pair).collect();
        pairs.map(States::Pairs).ok_or_else(invalid)
    }
}

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<States, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The form that [`FromStr`] accepts; empty for none.
impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            States::None => Ok(()),
            States::Auto => f.write_str("auto"),
            States::Pairs(pairs) => {
                let pairs: Vec<String> = pairs.iter().map(|pair| format!("{}={}", pair.input, pair.output)).collect();
                f.write_str(&pairs.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_and_written() {
        for text in ["auto", "state=stateN", "h=hn,c=cn"] {
            assert_eq!(text.parse::<States>().unwrap().to_string(), text);
        }
        for text in ["", "state", "=x", "a=,b=c", "a=b,"] {
            let error = text.parse::<States>().unwrap_err().to_string();
            assert!(error.contains("names no states"), "{error}");
        }
    }
}
