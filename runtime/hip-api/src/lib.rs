//! The interface of AMD's HIP runtime, declared once: entry points, types, constants, errors.
//!
//! | module | holds |
//! |---|---|
//! | `table` | [`for_each_entry_point`]: symbol, parameters and first version of each entry point |
//! | [`types`] | handles, integers and structs of parameters, with the layouts of the C headers |
//! | [`constants`] | flags and attribute numbers in use |
//! | [`error`] | error numbers, and [`for_each_error`] with their names and texts |
//!
//! The table is a macro that calls another macro with all its rows. [`ENTRY_POINTS`], the function
//! types in [`signature`], the loader (`runtime/hip`) and the exports of the stand-in library
//! (`tests/stand-in-hip`) are all generated from it. A new entry point is one row.
//!
//! *Versions.* ROCm 5, 6 and 7 export the same entry points, with one exception among those in use.
//! ROCm 6 changed the layout of `hipDeviceProp_t`, and gave the entry point that fills it the new
//! symbol `hipGetDevicePropertiesR0600`. The old symbol keeps the old layout,
//! [`types::hipDeviceProp_tR0000`]. Other symbols have no version in their names. Error numbers and
//! attribute numbers are the same in all three.
//!
//! What it is not: it loads and calls nothing, so it has no `unsafe` code.
//!
//! Invariants:
//! - An enum of the header is a plain integer here: a newer library may return any number.
//! - Rows, layouts and numbers are those of AMD's headers; `tests/header.rs` compares them with a
//!   header that is installed.
//!
//! Start reading at [`for_each_entry_point`].

#![forbid(unsafe_code)]

pub mod constants;
pub mod error;
mod table;
pub mod types;

/// An entry point of the library.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint {
    /// The exported symbol.
    pub symbol: &'static str,
    /// The first version of ROCm whose library exports it: 503 is 5.3. 0 stands for an extension
    /// that no release has ([`is_extension`](EntryPoint::is_extension)).
    pub since: u32,
    /// Names and types of the parameters, as written in the table.
    pub parameters: &'static [(&'static str, &'static str)],
}

impl EntryPoint {
    /// Whether only libraries with REEF's changes export it.
    pub fn is_extension(&self) -> bool {
        self.since == 0
    }
}

/// Generates the list and the function types.
macro_rules! declare {
    ($($since:literal fn $symbol:ident($($parameter:ident: $type:ty),*);)+) => {
        /// All entry points that return a [`types::hipError_t`], in the order of the table.
        pub const ENTRY_POINTS: &[EntryPoint] = &[
            $(EntryPoint {
                symbol: stringify!($symbol),
                since: $since,
                parameters: &[$((stringify!($parameter), stringify!($type))),*],
            },)+
        ];

        /// The type of each entry point, under the name of its symbol.
        #[allow(non_camel_case_types, reason = "the names are those of the library's symbols")]
        pub mod signature {
            use crate::types::*;

            $(
                #[doc = concat!("`", stringify!($symbol), "`")]
                pub type $symbol = unsafe extern "C" fn($($parameter: $type),*) -> hipError_t;
            )+
            /// `hipGetErrorName`, which returns a static text for every number.
            pub type hipGetErrorName = unsafe extern "C" fn(error: hipError_t) -> *const c_char;
            /// `hipGetErrorString`, which returns a static text for every number.
            pub type hipGetErrorString = unsafe extern "C" fn(error: hipError_t) -> *const c_char;
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
    fn extensions_are_told_apart() {
        let extensions: Vec<&str> =
            ENTRY_POINTS.iter().filter(|entry| entry.is_extension()).map(|entry| entry.symbol).collect();
        assert_eq!(extensions, ["hipResetWavefronts", "hipStreamCreateWithWindowSize", "hipStreamClearQueue"]);
    }
}
