//! Names of errors, and lookup of entry points.

use super::arguments::{In, Out, Pointer};
use super::{Address, entry_points, exported};
use crate::status::Status;
use atoll_cuda_api::EntryPoint;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;

entry_points! { LOOKUP:
    fn cuGetErrorName(status: CUresult, name: Out<*const c_char>) {
        report(status, name, |(name, _)| name)
    }

    fn cuGetErrorString(status: CUresult, text: Out<*const c_char>) {
        report(status, text, |(_, text)| text)
    }

    fn cuGetProcAddress(name: In<c_char>, entry: Out<Pointer>, version: c_int, _flags: u64) {
        entry.set(Pointer::to_code(find(&name.text()?, version).map_err(|_| Status::NotFound)?))
    }

    fn cuGetProcAddress_v2(
        name: In<c_char>, entry: Out<Pointer>, version: c_int, _flags: u64, found: Out<CUdriverProcAddressQueryResult>
    ) {
        let address = find(&name.text()?, version);
        found.set_if_wanted(address.err().unwrap_or(CU_GET_PROC_ADDRESS_SUCCESS));
        entry.set(address.map_or(Pointer::NULL, Pointer::to_code))?;
        address.map(drop).map_err(|_| Status::NotFound)
    }
}

fn report(
    status: CUresult,
    to: Out<*const c_char>,
    choose: fn((&'static str, &'static str)) -> &'static str,
) -> Result<(), Status> {
    let texts = Status::texts(status);
    to.set(texts.map_or(std::ptr::null(), |texts| choose(texts).as_ptr().cast()))?;
    texts.map(drop).ok_or(Status::InvalidValue)
}

/// The entry point with this unversioned name, in the newest form that a driver of this version
/// has; or the one with this exact symbol.
fn find(name: &str, version: c_int) -> Result<Address, CUdriverProcAddressQueryResult> {
    let forms = || exported().filter(|(entry, _)| entry.name() == name || entry.symbol == name);
    let is_there = |entry: &EntryPoint| i64::from(entry.since) <= i64::from(version);
    let newest = forms().filter(|(entry, _)| is_there(entry)).max_by_key(|(entry, _)| entry.since);
    let refusal = if forms().next().is_some() {
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
    } else {
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
    };
    newest.map(|(_, address)| address).ok_or(refusal)
}
