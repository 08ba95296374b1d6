//! Line tables: the line of PTX from which an instruction of a loaded object was compiled.

use gimli::{DebugLine, DebugLineOffset, LittleEndian, Reader};
use object::{Object, ObjectSection};

/// The rows of an object's line tables, sorted by address. Built when a kernel faults for the first
/// time.
#[derive(Debug, Default)]
pub(crate) struct LineTable {
    rows: Vec<Row>,
}

/// Covers addresses from `address` up to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    address: u64,
    /// 0 if the line is unknown.
    line: u32,
    /// How many lines above `line` the load is whose value the instruction consumes; 0 if none.
    above: u32,
}

/// The origin of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    /// The line of its operation.
    pub(crate) line: u32,
    /// The line of the load that it consumes, if that is another line.
    pub(crate) load: u32,
}

impl LineTable {
    /// The section that [`LineTable::read`] needs from an ELF object; empty if there is none.
    pub(crate) fn section_of(elf: &[u8]) -> Vec<u8> {
        let data = object::File::parse(elf)
            .ok()
            .and_then(|file| Some(file.section_by_name(".debug_line")?.data().ok()?.to_vec()));
        data.unwrap_or_default()
    }

    /// Reads line tables; unreadable parts are left out.
    pub(crate) fn read(debug_line: &[u8]) -> LineTable {
        let section = DebugLine::new(debug_line, LittleEndian);
        let (mut rows, mut at) = (Vec::new(), 0);
        while let Some(next) = unit(&section, at, &mut rows) {
            at = next;
        }
        // The end of one kernel may be the beginning of the next.
        rows.sort_by_key(|row: &Row| (row.address, row.line != END));
        LineTable { rows }
    }

    /// The lines of the instruction at an address of the object. An instruction without a line has
    /// the line of the instruction before it in the same kernel.
    pub(crate) fn find(&self, address: u64) -> Option<Lines> {
        let behind = self.rows.partition_point(|row| row.address <= address);
        let row = self.rows[..behind].iter().rev().take_while(|row| row.line != END).find(|row| row.line != 0)?;
        Some(Lines { line: row.line, load: row.line.saturating_sub(row.above) })
    }
}

/// Marks the row behind the last of a sequence.
const END: u32 = u32::MAX;

/// Appends the rows of the unit at offset `at`; returns the offset of the next unit.
fn unit<R: Reader<Offset = usize>>(section: &DebugLine<R>, at: usize, rows: &mut Vec<Row>) -> Option<usize> {
    let program = section.program(DebugLineOffset(at), 8, None, None).ok()?;
    // The length does not include its own four bytes.
    let next = at.checked_add(program.header().unit_length())?.checked_add(4)?;
    let mut reader = program.rows();
    while let Ok(Some((_, row))) = reader.next_row() {
        let line = row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0);
        let above = match row.column() {
            gimli::ColumnType::LeftEdge => 0,
            gimli::ColumnType::Column(column) => u32::try_from(column.get()).unwrap_or(0),
        };
        let line = if row.end_sequence() { END } else { line };
        rows.push(Row { address: row.address(), line, above });
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_row_counts_up_to_the_end_of_a_kernel() {
        let row = |address, line, above| Row { address, line, above };
        let table =
            LineTable { rows: vec![row(16, 0, 0), row(20, 7, 2), row(24, 0, 0), row(30, END, 0), row(32, 9, 0)] };
        assert_eq!(table.find(10), None);
        assert_eq!(table.find(16), None);
        assert_eq!(table.find(23), Some(Lines { line: 7, load: 5 }));
        assert_eq!(table.find(25), Some(Lines { line: 7, load: 5 }));
        assert_eq!(table.find(31), None);
        assert_eq!(table.find(40), Some(Lines { line: 9, load: 9 }));
    }

    #[test]
    fn invalid_objects_have_no_lines() {
        assert!(LineTable::section_of(&[0x7f; 500]).is_empty());
        assert_eq!(LineTable::read(b"").find(0), None);
        assert_eq!(LineTable::read(&[0x7f; 500]).find(0), None);
    }
}
