//! Names of errors, and entry points by their names.

use super::arguments::{In, Out};
use super::{Address, TABLES, entry_points};
use crate::status::Status;
use std::ffi::{c_char, c_int};

/// Where an entry point was found or why not, for `cuGetProcAddress_v2`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;

entry_points! { LOOKUP:
    fn cuGetErrorName(status: u32, name: Out<*const c_char>) {
        tell(status, name, |(name, _)| name)
    }

    fn cuGetErrorString(status: u32, text: Out<*const c_char>) {
        tell(status, text, |(_, text)| text)
    }

    fn cuGetProcAddress(name: In<c_char>, entry: Out<Address>, _version: c_int, _flags: u64) {
        entry.set(find(&name.text()?).ok_or(Status::NotFound)?)
    }

    fn cuGetProcAddress_v2(name: In<c_char>, entry: Out<Address>, _version: c_int, _flags: u64, found: Out<c_int>) {
        let address = find(&name.text()?);
        found.set_if_wanted(if address.is_some() { FOUND } else { NOT_FOUND });
        entry.set(address.unwrap_or(std::ptr::null()))?;
        address.map(drop).ok_or(Status::NotFound)
    }
}

fn tell(status: u32, to: Out<*const c_char>, choose: fn((&'static str, &'static str)) -> &'static str) -> Result<(), Status> {
    let texts = Status::texts(status);
    to.set(texts.map_or(std::ptr::null(), |texts| choose(texts).as_ptr().cast()))?;
    texts.map(drop).ok_or(Status::InvalidValue)
}

/// The newest form of an entry point.
fn find(name: &str) -> Option<Address> {
    let exact = |name: &str| TABLES.iter().copied().flatten().find(|(known, _)| *known == name).map(|(_, address)| *address);
    ["_v3", "_v2", ""].iter().find_map(|suffix| exact(&format!("{name}{suffix}")))
}
