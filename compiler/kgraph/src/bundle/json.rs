//! JSON members of a bundle. Size and nesting depth are limited, in reading and in writing.

use crate::limits::{JSON_BYTES_MAX, JSON_DEPTH_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Parses a member.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() > JSON_BYTES_MAX {
        return Err(format!("it has {} bytes, at most {JSON_BYTES_MAX} are allowed", bytes.len()));
    }
    let depth = depth(bytes);
    if depth > JSON_DEPTH_MAX {
        return Err(format!("its values are nested {depth} deep, at most {JSON_DEPTH_MAX} levels are allowed"));
    }
    // The check above replaces the parser's own recursion limit, which is too low for size
    // expressions; `serde_stacker` grows the stack as needed.
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    parser.disable_recursion_limit();
    let value = T::deserialize(serde_stacker::Deserializer::new(&mut parser)).map_err(|error| error.to_string())?;
    parser.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// Serializes a value to a member that [`parse`] accepts.
pub(super) fn print<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>, String> {
    let bytes = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    parse::<T>(&bytes)?;
    Ok(bytes)
}

/// The deepest nesting of arrays and objects in a text.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                most = most.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(depth(br#"{"a[[\"[": [1, {"b": []}]}"#), 4);
        assert_eq!(depth(br#""]""#), 0);
    }

    #[test]
    fn nesting_beyond_the_limit_is_rejected() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(parse::<serde_json::Value>(&nested(JSON_DEPTH_MAX)).is_ok());
        assert!(parse::<serde_json::Value>(&nested(JSON_DEPTH_MAX + 1)).expect_err("one too many").contains("nested"));
        assert!(parse::<serde_json::Value>(b"[1] 2").is_err());
    }
}
