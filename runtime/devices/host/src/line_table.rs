//! Which line of PTX an instruction of a loaded object belongs to.

use gimli::{DebugLine, DebugLineOffset, LittleEndian, Reader};
use object::{Object, ObjectSection};

/// Rows of an object's line tables, in the order of their addresses. Built when a kernel faults for
/// the first time.
#[derive(Debug, Default)]
pub(crate) struct LineTable {
    rows: Vec<Row>,
}

/// From `address` to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    address: u64,
    /// 0 where no line is known.
    line: u32,
    /// Lines above it stands the load whose value the instruction consumes; 0 if it consumes none.
    above: u32,
}

/// Where an instruction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    /// What it does.
    pub(crate) line: u32,
    /// What it reads from memory, where that is another line.
    pub(crate) load: u32,
}

impl LineTable {
    /// What [`LineTable::read`] needs of an ELF object; nothing where there is none.
    pub(crate) fn section_of(elf: &[u8]) -> Vec<u8> {
        let data = object::File::parse(elf)
            .ok()
            .and_then(|file| Some(file.section_by_name(".debug_line")?.data().ok()?.to_vec()));
        data.unwrap_or_default()
    }

    /// Reads line tables; what cannot be read is left out.
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

    /// The lines of the instruction at an address of the object. Code without a line of its own
    /// counts to what stands in front of it in the same kernel.
    pub(crate) fn find(&self, address: u64) -> Option<Lines> {
        let behind = self.rows.partition_point(|row| row.address <= address);
        let row = self.rows[..behind].iter().rev().take_while(|row| row.line != END).find(|row| row.line != 0)?;
        Some(Lines { line: row.line, load: row.line.saturating_sub(row.above) })
    }
}

/// Line of the row behind the last of a sequence.
const END: u32 = u32::MAX;

/// Appends the rows of the unit at `at`; the place of the next one.
fn unit<R: Reader<Offset = usize>>(section: &DebugLine<R>, at: usize, rows: &mut Vec<Row>) -> Option<usize> {
    let program = section.program(DebugLineOffset(at), 8, None, None).ok()?;
    // The length does not count its own four bytes.
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
    fn the_row_in_front_counts_up_to_the_end_of_a_kernel() {
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
    fn what_is_no_object_has_no_lines() {
        assert!(LineTable::section_of(&[0x7f; 500]).is_empty());
        assert_eq!(LineTable::read(b"").find(0), None);
        assert_eq!(LineTable::read(&[0x7f; 500]).find(0), None);
    }
}
