//! Print buffers of AMD code: calls of `printf` that kernels have recorded, in the layout of
//! [`atoll_kgraph::amd_abi`], and that the host formats.

use crate::printf;
use crate::report::LaunchReport;
use atoll_kgraph::amd_abi as abi;
use std::ffi::CString;

/// A print buffer for a launch, with space for this many bytes of records.
pub fn empty(capacity: u32) -> Vec<u8> {
    let mut buffer = vec![0; (abi::PRINT_RECORDS + capacity) as usize];
    buffer[abi::PRINT_CAPACITY as usize..][..4].copy_from_slice(&capacity.to_le_bytes());
    buffer
}

/// Appends what a launch has printed to its report, in the order of the records. If calls were
/// dropped, a last line tells how many. The buffer may have any content: damaged records end the
/// text.
pub fn append(report: &mut LaunchReport, kernel: &str, buffer: &[u8]) {
    let mut dropped = u64::from(word(buffer, abi::PRINT_DROPPED).unwrap_or(0));
    let mut rest = buffer.get(abi::PRINT_RECORDS as usize..).unwrap_or_default();
    while let Some((record, behind)) = Record::first(rest) {
        rest = behind;
        match record.text() {
            Some(text) => dropped += u64::from(!report.print(&text)),
            None => record.warn(kernel),
        }
    }
    if dropped > 0 {
        let lines = if dropped == 1 { "line was" } else { "lines were" };
        // Not an output of the kernel, so it does not count as lost if it does not fit.
        let notice = format!("[{dropped} more {lines} dropped: a launch prints into a buffer of limited size]\n");
        if report.printed.len() + notice.len() <= crate::PRINTED_BYTES_MAX {
            report.printed.push_str(&notice);
        }
    }
}

/// A call of `printf`.
struct Record<'b> {
    bytes: &'b [u8],
    format: &'b [u8],
    arguments: &'b [u8],
    strings: &'b [u8],
}

impl<'b> Record<'b> {
    /// The record at the beginning of some bytes, and the bytes behind it. `None` if no complete
    /// record is there: a wave that was killed may leave a gap.
    fn first(bytes: &'b [u8]) -> Option<(Record<'b>, &'b [u8])> {
        let size = word(bytes, abi::PRINT_SIZE)? as usize;
        if size < abi::PRINT_HEAD_BYTES as usize {
            return None;
        }
        let (bytes, behind) = bytes.split_at_checked(size.checked_next_multiple_of(8)?)?;
        let (format, rest) = part(&bytes[abi::PRINT_HEAD_BYTES as usize..], word(bytes, abi::PRINT_FORMAT_BYTES)?)?;
        let (arguments, strings) = part(rest, word(bytes, abi::PRINT_ARGUMENTS_BYTES)?)?;
        Some((Record { bytes, format, arguments, strings }, behind))
    }

    /// Its text; `None` if the format needs more arguments than there are.
    fn text(&self) -> Option<String> {
        let mut arguments = Recorded { record: self, taken: 0 };
        printf::format(self.format, &mut arguments).map(|(text, _)| text)
    }

    fn warn(&self, kernel: &str) {
        let [line, thread] = [abi::PRINT_LINE, abi::PRINT_THREAD].map(|at| word(self.bytes, at).unwrap_or(0));
        tracing::warn!(kernel, line, thread, "a kernel's printf asks for more arguments than it has");
    }

    /// The string that was recorded for an address.
    fn string(&self, address: u64) -> Option<&'b [u8]> {
        let mut rest = self.strings;
        loop {
            let (head, behind) = rest.split_at_checked(abi::PRINT_STRING_HEAD_BYTES as usize)?;
            let (text, others) = part(behind, word(head, 8)?)?;
            if head[..8] == address.to_le_bytes() {
                return Some(text);
            }
            rest = others;
        }
    }
}

/// The arguments of a record.
struct Recorded<'r, 'b> {
    record: &'r Record<'b>,
    taken: usize,
}

