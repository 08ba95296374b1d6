//! The entry points of GDRCopy (`gdrapi.h`), which is a separate library on real systems. Here
//! device memory is memory of the process, so nothing needs to be mapped.

use super::arguments::Out;
use crate::driver::Driver;
use crate::memory::Kind;
use std::ffi::{c_int, c_ulong};

/// Mappings begin at GPU page boundaries.
const PAGE_BYTES: u64 = 64 << 10;

/// Errors are `errno` numbers.
const INVALID: c_int = 22;

/// The library's handle; there is no state behind it.
const OPEN: usize = 1;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn gdr_open() -> usize {
    OPEN
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn gdr_close(library: usize) -> c_int {
    answer(library == OPEN)
}

/// A pinned buffer is identified by its address.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gdr_pin_buffer(
    library: usize,
    at: c_ulong,
    bytes: usize,
    _token: u64,
    _space: u32,
    pinned: Out<c_ulong>,
) -> c_int {
    let allocation = Driver::get().ok().and_then(|driver| driver.memory.find(at));
    let is_device = allocation.is_some_and(|allocation| {
        allocation.kind == Kind::Device && at + bytes as u64 <= allocation.at + allocation.bytes
    });
    if is_device {
        pinned.set_if_wanted(at);
    }
    answer(library == OPEN && is_device)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn gdr_unpin_buffer(library: usize, _pinned: c_ulong) -> c_int {
    answer(library == OPEN)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn gdr_map(library: usize, pinned: c_ulong, mapping: Out<u64>, bytes: usize) -> c_int {
    mapping.set_if_wanted(pinned / PAGE_BYTES * PAGE_BYTES);
    answer(library == OPEN && bytes > 0)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn gdr_unmap(library: usize, pinned: c_ulong, mapping: u64, _bytes: usize) -> c_int {
    answer(library == OPEN && mapping == pinned / PAGE_BYTES * PAGE_BYTES)
}

fn answer(is_right: bool) -> c_int {
    if is_right { 0 } else { INVALID }
}
