//! Protobuf's text format.

use super::tree::{Message, Value};
use crate::limits::{CONFIG_FIELDS_MAX, SETTINGS_DEPTH_MAX};

/// Parses a message.
///
/// # Errors
/// If the text is not well-formed, is nested too deep, or has too many values.
pub(in crate::repository) fn parse(text: &str) -> Result<Message, String> {
    let mut reader = Reader { rest: text, depth: 0, values: 0 };
    let mut message = Message::new(String::new());
    reader.fields(&mut message)?;
    match reader.rest.is_empty() {
        true => Ok(message),
        false => Err("unexpected end of a message that was not opened".into()),
    }
}

struct Reader<'a> {
    rest: &'a str,
    /// Enclosing messages.
    depth: usize,
    /// Values that were read.
    values: usize,
}

impl<'a> Reader<'a> {
    /// Reads fields up to the end of the message, without consuming the end.
    fn fields(&mut self, message: &mut Message) -> Result<(), String> {
        loop {
            match self.peek() {
                None if self.depth == 0 => return Ok(()),
                None => return Err(format!("`{}` is not closed", message.path)),
                Some('}' | '>') => return Ok(()),
                Some(',' | ';') => self.advance(1),
                Some(_) => self.field(message)?,
            }
        }
    }

    fn field(&mut self, message: &mut Message) -> Result<(), String> {
        let name = self.word();
        if name.is_empty() {
            return Err(format!("expected a field name at `{}`", self.rest.chars().take(20).collect::<String>()));
        }
        let path = message.path_of_new(name)?;
        if self.peek() == Some(':') {
            self.advance(1);
        }
        if self.peek() != Some('[') {
            let value = self.value(&path)?;
            message.fields.push((name.to_owned(), value));
            return Ok(());
        }
        self.advance(1);
        loop {
            match self.peek() {
                Some(']') => {
                    self.advance(1);
                    return Ok(());
                }
                Some(',') => self.advance(1),
                // A list inside a list is not valid protobuf.
                Some('[') | None => return Err(format!("the list `{path}` is not closed")),
                Some(_) => {
                    let value = self.value(&path)?;
                    message.fields.push((name.to_owned(), value));
                }
            }
        }
    }

    fn value(&mut self, path: &str) -> Result<Value, String> {
        self.values += 1;
        if self.values > CONFIG_FIELDS_MAX {
            return Err(format!("more than {CONFIG_FIELDS_MAX} values"));
        }
        match self.peek() {
            Some('{' | '<') => {
                if self.depth == SETTINGS_DEPTH_MAX {
                    return Err(format!("nested deeper than {SETTINGS_DEPTH_MAX} messages"));
                }
                self.advance(1);
                self.depth += 1;
                let mut message = Message::new(path.to_owned());
                self.fields(&mut message)?;
                self.depth -= 1;
                self.advance(1);
                Ok(Value::Message(message))
            }
            Some('"' | '\'') => {
                // Texts that follow each other are one.
                let mut bytes = Vec::new();
                while let Some(quote @ ('"' | '\'')) = self.peek() {
                    unescape(self.string(quote, path)?, &mut bytes);
                }
                String::from_utf8(bytes).map(Value::Scalar).map_err(|_| format!("the string of `{path}` is no UTF-8"))
            }
            _ => match self.word() {
                "" => Err(format!("`{path}` has no value")),
                word => Ok(Value::Scalar(word.to_owned())),
            },
        }
    }

    /// The text between the quotes.
    fn string(&mut self, quote: char, path: &str) -> Result<&'a str, String> {
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|&(_, c)| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (at, _) = end.ok_or_else(|| format!("the string of `{path}` is not closed"))?;
        let text = &self.rest[1..at];
        self.advance(at + 1);
        Ok(text)
    }

    /// A name, number or enum value.
    fn word(&mut self) -> &'a str {
        self.peek();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "_.+-".contains(c))).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// The next character that is neither whitespace nor part of a comment.
    fn peek(&mut self) -> Option<char> {
        loop {
            self.rest = self.rest.trim_start();
            match self.rest.strip_prefix('#') {
                Some(comment) => self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => return self.rest.chars().next(),
            }
        }
    }

    /// Skips `bytes` bytes that [`Reader::peek`] has already seen.
    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }
}

