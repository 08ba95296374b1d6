//! A model configuration as a tree of fields, from protobuf's text format (`text.rs`) or from JSON
//! (`json.rs`).

use crate::limits::CONFIG_NAME_BYTES_MAX;
use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

/// A message: its fields in the order of the file. A repeated field is there several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::repository) struct Message {
    /// Its path in the configuration, as in `dynamic_batching`; empty for the configuration itself.
    pub(super) path: String,
    pub(super) fields: Vec<(String, Value)>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::repository) enum Value {
    /// A number, a name or a text.
    Scalar(String),
    Message(Message),
}

impl Message {
    pub(super) fn new(path: String) -> Message {
        Message { path, fields: Vec::new() }
    }

    /// The path of a field.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The path of a field whose name is read from a configuration.
    ///
    /// # Errors
    /// If the name is longer than those of Triton.
    pub(super) fn path_of_new(&self, name: &str) -> Result<String, String> {
        match name.len() > CONFIG_NAME_BYTES_MAX {
            false => Ok(self.path_of(name)),
            true => Err(format!(
                "the name of the field `{}...` has {} bytes; the limit is {CONFIG_NAME_BYTES_MAX}",
                short(name),
                name.len()
            )),
        }
    }

    /// How many values a field has.
    pub(super) fn count(&self, name: &str) -> usize {
        self.all(name).count()
    }

    fn all<'m>(&'m self, name: &str) -> impl Iterator<Item = &'m Value> {
        self.fields.iter().filter(move |(field, _)| field == name).map(|(_, value)| value)
    }

    /// The messages of a field.
    pub(super) fn messages<'m>(&'m self, name: &str) -> impl Iterator<Item = &'m Message> {
        self.all(name).filter_map(|value| match value {
            Value::Message(message) => Some(message),
            Value::Scalar(_) => None,
        })
    }

    /// The message of a field that may be there once.
    pub(super) fn message(&self, name: &str) -> Option<&Message> {
        self.messages(name).last()
    }

    /// The texts of a field.
    pub(super) fn texts<'m>(&'m self, name: &str) -> impl Iterator<Item = &'m str> {
        self.all(name).filter_map(|value| match value {
            Value::Scalar(text) => Some(text.as_str()),
            Value::Message(_) => None,
        })
    }

    /// The text of a field that may be there once; the last one holds, as in protobuf.
    pub(in crate::repository) fn text(&self, name: &str) -> Option<&str> {
        self.texts(name).last()
    }

    /// The numbers of a field.
    ///
    /// # Errors
    /// If one is no number of this type.
    pub(super) fn numbers<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Vec<T>, String> {
        let bad = |text: &str, _: T::Err| {
            let problem = if text.parse::<i128>().is_ok() { "is out of range" } else { "is not a whole number" };
            format!("{} is `{}`, which {problem}", self.path_of(name), short(text))
        };
        self.texts(name).map(|text| decimal(text).parse().map_err(|error| bad(text, error))).collect()
    }

    /// The number of a field that may be there once.
    ///
    /// # Errors
    /// If it is no number of this type.
    pub(super) fn number<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, String> {
        Ok(self.numbers(name)?.pop())
    }

    /// Whether a field is true.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub(super) fn flag(&self, name: &str) -> Result<bool, String> {
        match self.text(name) {
            None | Some("false" | "False" | "f" | "0") => Ok(false),
            Some("true" | "True" | "t" | "1") => Ok(true),
            Some(other) => {
                Err(format!("{} is `{}`, which is neither true nor false", self.path_of(name), short(other)))
            }
        }
    }

    /// The entries of a map from text to text.
    pub(super) fn map<'m>(&'m self, name: &str) -> impl Iterator<Item = (&'m str, &'m str)> {
        self.messages(name).map(|entry| (entry.text("key").unwrap_or(""), entry.text("value").unwrap_or("")))
    }
}

/// A number as decimal text: the text format also has hexadecimal and octal integers, as in `0x10`
/// and `020`.
pub(super) fn decimal(text: &str) -> Cow<'_, str> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).map(|digits| (digits, 16));
    let octal = || digits.strip_prefix('0').filter(|digits| !digits.is_empty()).map(|digits| (digits, 8));
    let Some((digits, radix)) = hexadecimal.or_else(octal) else { return text.into() };
    // The parser of the standard library would accept a second sign.
    let is_plain = digits.chars().all(|digit| digit.is_digit(radix));
    match u64::from_str_radix(digits, radix) {
        Ok(number) if is_plain => format!("{sign}{number}").into(),
        _ => text.into(),
    }
}

/// The beginning of a text that a message quotes.
pub(in crate::repository) fn short(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
