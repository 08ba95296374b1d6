//! Parameters of requests, tensors and outputs: a map of JSON scalars.

use crate::error::ProtocolError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Named scalars. Unknown names are kept and ignored, as the protocol requires.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters(Map<String, Value>);

impl Parameters {
    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a parameter.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// The raw value of a parameter.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// All parameters by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter()
    }

    /// A non-negative integer. Clients send integers signed, unsigned, or as a float without a
    /// fraction.
    pub fn unsigned(&self, name: &str) -> Result<Option<u64>, ProtocolError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        number.map(Some).ok_or_else(|| refused(name, value, "a non-negative whole number"))
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ProtocolError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| refused(name, value, "a text"))
    }

    /// A boolean.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ProtocolError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| refused(name, value, "true or false"))
    }
}

/// 2^53: floats above it cannot represent every integer.
const EXACT_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

fn whole(value: f64) -> Option<u64> {
    (value.fract() == 0.0 && (0.0..=EXACT_FLOAT_MAX).contains(&value)).then_some(value as u64)
}

fn refused(name: &str, value: &Value, expected: &str) -> ProtocolError {
    ProtocolError::Parameter { name: name.into(), reason: format!("{value} is not {expected}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_all_three_notations() {
        let parameters: Parameters = serde_json::from_str(
            r#"{"a": 1, "b": 18446744073709551615, "c": 2.0, "d": -1, "e": 1.5, "f": "1", "g": true}"#,
        )
        .unwrap();
        assert_eq!(parameters.unsigned("a"), Ok(Some(1)));
        assert_eq!(parameters.unsigned("b"), Ok(Some(u64::MAX)));
        assert_eq!(parameters.unsigned("c"), Ok(Some(2)));
        assert_eq!(parameters.unsigned("nothing"), Ok(None));
        for name in ["d", "e", "f", "g"] {
            let message = parameters.unsigned(name).unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")) && message.contains("whole number"), "{message}");
        }
        assert_eq!(parameters.boolean("g"), Ok(Some(true)));
        assert!(parameters.boolean("a").is_err());
        assert_eq!((parameters.text("f"), parameters.text("nothing")), (Ok(Some("1")), Ok(None)));
        assert!(parameters.text("a").unwrap_err().to_string().contains("1 is not a text"));
    }
}
