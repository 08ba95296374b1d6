//! Parses MessagePack, the encoding of the metadata in a code object: maps, arrays, strings,
//! integers and booleans.

/// Maximum nesting of values; the metadata nests five deep.
const MAX_DEPTH: u32 = 16;
/// Maximum number of values of a document.
const MAX_VALUES: usize = 1 << 20;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    /// An integer; negative ones are not used.
    Number(u64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl Value {
    /// The value of a key in a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| matches!(name, Value::Text(text) if text == key)).map(|entry| &entry.1)
    }

    pub(crate) fn number(&self) -> Option<u64> {
        if let Value::Number(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }
}

/// Parses a document and ignores the bytes after it. `None` if it is malformed, or has a value of
/// another kind.
pub(crate) fn read(bytes: &[u8]) -> Option<Value> {
    Reader { rest: bytes, values: 0 }.value(0)
}

struct Reader<'a> {
    rest: &'a [u8],
    values: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// A big-endian integer of `bytes` bytes.
    fn whole(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        self.values += 1;
        if depth > MAX_DEPTH || self.values > MAX_VALUES {
            return None;
        }
        let head = self.whole(1)?;
        Some(match head {
            0x00..=0x7f => Value::Number(head),
            0x80..=0x8f => self.map(head & 0xf, depth)?,
            0x90..=0x9f => self.list(head & 0xf, depth)?,
            0xa0..=0xbf => self.string(head & 0x1f)?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool(head == 0xc3),
            0xcc..=0xcf => Value::Number(self.whole(1 << (head - 0xcc))?),
            0xd0..=0xd3 => Value::Number(self.whole(1 << (head - 0xd0))?),
            0xd9..=0xdb => {
                let length = self.whole(1 << (head - 0xd9))?;
                self.string(length)?
            }
            0xdc | 0xdd => {
                let length = self.whole(2 << (head - 0xdc))?;
                self.list(length, depth)?
            }
            0xde | 0xdf => {
                let length = self.whole(2 << (head - 0xde))?;
                self.map(length, depth)?
            }
            _ => return None,
        })
    }

    fn string(&mut self, length: u64) -> Option<Value> {
        let bytes = self.take(usize::try_from(length).ok()?)?;
        Some(Value::Text(std::str::from_utf8(bytes).ok()?.to_owned()))
    }

    fn list(&mut self, length: u64, depth: u32) -> Option<Value> {
        (0..length).map(|_| self.value(depth + 1)).collect::<Option<_>>().map(Value::List)
    }

    fn map(&mut self, length: u64, depth: u32) -> Option<Value> {
        let entry = |reader: &mut Self| Some((reader.value(depth + 1)?, reader.value(depth + 1)?));
        (0..length).map(|_| entry(self)).collect::<Option<_>>().map(Value::Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_metadata_is_made_of() {
        let bytes = b"\x82\xa1a\x92\x01\xcd\x01\x00\xa1b\xc3";
        let value = read(bytes).unwrap();
        assert_eq!(value.get("a"), Some(&Value::List(vec![Value::Number(1), Value::Number(256)])));
        assert_eq!(value.get("b"), Some(&Value::Bool(true)));
        assert_eq!(value.get("c"), None);
    }

    #[test]
    fn refuses_what_is_cut_off_or_too_deep() {
        let bytes = b"\x82\xa1a\x92\x01\xcd\x01\x00\xa1b\xc3";
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), None, "the first {end} bytes");
        }
        assert_eq!(read(&[0x91; 64]), None);
        // A length of 4 billion without the bytes.
        assert_eq!(read(b"\xdd\xff\xff\xff\xff"), None);
        assert_eq!(read(b"\xca\x00\x00\x00\x00"), None, "a float");
    }
}
