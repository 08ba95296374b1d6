//! Records: the calls of a program in the form in which they are sent.
//!
//! A record is its number (2 bytes), two zero bytes, its whole size (4 bytes), and its fields in
//! order. The table below declares all records; the type, the encoder and the decoder are generated
//! from it. A new record is one row.

use crate::field::{Field, Reader, WireError};
use crate::recorder::Wait;
use std::ops::{Range, RangeInclusive};

/// Size in bytes of a record's number and size, which precede the fields.
pub(crate) const HEAD_BYTES: u32 = 8;

/// Numbers of the records of modules, kernels and variables.
pub(crate) const OF_MODULES: RangeInclusive<u16> = 14..=17;

/// Numbers of the records of stored functions, which are no calls of the program.
pub(crate) const OF_STORED: RangeInclusive<u16> = 25..=28;

macro_rules! table {
    ($(
        $(#[$doc:meta])*
        $number:literal $name:ident $call:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
    )+) => {
        /// A recorded call. Streams, events, modules and kernels are numbers that the client
        /// assigned. Stream 0 is the default stream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Record<'a> {
            $($(#[$doc])* $name { $($(#[$field_doc])* $field: $type,)* },)+
        }

        impl<'a> Record<'a> {
            /// The record's number in the encoding.
            pub fn number(&self) -> u16 {
                match self {
                    $(Record::$name { .. } => $number,)+
                }
            }

            /// The name of the entry point that makes records with this number.
            pub fn call_of(number: u16) -> &'static str {
                match number {
                    $($number => $call,)+
                    _ => "an unknown call",
                }
            }

            fn write_fields(&self, to: &mut Vec<u8>) {
                match self {
                    $(Record::$name { $($field,)* } => { $($field.write(to);)* })+
                }
            }

            fn read_fields(number: u16, reader: &mut Reader<'a>) -> Result<Record<'a>, WireError> {
                Ok(match number {
                    $($number => Record::$name { $($field: reader.get::<$type>()?,)* },)+
                    _ => return Err(WireError::UnknownRecord(number)),
                })
            }

            /// Adds the places of the contents of all fields, as offsets in the fields' bytes.
            fn places(number: u16, fields: &'a [u8], to: &mut Vec<Range<usize>>) -> Result<(), WireError> {
                let mut reader = Reader::new(fields);
                match number {
                    $($number => {$(
                        let start = fields.len() - reader.left();
                        reader.get::<$type>()?;
                        to.push(start + <$type as Field<'a>>::LEAD..fields.len() - reader.left());
                    )*})+
                    _ => return Err(WireError::UnknownRecord(number)),
                }
                Ok(())
            }
        }
    };
}

table! {
    /// An allocation.
    1 Allocate "cuMemAlloc" {
        /// Its address.
        at: u64,
        /// Its size.
        bytes: u64,
    }
    /// An allocation is freed once all earlier work is done.
    2 Free "cuMemFree" {
        /// The address of an allocation.
        at: u64,
    }
    /// A copy to the device.
    3 CopyIn "cuMemcpyHtoD" {
        /// The stream.
        stream: u32,
        /// Where to.
        to: u64,
        /// The contents.
        bytes: &'a [u8],
    }
    /// A copy from the device; the answer has the contents.
    4 CopyOut "cuMemcpyDtoH" {
        /// The stream.
        stream: u32,
        /// Where from.
        from: u64,
        /// Number of bytes.
        bytes: u64,
    }
    /// A copy on the device.
    5 CopyWithin "cuMemcpyDtoD" {
        /// The stream.
        stream: u32,
        /// Where to.
        to: u64,
        /// Where from.
        from: u64,
        /// Number of bytes.
        bytes: u64,
    }
    /// A fill of rows with one element.
    6 Fill "cuMemset" {
        /// The stream.
        stream: u32,
        /// The first row.
        to: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Elements of a row.
        width: u64,
        /// Number of rows.
        height: u64,
        /// The element.
        value: u32,
        /// Its size: 1, 2 or 4 bytes.
        size: u32,
    }
    /// A launch.
    7 Launch "cuLaunchKernel" {
        /// The stream.
        stream: u32,
        /// The kernel.
        kernel: u32,
        /// Blocks.
        grid: [u32; 3],
        /// Threads of a block.
        block: [u32; 3],
        /// Dynamic shared memory of a block in bytes.
        shared_bytes: u32,
        /// 1 if all blocks must run at once.
        cooperative: u32,
        /// The parameter block.
        params: &'a [u8],
    }
    /// A new stream.
    8 CreateStream "cuStreamCreate" {
        /// Its number.
        stream: u32,
        /// The driver's flags.
        flags: u32,
        /// Its priority.
        priority: i32,
    }
    /// Destroys a stream.
    9 DestroyStream "cuStreamDestroy" {
        /// The stream.
        stream: u32,
    }
    /// A new event.
    10 CreateEvent "cuEventCreate" {
        /// Its number.
        event: u32,
        /// The driver's flags.
        flags: u32,
    }
    /// Destroys an event.
    11 DestroyEvent "cuEventDestroy" {
        /// The event.
        event: u32,
    }
    /// Records an event in a stream.
    12 RecordEvent "cuEventRecord" {
        /// The event.
        event: u32,
        /// The stream.
        stream: u32,
    }
    /// Makes a stream wait for an event.
    13 WaitEvent "cuStreamWaitEvent" {
        /// The stream.
        stream: u32,
        /// The event.
        event: u32,
    }
    /// Loads a module. If it is refused, the answer has the compiler's log.
    14 LoadModule "cuModuleLoadData" {
        /// Its number.
        module: u32,
        /// SHA-256 of the image.
        digest: [u8; 32],
        /// PTX, a fat binary or machine code; empty if the session has sent it before.
        image: &'a [u8],
    }
    /// Unloads a module and its kernels.
    15 UnloadModule "cuModuleUnload" {
        /// The module.
        module: u32,
    }
    /// Looks up a kernel of a module. The answer has its facts.
    16 GetKernel "cuModuleGetFunction" {
        /// Its number.
        kernel: u32,
        /// The module.
        module: u32,
        /// Its name.
        name: &'a str,
    }
    /// Looks up a variable of a module. The answer has its address and size.
    17 GetVariable "cuModuleGetGlobal" {
        /// The module.
        module: u32,
        /// Its name.
        name: &'a str,
    }
    /// Sets an attribute of a kernel.
    18 SetAttribute "cuFuncSetAttribute" {
        /// The kernel.
        kernel: u32,
        /// The attribute.
        attribute: i32,
        /// Its value.
        value: i32,
    }
    /// The client waits for all work.
    19 Synchronize "cuCtxSynchronize" {}
    /// The client waits for a stream.
    20 SynchronizeStream "cuStreamSynchronize" {
        /// The stream.
        stream: u32,
    }
    /// The client waits for an event.
    21 SynchronizeEvent "cuEventSynchronize" {
        /// The event.
        event: u32,
    }
    /// Asks whether a stream is idle.
    22 QueryStream "cuStreamQuery" {
        /// The stream.
        stream: u32,
    }
    /// Asks whether an event is complete.
    23 QueryEvent "cuEventQuery" {
        /// The event.
        event: u32,
    }
    /// Asks for the time between two events. The answer has it as a 32-bit float, in milliseconds.
    24 Elapsed "cuEventElapsedTime" {
        /// The first event.
        start: u32,
        /// The second.
        end: u32,
    }
    /// Stores the records that follow in this message as a function. They are carried out as usual.
    25 Store "the library" {
        /// Its number.
        function: u32,
        /// The places of its inputs ([`crate::Places`]).
        inputs: &'a [u8],
    }
    /// Carries out the records of a stored function with other inputs.
    26 Call "the library" {
        /// The function.
        function: u32,
        /// The contents of its inputs.
        inputs: &'a [u8],
    }
    /// The records that follow differ from a stored function; only counted.
    27 Differ "the library" {
        /// The function.
        function: u32,
    }
    /// Drops a stored function.
    28 Drop "the library" {
        /// The function.
        function: u32,
    }
}

impl<'a> Record<'a> {
    /// Why the client waits for an answer to this record; `None` if it does not.
    pub fn wait(&self) -> Option<Wait> {
        Some(match self {
            Record::CopyOut { .. } => Wait::CopyBack,
            Record::Synchronize {} => Wait::Context,
            Record::SynchronizeStream { .. } => Wait::Stream,
            Record::SynchronizeEvent { .. } => Wait::Event,
            Record::QueryStream { .. } => Wait::StreamQuery,
            Record::QueryEvent { .. } => Wait::EventQuery,
            Record::Elapsed { .. } => Wait::ElapsedTime,
            Record::LoadModule { .. } => Wait::Module,
            Record::GetKernel { .. } => Wait::Kernel,
            Record::GetVariable { .. } => Wait::Variable,
            _ => return None,
        })
    }

    /// The stream that this record gives work to.
    pub fn stream(&self) -> Option<u32> {
        match *self {
            Record::CopyIn { stream, .. }
            | Record::CopyOut { stream, .. }
            | Record::CopyWithin { stream, .. }
            | Record::Fill { stream, .. }
            | Record::Launch { stream, .. }
            | Record::RecordEvent { stream, .. }
            | Record::WaitEvent { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// The places of the contents of a record's fields, as offsets in the bytes of the record.
    pub(crate) fn contents(record: &'a [u8], to: &mut Vec<Range<usize>>) -> Result<(), WireError> {
        to.clear();
        let mut reader = Reader::new(record);
        let (number, head) = (reader.get::<u16>()?, HEAD_BYTES as usize);
        reader.take(HEAD_BYTES as u64 - size_of::<u16>() as u64)?;
        Record::places(number, reader.rest(), to)?;
        to.iter_mut().for_each(|place| *place = place.start + head..place.end + head);
        Ok(())
    }

    /// Encodes the record at the end of `to`.
    pub fn write(&self, to: &mut Vec<u8>) {
        let start = to.len();
        self.number().write(to);
        0u16.write(to);
        0u32.write(to);
        self.write_fields(to);
        // The client builds records, and keeps copies and images far below this limit.
        let bytes = u32::try_from(to.len() - start).expect("a record is smaller than a message");
        to[start + 4..start + 8].copy_from_slice(&bytes.to_le_bytes());
    }

    /// Decodes the next record.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Record<'a>, WireError> {
        let (number, zero) = (reader.get::<u16>()?, reader.get::<u16>()?);
        if zero != 0 {
            return Err(WireError::Value { what: "the reserved field of a record", value: zero.into() });
        }
        let bytes = reader.get::<u32>()?;
        let fields = bytes
            .checked_sub(HEAD_BYTES)
            .ok_or(WireError::Value { what: "the size of a record", value: bytes.into() })?;
        let mut fields = Reader::new(reader.take(fields.into())?);
        let record = Record::read_fields(number, &mut fields)?;
        if fields.left() > 0 {
            return Err(WireError::Rest { record: number, left: fields.left() });
        }
        Ok(record)
    }
}

/// Decodes the records of a message. The iterator ends after the first error.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, WireError>> {
    let mut reader = Reader::new(bytes);
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over || reader.left() == 0 {
            return None;
        }
        let record = Record::read(&mut reader);
        is_over = record.is_err();
        Some(record)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [Record<'static>; 6] = [
        Record::Allocate { at: 0x1000, bytes: 7 },
        Record::CopyIn { stream: 3, to: 5, bytes: b"abc" },
        Record::Launch {
            stream: 0,
            kernel: 1,
            grid: [1, 2, 3],
            block: [4, 5, 6],
            shared_bytes: 7,
            cooperative: 0,
            params: &[1; 9],
        },
        Record::GetKernel { kernel: 1, module: 2, name: "größe" },
        Record::Synchronize {},
        Record::LoadModule { module: 1, digest: [7; 32], image: b"" },
    ];

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        SAMPLES.iter().for_each(|record| record.write(&mut bytes));
        let read: Vec<Record<'_>> = records(&bytes).collect::<Result<_, _>>().expect("records");
        assert_eq!(read, SAMPLES);
    }

    #[test]
    fn cut_records_are_refused() {
        for record in SAMPLES {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            for end in 1..bytes.len() {
                assert!(records(&bytes[..end]).any(|read| read.is_err()), "{record:?} cut at {end}");
            }
        }
    }

    #[test]
    fn lying_sizes_and_unknown_records_are_refused() {
        let mut bytes = Vec::new();
        Record::CopyIn { stream: 0, to: 0, bytes: b"abcd" }.write(&mut bytes);
        let with = |at: usize, value: &[u8]| {
            let mut bytes = bytes.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            records(&bytes).next().expect("bytes").expect_err("a lie")
        };
        assert_eq!(with(0, &[99, 0]), WireError::UnknownRecord(99));
        assert!(matches!(with(2, &[1]), WireError::Value { .. }));
        assert!(matches!(with(4, &[7, 0, 0, 0]), WireError::Value { .. }));
        assert!(matches!(with(4, &[255; 4]), WireError::Short { .. }));
        assert!(matches!(with(20, &[255; 8]), WireError::Short { .. }));
        assert_eq!(with(20, &[3, 0, 0, 0, 0, 0, 0, 0]), WireError::Rest { record: 3, left: 1 });
        let mut text = Vec::new();
        Record::GetVariable { module: 0, name: "ab" }.write(&mut text);
        *text.last_mut().expect("a name") = 0xff;
        assert_eq!(records(&text).next(), Some(Err(WireError::Text)));
    }
}