impl printf::Arguments for Recorded<'_, '_> {
    fn number(&mut self, bytes: usize) -> Option<u64> {
        let from = self.taken.next_multiple_of(bytes);
        self.taken = from + bytes;
        let value = self.record.arguments.get(from..self.taken)?;
        Some(value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn string(&mut self, address: u64) -> CString {
        match self.record.string(address) {
            Some(text) => CString::new(text).unwrap_or_default(),
            None if address == 0 => c"(null)".to_owned(),
            None => c"(unknown)".to_owned(),
        }
    }
}

/// The first bytes, and those behind their padding to a multiple of 4.
fn part(bytes: &[u8], size: u32) -> Option<(&[u8], &[u8])> {
    let size = size as usize;
    let behind = size.checked_next_multiple_of(4)?;
    Some((bytes.get(..size)?, bytes.get(behind..)?))
}

fn word(bytes: &[u8], at: u32) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at as usize..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn record(format: &str, arguments: &[u64], strings: &[(u64, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; abi::PRINT_HEAD_BYTES as usize];
        bytes.extend(padded(format.as_bytes().to_vec()));
        bytes.extend(arguments.iter().flat_map(|word| word.to_le_bytes()));
        for (address, text) in strings {
            bytes.extend(address.to_le_bytes());
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(padded(text.as_bytes().to_vec()));
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut put = |at: u32, value: usize| {
            bytes[at as usize..][..4].copy_from_slice(&(value as u32).to_le_bytes());
        };
        put(abi::PRINT_FORMAT_BYTES, format.len());
        put(abi::PRINT_ARGUMENTS_BYTES, 8 * arguments.len());
        let size = bytes.len();
        bytes[..4].copy_from_slice(&(size as u32).to_le_bytes());
        bytes
    }

    fn buffer(records: &[Vec<u8>], dropped: u32) -> Vec<u8> {
        let mut buffer = empty(4096);
        buffer[abi::PRINT_DROPPED as usize..][..4].copy_from_slice(&dropped.to_le_bytes());
        let records = records.concat();
        buffer[abi::PRINT_RECORDS as usize..][..records.len()].copy_from_slice(&records);
        buffer
    }

    fn text(buffer: &[u8]) -> String {
        let mut report = LaunchReport::default();
        append(&mut report, "k", buffer);
        report.printed
    }

    #[test]
    fn records_become_text_in_their_order() {
        let records = [
            record("%lld: %s|%s|%s\n", &[5, 0x1000, 0, 0x2000], &[(0x1000, "five"), (0x2000, "")]),
            record("%s\n", &[0x3000], &[]),
            record("too few: %d %lld\n", &[1], &[]),
            record("end", &[], &[]),
        ];
        assert_eq!(text(&buffer(&records, 0)), "5: five|(null)|\n(unknown)\nend");
    }

    #[test]
    fn dropped_calls_are_counted() {
        let one = record("one\n", &[], &[]);
        let several = text(&buffer(std::slice::from_ref(&one), 3));
        assert_eq!(several, "one\n[3 more lines were dropped: a launch prints into a buffer of limited size]\n");
        // Each text has the largest size, and 64 of them reach the limit of a report.
        let long = record(&"%1000d".repeat(17), &[0; 9], &[]);
        let mut report = LaunchReport::default();
        (0..22).for_each(|_| append(&mut report, "k", &buffer(&[long.clone(), long.clone(), long.clone()], 0)));
        assert!(report.printed.len() <= crate::PRINTED_BYTES_MAX && report.printed_lost_bytes > 0);
    }

    #[test]
    fn damaged_records_end_the_text() {
        let good = record("good\n", &[], &[]);
        for (at, value) in [(abi::PRINT_SIZE, 0), (abi::PRINT_SIZE, 1 << 20), (abi::PRINT_FORMAT_BYTES, u32::MAX)] {
            let mut bad = record("bad\n", &[], &[]);
            bad[at as usize..][..4].copy_from_slice(&value.to_le_bytes());
            assert_eq!(text(&buffer(&[good.clone(), bad, good.clone()], 0)), "good\n");
        }
        (0..40).for_each(|bytes| assert_eq!(text(&buffer(std::slice::from_ref(&good), 0)[..bytes]), ""));
    }
}
