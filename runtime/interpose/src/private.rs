//! Private tables of the driver: functions that NVIDIA's runtime, which programs contain, calls
//! besides the public entry points. A table is found by its id. Its slots are numbered; the first
//! one has the size of the table in bytes.
//!
//! What the functions do is known from the reports of other projects, such as ZLUDA, and from runs
//! of the runtime of CUDA 11 to 13. A slot that is not known prints its number once and returns
//! `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! | table | contents |
//! |---|---|
//! | runtime | the primary context of a device, modules of fat binaries |
//! | storage | values that belong to a context, see `crate::storage` |
//! | callbacks | which callbacks a profiler has set: none |
//! | integrity | a digest by which the runtime recognizes the driver, see `digest` |
//! | checks | states of a context that are never set |
//! | tools of contexts | the device and the number of a context |
//! | tools, devices, heap, contexts | no slot is known; a runtime that works does not call them |

mod digest;
mod functions;

use crate::exports::Address;
use crate::log::log;
use atoll_session::Code;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The most slots of a table.
const SLOTS: usize = 95;

/// A table that the runtime asks for and does not need.
const OPTIONAL: [u8; 16] = u128::to_be_bytes(0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9);

/// What is printed about any other table that is not known.
const UNKNOWN_TABLE: &str = "the program asks for a private table of NVIDIA's driver that is not known";

/// A table.
struct Table {
    id: [u8; 16],
    slots: [Address; SLOTS],
}

// SAFETY: the addresses are of functions, which any thread may call.
unsafe impl Sync for Table {}

/// The slots of a table of which none is known.
macro_rules! unknown_slots {
    ($table:literal: $($slot:literal)+) => { [$(unknown::<$table, $slot> as Address),+] };
}

/// Declares the tables. Each has its number in the list, its id, how many slots it has, and those
/// slots that are known. A table begins with its size unless `0` is among the known slots.
macro_rules! tables {
    ($($number:literal $name:ident $id:literal [$count:literal] { $($slot:literal => $function:path),* })+) => {
        $(
            static $name: Table = Table {
                id: u128::to_be_bytes($id),
                slots: slots(
                    unknown_slots!($number:
                        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
                        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59
                        60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87
                        88 89 90 91 92 93 94
                    ),
                    $count,
                    &[$(($slot, $function as Address)),*],
                ),
            };
        )+

        /// All tables, by their numbers.
        static TABLES: &[&Table] = &[$(&$name),+];
    };
}

tables! {
    0 RUNTIME 0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 [13] {
        1 => functions::load_wrapper,
        2 => functions::primary_context,
        6 => functions::load_wrapper_with,
        7 => functions::ignore,
        8 => functions::load_binary_with,
        12 => functions::load_compilers
    }
    1 STORAGE 0xc693336e_1121_df11_a8c3_68f355d89593 [3] {
        0 => functions::put,
        1 => functions::remove,
        2 => functions::get
    }
    2 CALLBACKS 0xa094798c_2e74_2e74_93f2_0800200c0a66 [7] {
        2 => functions::callbacks,
        6 => functions::callback_flags
    }
    3 INTEGRITY 0xd4082055_bde6_704b_8d34_ba123c66e1f2 [3] {
        1 => functions::integrity
    }
    4 CHECKS 0x263e8860_7cd2_6143_92f6_bbd5006dfa7e [15] {
        2 => functions::check_context,
        3 => functions::check
    }
    5 TOOLS 0x42d85a81_23f6_cb47_8298_f6e78a3aecdc [4] {}
    6 DEVICES 0xb10541e1_f7c7_c74a_9f64_f223be99f1e2 [26] {}
    7 HEAP 0x195bcbf4_d67d_024a_acc5_1d29cea631ae [3] {}
    8 CONTEXT_TOOLS 0x21318c60_9714_3248_8ca6_41ff7324c8f2 [95] {
        3 => functions::context_device,
        4 => functions::context_number_of
    }
    9 CONTEXTS 0x0ca50b8c_1004_929a_89a7_d0df10e77286 [2] {}
}

impl Table {
    /// The address that the program gets.
    fn address(&'static self) -> Address {
        self.slots.as_ptr().cast()
    }
}

/// The slots of a table. Those behind its end are null.
const fn slots(mut slots: [Address; SLOTS], count: usize, known: &[(usize, Address)]) -> [Address; SLOTS] {
    slots[0] = std::ptr::without_provenance(count * size_of::<Address>());
    let mut index = 0;
    while index < known.len() {
        slots[known[index].0] = known[index].1;
        index += 1;
    }
    let mut behind = count;
    while behind < SLOTS {
        slots[behind] = std::ptr::null();
        behind += 1;
    }
    slots
}

/// The table with an id. Prints once that a table is not known.
pub(crate) fn table(id: [u8; 16]) -> Result<Address, Code> {
    if let Some(found) = TABLES.iter().find(|table| table.id == id) {
        return Ok(found.address());
    }
    if id != OPTIONAL {
        say_once(id, 0, &UNKNOWN_TABLE);
    }
    Err(Code::NOT_SUPPORTED)
}

/// A slot that is not known.
extern "C" fn unknown<const TABLE: usize, const SLOT: usize>() -> i32 {
    let Some(table) = TABLES.get(TABLE) else { return Code::NOT_SUPPORTED.0 };
    let what = format_args!("slot {SLOT} of a private table of NVIDIA's driver is not known");
    say_once(table.id, SLOT, &what);
    Code::NOT_SUPPORTED.0
}

/// Prints a line about a slot of a table, once.
fn say_once(id: [u8; 16], slot: usize, line: &dyn std::fmt::Display) {
    static SAID: Mutex<BTreeSet<([u8; 16], usize)>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert((id, slot)) {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let parts = [&id[..4], &id[4..6], &id[6..8], &id[8..10], &id[10..]].map(digits);
        log(&format_args!("{line} ({})", parts.join("-")));
    }
}
