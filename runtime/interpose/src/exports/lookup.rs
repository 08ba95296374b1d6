//! Names of errors, and lookup of entry points.

use super::{Address, entry_points, exported};
use crate::arguments::{In, Out, Place};
use crate::private::table;
use atoll_cuda_api::EntryPoint;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

entry_points! { LOOKUP:
    fn cuGetErrorName(code: CUresult, name: Out<*const c_char>) {
        report(code, name, |(name, _)| name)
    }

    fn cuGetErrorString(code: CUresult, text: Out<*const c_char>) {
        report(code, text, |(_, text)| text)
    }

    fn cuGetExportTable(found: Out<Place>, id: In<CUuuid>) {
        found.set_if_wanted(Place::NULL);
        found.set(place(table(id.get(0)?.bytes)?))
    }

    fn cuGetProcAddress(name: In<c_char>, entry: Out<Place>, version: c_int, _flags: u64) {
        entry.set(place(find(&name.text()?, version).map_err(|_| Code::NOT_FOUND)?))
    }

    fn cuGetProcAddress_v2(
        name: In<c_char>, entry: Out<Place>, version: c_int, _flags: u64, found: Out<CUdriverProcAddressQueryResult>
    ) {
        let address = find(&name.text()?, version);
        found.set_if_wanted(address.err().unwrap_or(CU_GET_PROC_ADDRESS_SUCCESS));
        entry.set(address.map_or(Place::NULL, place))?;
        address.map(drop).map_err(|_| Code::NOT_FOUND)
    }
}

macro_rules! texts {
    ($($variant:ident $name:ident = $number:literal $text:literal;)+) => {
        /// The name and the text of an error, NUL-terminated.
        fn texts(code: CUresult) -> Option<(&'static str, &'static str)> {
            match code {
                0 => Some(("CUDA_SUCCESS\0", "no error\0")),
                $($number => Some((concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($text, "\0"))),)+
                _ => None,
            }
        }
    };
}
atoll_cuda_api::for_each_error!(texts);

fn report(
    code: CUresult,
    to: Out<*const c_char>,
    choose: fn((&'static str, &'static str)) -> &'static str,
) -> Result<(), Code> {
    let found = texts(code);
    to.set(found.map_or(std::ptr::null(), |texts| choose(texts).as_ptr().cast()))?;
    found.map(drop).ok_or(Code::INVALID_VALUE)
}

fn place(address: Address) -> Place {
    Place::at(address.expose_provenance() as u64)
}

/// The entry point with this unversioned name, in the newest form that a driver of this version
/// has; or the one with this exact symbol.
fn find(name: &str, version: c_int) -> Result<Address, CUdriverProcAddressQueryResult> {
    let forms = || exported().filter(|(entry, _)| entry.name() == name || entry.symbol == name);
    let is_there = |entry: &EntryPoint| i64::from(entry.since) <= i64::from(version);
    let newest = forms().filter(|(entry, _)| is_there(entry)).max_by_key(|(entry, _)| entry.since);
    newest.map(|(_, address)| address).ok_or(match forms().next() {
        Some(_) => CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        None => CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
    })
}
