//! A compile-time check that a library implements each entry point of the table or lists it as
//! missing.

use crate::ENTRY_POINTS;

/// Fails unless each row of the table is in exactly one of the two: the families of entry points
/// that a library implements, or the list of entry points that are missing. Called in a constant,
/// it fails the build.
///
/// # Panics
/// If a symbol is in both or in neither; the message is the symbol.
pub const fn assert_complete(implemented: &[&[&str]], missing: &[&str]) {
    let mut row = 0;
    while row < ENTRY_POINTS.len() {
        let symbol = ENTRY_POINTS[row].symbol;
        let (mut family, mut is_implemented) = (0, false);
        while family < implemented.len() {
            is_implemented |= has(implemented[family], symbol);
            family += 1;
        }
        if is_implemented == has(missing, symbol) {
            panic!("{}", symbol);
        }
        row += 1;
    }
}

/// Whether a list contains a name.
const fn has(list: &[&str], name: &str) -> bool {
    let mut index = 0;
    while index < list.len() {
        if is_same(list[index].as_bytes(), name.as_bytes()) {
            return true;
        }
        index += 1;
    }
    false
}

/// Compares from the end: names differ in their ends, and the compiler limits how long it evaluates a
/// constant.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = one.len();
    if index != other.len() {
        return false;
    }
    while index > 0 && one[index - 1] == other[index - 1] {
        index -= 1;
    }
    index == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_prefix() {
        assert!(has(&["cuInit", "cuMemFree_v2"], "cuMemFree_v2"));
        assert!(!has(&["cuMemFree_v2"], "cuMemFree") && !has(&["cuMem"], "cuMemFree") && !has(&[], "cuInit"));
    }

    #[test]
    fn a_row_in_no_list_is_named() {
        let all: Vec<&str> = ENTRY_POINTS.iter().map(|row| row.symbol).collect();
        assert_complete(&[&all], &[]);
        assert_complete(&[&all[1..]], &all[..1]);
        let panic = std::panic::catch_unwind(|| assert_complete(&[&all[1..]], &[])).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(all[0]));
    }
}
