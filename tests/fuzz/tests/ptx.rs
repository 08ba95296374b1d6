//! Fuzz targets of the PTX language.

use atoll_fuzz::{Change, SEEDS, exercise, mutate};
use bolero::check;

#[test]
fn any_bytes() {
    check!().for_each(|bytes: &[u8]| exercise(&String::from_utf8_lossy(bytes)));
}

#[test]
fn mutated_texts() {
    check!().with_type::<(u8, Vec<(u8, u16, u16)>)>().for_each(|(seed, changes)| {
        let changes: Vec<Change> =
            changes.iter().take(12).map(|&(kind, at, amount)| Change { kind, at, amount }).collect();
        exercise(&mutate(SEEDS[usize::from(*seed) % SEEDS.len()], &changes));
    });
}

#[test]
fn constant_expressions() {
    check!().with_type::<Vec<u8>>().for_each(|bytes| {
        const ALPHABET: &[u8] = b"0123456789abcdefxXUL+-*/%()~!&|^<>=?: .";
        let expression: String =
            bytes.iter().take(400).map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])).collect();
        exercise(&format!(".version 8.0\n.target sm_80\n.address_size 64\n.const .u32 x[2] = {{{expression}, 1}};\n"));
    });
}
