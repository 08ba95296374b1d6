//! Members in JSON. How large they are and how deep they are nested is bounded, the same way when
//! they are read and when they are written.

use crate::limits::{JSON_BYTES_MAX, JSON_DEPTH_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Parses a member.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() > JSON_BYTES_MAX {
        return Err(format!("it has {} bytes, at most {JSON_BYTES_MAX} are possible", bytes.len()));
    }
    let depth = depth(bytes);
    if depth > JSON_DEPTH_MAX {
        return Err(format!("its values are nested {depth} deep, at most {JSON_DEPTH_MAX} are possible"));
    }
    // The bound above replaces the parser's own, which is too low for sizes; the stack grows with the
    // nesting.
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    parser.disable_recursion_limit();
    let value = T::deserialize(serde_stacker::Deserializer::new(&mut parser)).map_err(|error| error.to_string())?;
    parser.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// A value as a member that [`parse`] takes.
pub(super) fn print<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>, String> {
    let bytes = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    parse::<T>(&bytes)?;
    Ok(bytes)
}

/// How deep the arrays and objects of a text are nested at most.
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
    fn what_is_nested_too_deep_is_refused() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(parse::<serde_json::Value>(&nested(JSON_DEPTH_MAX)).is_ok());
        assert!(parse::<serde_json::Value>(&nested(JSON_DEPTH_MAX + 1)).expect_err("one too many").contains("nested"));
        assert!(parse::<serde_json::Value>(b"[1] 2").is_err());
    }
}
