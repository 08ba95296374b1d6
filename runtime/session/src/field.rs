//! Encoding of fields: little-endian numbers, and byte strings with their length in front.

/// Bytes that are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("a field of {wanted} bytes begins {left} bytes before the end")]
    Short {
        /// Size of the field.
        wanted: u64,
        /// Bytes that are left.
        left: usize,
    },
    /// The number of a record is unknown.
    #[error("the record number {0} is unknown")]
    UnknownRecord(u16),
    /// A record is longer than its fields.
    #[error("a record of kind {record} has {left} bytes after its fields")]
    Rest {
        /// The record's number.
        record: u16,
        /// Bytes that are left.
        left: usize,
    },
    /// A number is outside its limits.
    #[error("{what} is {value}")]
    Value {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text is not UTF-8.
    #[error("a name is not UTF-8")]
    Text,
}

/// Reads fields from bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Takes the next bytes.
    pub(crate) fn take(&mut self, count: u64) -> Result<&'a [u8], WireError> {
        let short = WireError::Short { wanted: count, left: self.0.len() };
        let count = usize::try_from(count).map_err(|_| short.clone())?;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Decodes the next field.
    pub(crate) fn get<F: Field<'a>>(&mut self) -> Result<F, WireError> {
        F::read(self)
    }

    /// The bytes that are left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Number of bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }
}

/// A field of a message.
pub(crate) trait Field<'a>: Sized {
    /// Bytes of its size, which precede its contents.
    const LEAD: usize = 0;

    fn read(reader: &mut Reader<'a>) -> Result<Self, WireError>;
    fn write(&self, to: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($type:ty),+) => {
        $(impl<'a> Field<'a> for $type {
            fn read(reader: &mut Reader<'a>) -> Result<$type, WireError> {
                let bytes = reader.take(size_of::<$type>() as u64)?;
                Ok(<$type>::from_le_bytes(bytes.try_into().expect("as many bytes as were asked for")))
            }

            fn write(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
        })+
    };
}
numbers!(u16, u32, i32, u64);

impl<'a> Field<'a> for [u32; 3] {
    fn read(reader: &mut Reader<'a>) -> Result<[u32; 3], WireError> {
        Ok([reader.get()?, reader.get()?, reader.get()?])
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.iter().for_each(|number| number.write(to));
    }
}

impl<'a, const N: usize> Field<'a> for [u8; N] {
    fn read(reader: &mut Reader<'a>) -> Result<[u8; N], WireError> {
        Ok(reader.take(N as u64)?.try_into().expect("as many bytes as were asked for"))
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }
}

impl<'a> Field<'a> for &'a [u8] {
    const LEAD: usize = size_of::<u64>();

    fn read(reader: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
        let count = reader.get::<u64>()?;
        reader.take(count)
    }

    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u64).write(to);
        to.extend_from_slice(self);
    }
}

impl<'a> Field<'a> for &'a str {
    const LEAD: usize = size_of::<u64>();

    fn read(reader: &mut Reader<'a>) -> Result<&'a str, WireError> {
        std::str::from_utf8(reader.get::<&[u8]>()?).map_err(|_| WireError::Text)
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.as_bytes().write(to);
    }
}
