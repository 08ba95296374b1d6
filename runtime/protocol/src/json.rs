//! JSON as Python, tritonclient and Triton write it: with NaN, Infinity and -Infinity, which JSON
//! does not have.
//!
//! JSON without them is read and written by serde_json alone. If a text cannot be read, each of the
//! three words outside strings is replaced by an object of at most twice its length, and the text
//! is read again; elements of float types ([`special`]) take these objects. To write the words,
//! floats pass them as bytes, which no other type of this crate has, and [`to_vec`] writes bytes
//! verbatim.

use crate::error::ProtocolError;
use serde::de::{Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::ser::Formatter;
use std::io;

/// The words, and the objects in their place: the sign of an infinity, or 0 for NaN.
const WORDS: [(&[u8], &[u8]); 3] = [(b"NaN", br#"{"":0}"#), (b"Infinity", br#"{"":1}"#), (b"-Infinity", br#"{"":-1}"#)];

/// Reads the object that a body is. `space` holds the text with replaced words, if it has any.
///
/// # Errors
/// If it is no object. A structure could also be read from a list of its fields.
pub(crate) fn from_body<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    space: &'a mut Option<Vec<u8>>,
) -> Result<T, ProtocolError> {
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(ProtocolError::Json("it has to be an object".into()));
    }
    from_slice(body, space).map_err(|error| ProtocolError::Json(error.to_string()))
}

/// Reads a text. `space` holds the text with replaced words, if it has any.
fn from_slice<'a, T: Deserialize<'a>>(json: &'a [u8], space: &'a mut Option<Vec<u8>>) -> serde_json::Result<T> {
    match serde_json::from_slice(json) {
        Err(error) => match replaced(json) {
            Some(text) => serde_json::from_slice(space.insert(text)),
            None => Err(error),
        },
        read => read,
    }
}

/// The text with objects in place of the words; `None` if it has none of them.
fn replaced(json: &[u8]) -> Option<Vec<u8>> {
    let (mut text, mut copied, mut at, mut in_string) = (Vec::new(), 0, 0, false);
    while let Some(&byte) = json.get(at) {
        let word = WORDS.iter().find(|(word, _)| !in_string && json[at..].starts_with(word));
        if let Some((word, object)) = word {
            text.extend_from_slice(&json[copied..at]);
            text.extend_from_slice(object);
            copied = at + word.len();
            at = copied;
            continue;
        }
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => at += 1,
            _ => {}
        }
        at += 1;
    }
    text.extend_from_slice(&json[copied..]);
    (copied > 0).then_some(text)
}

/// The number whose place an object has taken.
///
/// # Errors
/// If it is another object.
pub(crate) fn special<'de, A: MapAccess<'de>>(map: &mut A, expected: &impl Visitor<'de>) -> Result<f64, A::Error> {
    let refused = || A::Error::invalid_type(Unexpected::Map, expected);
    if map.next_key::<String>()?.is_none_or(|name| !name.is_empty()) {
        return Err(refused());
    }
    let number = match map.next_value::<i8>()? {
        0 => f64::NAN,
        1 => f64::INFINITY,
        -1 => f64::NEG_INFINITY,
        _ => return Err(refused()),
    };
    if map.next_key::<String>()?.is_some() { Err(refused()) } else { Ok(number) }
}

/// Whether a text begins with an object that took the place of a number.
pub(crate) fn begins_with_special(text: &str) -> bool {
    text.starts_with(r#"{"":"#)
}

/// A float for [`to_vec`].
pub(crate) struct Float<T>(pub(crate) T);

impl<T: Serialize + Into<f64> + Copy> Serialize for Float<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: f64 = self.0.into();
        if value.is_finite() {
            return self.0.serialize(serializer);
        }
        serializer.serialize_bytes(match value {
            f64::INFINITY => b"Infinity",
            f64::NEG_INFINITY => b"-Infinity",
            _ => b"NaN",
        })
    }
}

/// Writes a value as compact JSON, with the three words.
pub(crate) fn to_vec(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(128);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, WithWords))?;
    Ok(bytes)
}

struct WithWords;

impl Formatter for WithWords {
    fn write_byte_array<W: ?Sized + io::Write>(&mut self, writer: &mut W, word: &[u8]) -> io::Result<()> {
        writer.write_all(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> Option<String> {
        replaced(json.as_bytes()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn words_are_replaced_outside_strings() {
        assert_eq!(text(r#"[NaN,-Infinity, Infinity]"#).as_deref(), Some(r#"[{"":0},{"":-1}, {"":1}]"#));
        for json in ["", "[1]", r#"["NaN"]"#, r#"["\"NaN"]"#, r#"["\\\"NaN", "Infinity"]"#, r#"["NaN"#, r#"["\"#] {
            assert_eq!(text(json), None, "{json}");
        }
        assert_eq!(text(r#"["\\",NaN]"#).as_deref(), Some(r#"["\\",{"":0}]"#));
    }

    #[test]
    fn words_are_values_and_no_parts_of_values() {
        let read = |json: &str| {
            let mut space = None;
            from_slice::<&serde_json::value::RawValue>(json.as_bytes(), &mut space).is_ok()
        };
        assert!(read("[NaN]") && read("{\"a\": -Infinity}") && read("NaN"));
        for json in ["[-NaN]", "[NaN1]", "[1NaN]", "[+Infinity]", "[Infinity-Infinity]", "[nan]", "[Inf]", "{NaN: 1}"] {
            assert!(!read(json), "{json}");
        }
    }

    #[test]
    fn floats_are_written_with_the_words() {
        let floats = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.1].map(Float);
        assert_eq!(to_vec(&floats).unwrap(), b"[NaN,Infinity,-Infinity,0.1]");
        assert_eq!(to_vec(&[1.0, 0.5].map(Float::<f64>)).unwrap(), b"[1.0,0.5]");
    }
}
