//! Parsing of sizes such as `512M`.

use serde::{Deserialize, Deserializer, de};

/// Parses `1500`, `64K`, `512M` or `2G` into bytes; units are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        unit => return Err(format!("unknown unit `{unit}`; use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size; write for example 512M or 2G"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Deserializes a size in a configuration file: a number of bytes, or a string such as `2G`.
pub(crate) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of bytes or a text like \"2G\" is expected")]
    enum Size {
        Number(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Number(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse_bytes(&text).map(Some).map_err(de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        assert_eq!(parse_bytes("64KiB"), Ok(64 << 10));
        assert_eq!(parse_bytes("7"), Ok(7));
        assert!(["", "G", "1.5G", "1X", "99999999999G"].iter().all(|text| parse_bytes(text).is_err()));
    }
}
