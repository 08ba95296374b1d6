//! The entry points.
//!
//! The table of `runtime/cuda-api` defines them and their parameters. The exports and the results
//! of `cuGetProcAddress` are generated from it. Each family has a file with implementations:
//! associated functions of [`Session`] named like the symbols, in safe code over the types of
//! `arguments`. An entry point without an implementation is listed in [`MISSING`]. It prints its
//! name once and returns `CUDA_ERROR_NOT_SUPPORTED`.

mod capture;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod launch;
mod library;
mod lookup;
mod managed;
mod memory;
mod module;
mod node;
mod pool;
mod stream;
mod virtual_memory;

use crate::arguments::Argument;
use crate::log::{log, log_missing};
use crate::shim::Shim;
use atoll_cuda_api::types::*;
use atoll_cuda_api::{ENTRY_POINTS, EntryPoint};
use atoll_session::{Cause, Code};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The address of an entry point.
pub(crate) type Address = *const ();

/// Its associated functions are the implementations of entry points.
struct Session;

/// Declares the implementations of a family's entry points, and a list of their names. A body
/// returns `Result<(), Code>`.
macro_rules! entry_points {
    ($list:ident: $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)+) => {
        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        impl $crate::exports::Session {
            $(pub(super) fn $name($($argument: $type),*) -> Result<(), Code> $body)+
        }

        /// The entry points that this file implements.
        pub(super) const $list: &[&str] = &[$(stringify!($name)),+];
    };
}
use entry_points;

pub(crate) use device::check_device;
pub(crate) use module::load;

/// The implemented entry points.
const IMPLEMENTED: [&[&str]; 16] = [
    capture::CAPTURE,
    context::CONTEXT,
    copy::COPY,
    device::DEVICE,
    event::EVENT,
    graph::GRAPH,
    launch::LAUNCH,
    library::LIBRARY,
    lookup::LOOKUP,
    managed::MANAGED,
    memory::MEMORY,
    module::MODULE,
    node::NODE,
    pool::POOL,
    stream::STREAM,
    virtual_memory::VIRTUAL_MEMORY,
];

/// Entry points that sessions do not support.
const MISSING: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxDisablePeerAccess",
    "cuPointerSetAttribute",
    "cuMemRangeGetAttribute",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuModuleGetFunctionCount",
    "cuStreamWriteValue32_v2",
    "cuStreamWriteValue64_v2",
    "cuStreamWaitValue32_v2",
    "cuStreamWaitValue64_v2",
    "cuStreamWriteValue32",
    "cuDeviceGetDevResource",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxDestroy",
    "cuGreenCtxStreamCreate",
    "cuCtxFromGreenCtx",
    "cuGreenCtxGetDevResource",
    "cuGreenCtxRecordEvent",
    "cuGreenCtxWaitEvent",
    "cuCtxSetFlags",
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastUnbind",
    "cuLinkCreate_v2",
    "cuLinkAddData_v2",
    "cuLinkAddFile_v2",
    "cuLinkComplete",
    "cuLinkDestroy",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapReplaceAddress",
    "cuOccupancyMaxPotentialClusterSize",
    "cuOccupancyMaxActiveClusters",
    "cuStreamCopyAttributes",
    "cuStreamGetAttribute",
    "cuStreamSetAttribute",
    "cuUserObjectCreate",
    "cuUserObjectRetain",
    "cuUserObjectRelease",
    "cuGraphRetainUserObject",
    "cuGraphReleaseUserObject",
];

/// Generates the exports, and defaults that return an error.
macro_rules! exports {
    ($($since:literal fn $name:ident($($argument:ident: $type:ty),*);)+) => {
        /// The default implementations, for entry points without an associated function of
        /// [`Session`]. An associated function takes precedence over a trait's.
        #[allow(dead_code, non_snake_case, reason = "it has all entry points, under the driver's names")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        trait Missing {
            $(fn $name($(_: $type),*) -> Result<(), Code> {
                log_missing(stringify!($name));
                Err(Code::NOT_SUPPORTED)
            })+
        }

        impl Missing for Session {}

        $(
            /// # Safety
            /// The arguments must be as the driver's header requires; a pointer that is checked may
            /// be null.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                enter(stringify!($name), move || Session::$name($(Argument::of($argument)),*))
            }
        )+

        /// The exports, in the order of the table.
        const ADDRESSES: &[Address] = &[$($name as Address),+];
    };
}
atoll_cuda_api::for_each_entry_point!(exports);

/// Each entry point with its address.
fn exported() -> impl Iterator<Item = (&'static EntryPoint, Address)> {
    ENTRY_POINTS.iter().zip(ADDRESSES.iter().copied())
}

// Each row of the table is in exactly one of the two lists.
const _: () = atoll_cuda_api::coverage::assert_complete(&IMPLEMENTED, MISSING);

/// Runs an entry point. A panic becomes an error code. If the result is the error of a recorded
/// call, that call is printed.
pub(crate) fn enter(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> CUresult {
    let run = || {
        let result = body();
        if result.is_err_and(|code| code != Code::NOT_READY) {
            say_cause(name);
        }
        result
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

fn say_cause(name: &'static str) {
    let Ok(mut shim) = Shim::get() else { return };
    let (cause, lost) = (shim.client.take_cause(), shim.client.take_lost());
    drop(shim);
    if let Some(Cause { call, number, code }) = cause {
        log(&format_args!("{call}, call {number} of the session, failed: {code}; {name} returns the error"));
    }
    if let Some(lost) = lost {
        log(&format_args!("{name}: {lost}; every call fails from now on"));
    }
}