/// Appends a text whose escape sequences are replaced; unknown ones stay as they are.
fn unescape(text: &str, to: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        to.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        match escaped(rest) {
            Some((Escaped::Byte(byte), bytes)) => {
                to.push(byte);
                rest = &rest[bytes..];
            }
            Some((Escaped::Letter(letter), bytes)) => {
                to.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[bytes..];
            }
            None => to.push(b'\\'),
        }
    }
    to.extend_from_slice(rest.as_bytes());
}

/// What an escape sequence stands for.
enum Escaped {
    Byte(u8),
    Letter(char),
}

/// What the escape sequence at the beginning of a text, without its backslash, stands for, and the
/// length of the sequence in bytes; `None` if there is no such sequence.
fn escaped(text: &str) -> Option<(Escaped, usize)> {
    let first = *text.as_bytes().first()?;
    let plain = match first {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'\\' | b'"' | b'\'' | b'?' => first,
        b'0'..=b'7' => {
            let (number, digits) = digits(text, 8, 3)?;
            return Some((Escaped::Byte(number as u8), digits));
        }
        b'x' | b'X' => {
            let (number, digits) = digits(&text[1..], 16, 2)?;
            return Some((Escaped::Byte(number as u8), 1 + digits));
        }
        b'u' | b'U' => {
            let wanted = if first == b'u' { 4 } else { 8 };
            let (number, digits) = digits(&text[1..], 16, wanted)?;
            let letter = char::from_u32(number).filter(|_| digits == wanted)?;
            return Some((Escaped::Letter(letter), 1 + digits));
        }
        _ => return None,
    };
    Some((Escaped::Byte(plain), 1))
}

/// The number at the beginning of a text, and how many digits it has, at most `most`.
fn digits(text: &str, radix: u32, most: usize) -> Option<(u32, usize)> {
    let count = text.chars().take(most).take_while(|letter| letter.is_digit(radix)).count();
    Some((u32::from_str_radix(&text[..count], radix).ok()?, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CONFIG_NAME_BYTES_MAX;
    use proptest::prelude::*;

    #[test]
    fn messages_lists_texts_and_comments_are_read() {
        let text = "name: \"a\" 'b \\\"c\\\\' # a comment { with a brace\n\
                    dims: [ 3, -1 ] dims: 4; input < x: 1 > input [ { x: 2 }, { x: 3 } ]";
        let message = parse(text).unwrap();
        assert_eq!(message.text("name"), Some("ab \"c\\"));
        assert_eq!(message.numbers::<i64>("dims"), Ok(vec![3, -1, 4]));
        let inputs: Vec<_> = message.messages("input").map(|input| (input.path.as_str(), input.text("x"))).collect();
        assert_eq!(inputs, [("input", Some("1")), ("input", Some("2")), ("input", Some("3"))]);
        assert_eq!(parse(""), Ok(Message::default()));
        let numbers = parse("a: 0x8 a: 010 a: -0X1f a: 0 a: 08 a: 0x a: 0x-1").unwrap();
        let texts: Vec<_> = numbers.texts("a").map(super::super::tree::decimal).collect();
        assert_eq!(texts, ["8", "8", "-31", "0", "08", "0x", "0x-1"]);
        for (text, expected) in [
            (r"a: 'p\x5fesc'", "p_esc"),
            (r"a: '\141\u00e9\U0001f600\?'", "a\u{e9}\u{1f600}?"),
            (r"a: '\xc3\xa9'", "\u{e9}"),
            (r"a: '\q\u12'", r"\q\u12"),
        ] {
            assert_eq!(parse(text).unwrap().text("a"), Some(expected), "{text}");
        }
    }

    #[test]
    fn damaged_ones_are_refused() {
        for text in ["a {", "a }", "a: ", "a: [1", "a: \"x", ": 1", "a: [[1]]", r"a: '\xff'", "}", &"a {".repeat(40)] {
            assert!(parse(text).is_err(), "{text}");
        }
        let long = format!("a {{ {}: 1 }}", "n".repeat(CONFIG_NAME_BYTES_MAX + 1));
        assert!(parse(&long).unwrap_err().contains("has 65 bytes; the limit is 64"));
        assert!(parse(&"n".repeat(CONFIG_NAME_BYTES_MAX)).unwrap_err().contains("has no value"));
        let many = "a: 1 ".repeat(CONFIG_FIELDS_MAX + 1);
        assert!(parse(&many).unwrap_err().contains("values"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_ends(text in "[a-c{}<>\\[\\]:,;\"'\\\\# \n0-9é]{0,60}") {
            let _ = parse(&text);
        }
    }
}
