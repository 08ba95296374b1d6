//! Bytes as hexadecimal text, for serde and for digests.

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Two digits per byte, lower case.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a hexadecimal text; `None` if it is malformed.
pub(crate) fn parse(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| D::Error::custom("expected pairs of hexadecimal digits"))
}
