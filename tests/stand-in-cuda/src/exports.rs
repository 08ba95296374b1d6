//! The entry points: the border, which checks every pointer and handle once.
//!
//! An argument that is a pointer has a type that says what it points to (`arguments`); behind it everything is safe. Each family declares its functions with [`entry_points!`], from which
//! their exports and the table for `cuGetProcAddress` follow.

mod arguments;
mod context;
mod copy;
mod device;
mod event;
mod gdr;
mod graph;
mod green;
mod launch;
mod lookup;
mod memory;
mod module;
mod stream;

pub(crate) use arguments::HostCall;
pub(crate) use green::Green;

use crate::driver::{Driver, say};
use crate::status::Status;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The address of an entry point.
pub(crate) type Address = *const ();

/// Declares entry points, and a table of them. The body returns `Result<(), Status>`.
///
/// # Safety
/// Of each: the arguments are what the driver's header asks for; a pointer may be null where a check is to find that.
macro_rules! entry_points {
    ($table:ident: $($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)+) => {
        $(
            $(#[$attribute])*
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::exports::enter(stringify!($name), move || $body)
            }
        )+

        /// The entry points of this file by their names.
        pub(crate) const $table: &[(&str, $crate::exports::Address)] = &[$((stringify!($name), $name as $crate::exports::Address)),+];
    };
}
use entry_points;

/// All entry points.
const TABLES: [&[(&str, Address)]; 11] = [
    context::CONTEXT,
    copy::COPY,
    device::DEVICE,
    event::EVENT,
    graph::GRAPH,
    green::GREEN,
    launch::LAUNCH,
    lookup::LOOKUP,
    memory::MEMORY,
    module::MODULE,
    stream::STREAM,
];

/// Runs an entry point; nothing unwinds into the program.
fn enter(name: &'static str, body: impl FnOnce() -> Result<(), Status>) -> u32 {
    let run = || {
        if let Ok(driver) = Driver::get() {
            driver.fail_on_demand(name)?;
        }
        body()
    };
    let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Status::Unknown));
    let Err(status) = outcome else { return 0 };
    if status != Status::NotReady && Driver::get().is_ok_and(|driver| driver.options.verbose) {
        say(&format_args!("{name}: {status}"));
    }
    status as u32
}
