//! The memory that launches of checked code may access, and descriptions of accesses outside it.

use atoll_core::DeviceOffset;
use atoll_kgraph::host_abi::AccessKind;

/// An access further away than this from a buffer is not attributed to it.
const NEAR_BYTES: u64 = 1 << 30;

/// A buffer that checked kernels may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedBuffer {
    /// Its name in reports.
    pub name: String,
    /// Its offset.
    pub at: DeviceOffset,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether kernels may only read it.
    pub read_only: bool,
}

/// Ranges of addresses, in ascending order, without overlaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    ranges: Vec<Range>,
}

/// One range.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) name: String,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) read_only: bool,
}

/// How an access violates the bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// It writes to a read-only range.
    ReadOnly,
    /// It is not entirely inside one range.
    Outside,
}

impl Bounds {
    pub(crate) fn new(mut ranges: Vec<Range>) -> Bounds {
        ranges.sort_by_key(|range| range.begin);
        Bounds { ranges }
    }

    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Whether an access is allowed.
    pub(crate) fn check(&self, address: u64, bytes: u64, kind: AccessKind) -> Result<(), Violation> {
        let range = self.before(address).filter(|range| address.checked_add(bytes).is_some_and(|end| end <= range.end));
        match range {
            Some(range) if range.read_only && kind != AccessKind::Read => Err(Violation::ReadOnly),
            Some(_) => Ok(()),
            None => Err(Violation::Outside),
        }
    }

    /// The last range that begins at or before an address.
    fn before(&self, address: u64) -> Option<&Range> {
        let behind = self.ranges.partition_point(|range| range.begin <= address);
        self.ranges[..behind].last()
    }

    /// Describes an address in relation to the nearest range; `None` if none is near.
    pub(crate) fn describe(&self, address: u64, bytes: u64) -> Option<String> {
        let before = self.before(address);
        if let Some(range) = before.filter(|range| address < range.end) {
            let (name, at, size) = (&range.name, address - range.begin, range.end - range.begin);
            let over = (address.saturating_add(bytes)).saturating_sub(range.end);
            return Some(match over {
                0 if range.read_only => format!("{at} bytes into '{name}' ({size} bytes), which is read-only"),
                0 => format!("{at} bytes into '{name}' ({size} bytes)"),
                _ => format!("{at} bytes into '{name}' ({size} bytes), {over} bytes beyond its end"),
            });
        }
        let after = self.ranges.iter().find(|range| range.begin > address);
        let behind = before.map(|range| (address - range.end, range, "behind the end of"));
        let ahead = after.map(|range| (range.begin - address, range, "before"));
        let (distance, range, side) = behind
            .into_iter()
            .chain(ahead)
            .min_by_key(|(distance, ..)| *distance)
            .filter(|(distance, ..)| *distance < NEAR_BYTES)?;
        let distance = if distance == 0 { "right".to_owned() } else { format!("{distance} bytes") };
        Some(format!("{distance} {side} '{}' ({} bytes)", range.name, range.end - range.begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AccessKind::{Atomic, Read, Write};

    fn bounds() -> Bounds {
        let range = |name: &str, begin, end, read_only| Range { name: name.into(), begin, end, read_only };
        Bounds::new(vec![range("out", 2000, 2100, false), range("in", 1000, 1016, true)])
    }

    #[test]
    fn an_access_lies_in_one_range() {
        let bounds = bounds();
        assert_eq!(bounds.check(1000, 16, Read), Ok(()));
        assert_eq!(bounds.check(1012, 8, Read), Err(Violation::Outside));
        assert_eq!(bounds.check(1000, 4, Write), Err(Violation::ReadOnly));
        assert_eq!(bounds.check(2096, 4, Atomic), Ok(()));
        assert_eq!(bounds.check(999, 1, Read), Err(Violation::Outside));
        assert_eq!(bounds.check(u64::MAX, 4, Read), Err(Violation::Outside));
        assert_eq!(Bounds::default().check(0, 1, Read), Err(Violation::Outside));
    }

    #[test]
    fn an_address_is_described_by_the_nearest_range() {
        let bounds = bounds();
        let place = |at| bounds.describe(at, 8).unwrap();
        assert_eq!(place(900), "100 bytes before 'in' (16 bytes)");
        assert_eq!(place(1004), "4 bytes into 'in' (16 bytes), which is read-only");
        assert_eq!(place(1012), "12 bytes into 'in' (16 bytes), 4 bytes beyond its end");
        assert_eq!(place(1020), "4 bytes behind the end of 'in' (16 bytes)");
        assert_eq!(place(1900), "100 bytes before 'out' (100 bytes)");
        assert_eq!(place(2100), "right behind the end of 'out' (100 bytes)");
        assert_eq!(bounds.describe(1 << 40, 1), None);
        assert_eq!(Bounds::default().describe(1, 1), None);
    }
}
