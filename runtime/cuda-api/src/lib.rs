//! The interface of NVIDIA's CUDA driver, declared once: entry points, types, constants, errors.
//!
//! | module | holds |
//! |---|---|
//! | `table` | [`for_each_entry_point`]: symbol, parameters and first CUDA version of each entry point |
//! | `graph_table` | the part of the table with graphs |
//! | [`types`] | handles and integers of parameters, and, from `structs`, structs with the layout of the C header |
//! | [`constants`] | flags and attribute numbers in use |
//! | [`coverage`] | the check that a library has each entry point or lists it as missing |
//! | [`nvml`] | functions of the management library that list GPUs and MIG instances |
//! | [`error`] | error numbers, and [`for_each_error`] with their texts |
//!
//! The table is a macro that calls another macro with all its rows. [`ENTRY_POINTS`], the function
//! types in [`signature`], the client's loader (`runtime/cuda`) and the exports of the stand-in
//! driver (`tests/stand-in-cuda`) are all generated from it. A new entry point is one row.
//!
//! What it is not: it loads and calls nothing, so it has no `unsafe` code.
//!
//! Invariants:
//! - An enum of the header is a plain integer here: a newer driver may return any number.
//! - A row is one exported symbol, with its version suffix: `cuMemAlloc_v2` is the entry point that
//!   a program compiled today calls as `cuMemAlloc`.
//! - Rows, layouts and numbers are those of NVIDIA's header; `tests/header.rs` compares them if the
//!   header is installed.
//!
//! Start reading at [`for_each_entry_point`].

#![forbid(unsafe_code)]

pub mod constants;
pub mod coverage;
pub mod error;
mod graph_table;
pub mod nvml;
mod structs;
mod table;
pub mod types;

/// An entry point of the driver.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint {
    /// The exported symbol, with its version suffix.
    pub symbol: &'static str,
    /// The first version of CUDA whose driver exports it: 12040 is 12.4.
    pub since: u32,
    /// Names and types of the parameters, as written in the table.
    pub parameters: &'static [(&'static str, &'static str)],
}

impl EntryPoint {
    /// The symbol without its version suffix: the name in programs and for `cuGetProcAddress`.
    pub fn name(&self) -> &'static str {
        split_version(self.symbol).0
    }

    /// The number in the version suffix; 1 if the symbol has none.
    pub fn version(&self) -> u32 {
        split_version(self.symbol).1
    }
}

/// Splits a symbol: `cuMemAlloc_v2` is version 2 of `cuMemAlloc`.
fn split_version(symbol: &str) -> (&str, u32) {
    let versioned = symbol.rsplit_once("_v").and_then(|(name, version)| Some((name, version.parse().ok()?)));
    versioned.unwrap_or((symbol, 1))
}

/// Generates the list and the function types.
macro_rules! declare {
    ($($since:literal fn $symbol:ident($($parameter:ident: $type:ty),*);)+) => {
        /// All entry points, in the order of the table.
        pub const ENTRY_POINTS: &[EntryPoint] = &[
            $(EntryPoint {
                symbol: stringify!($symbol),
                since: $since,
                parameters: &[$((stringify!($parameter), stringify!($type))),*],
            },)+
        ];

        /// The type of each entry point, under the name of its symbol.
        #[allow(non_camel_case_types, reason = "the names are those of the driver's symbols")]
        pub mod signature {
            use crate::types::*;

            $(
                #[doc = concat!("`", stringify!($symbol), "`")]
                pub type $symbol = unsafe extern "C" fn($($parameter: $type),*) -> CUresult;
            )+
        }
    };
}
for_each_entry_point!(declare);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn symbols_are_unique() {
        let symbols: BTreeSet<&str> = ENTRY_POINTS.iter().map(|entry| entry.symbol).collect();
        assert_eq!(symbols.len(), ENTRY_POINTS.len());
    }

    #[test]
    fn a_version_suffix_is_separated_from_the_name() {
        assert_eq!(split_version("cuMemAlloc_v2"), ("cuMemAlloc", 2));
        assert_eq!(split_version("cuInit"), ("cuInit", 1));
        assert_eq!(split_version("cuModule_view"), ("cuModule_view", 1));
    }

    #[test]
    fn a_later_version_of_an_entry_point_needs_a_later_cuda() {
        for newer in ENTRY_POINTS {
            for older in
                ENTRY_POINTS.iter().filter(|older| older.name() == newer.name() && older.version() < newer.version())
            {
                assert!(older.since < newer.since, "{} and {}", older.symbol, newer.symbol);
            }
        }
    }
}
