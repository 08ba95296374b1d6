//! Which inputs of a model are state, as options and settings say it.

use crate::size_range::SizeRanges;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;

/// What the owner of a model decides about its compilation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Ranges of its named sizes.
    pub symbols: SizeRanges,
    /// Its states.
    pub states: States,
}

/// Which inputs and outputs of a model are states that a session keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// None: each invocation stands alone.
    #[default]
    None,
    /// Those whose names exporters give to states.
    Auto,
    /// These.
    Pairs(Vec<StatePair>),
}

/// An input of a model, and the output that is the same state after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePair {
    /// The input.
    pub input: String,
    /// The output.
    pub output: String,
}

/// A text that names no states.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no states; `auto` does, and INPUT=OUTPUT, as in state=stateN,h=hn")]
pub struct NoStates(String);

impl FromStr for States {
    type Err = NoStates;

    fn from_str(text: &str) -> Result<States, NoStates> {
        let refused = || NoStates(text.into());
        if text == "auto" {
            return Ok(States::Auto);
        }
        let pair = |part: &str| {
            let (input, output) = part.split_once('=').map(|(input, output)| (input.trim(), output.trim()))?;
            (!input.is_empty() && !output.is_empty()).then(|| StatePair { input: input.into(), output: output.into() })
        };
        let pairs: Option<Vec<StatePair>> = text.split(',').map(pair).collect();
        pairs.map(States::Pairs).ok_or_else(refused)
    }
}

impl<'de> Deserialize<'de> for States {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<States, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// As it is read.
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
