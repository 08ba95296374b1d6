//! The entry points, which check every pointer and handle once.
//!
//! The table of `runtime/cuda-api` defines the entry points and their parameters. The exports
//! ([`exported`]) and the results of `cuGetProcAddress` are generated from it. Each family of entry
//! points has a file with implementations: associated functions of [`StandIn`] named like the
//! symbol. The types of pointer arguments (`arguments`) state the purpose of each pointer and
//! contain the unsafe accesses, so the implementations are safe code. A row without an implementation
//! returns `CUDA_ERROR_NOT_SUPPORTED` and is listed in [`NOT_IMPLEMENTED`]. The functions of GDRCopy
//! (`gdr`) and NVML (`nvml`), two other libraries, are exported one by one.

mod arguments;
mod context;
mod copy;
mod device;
mod event;
mod gdr;
mod graph;
mod green;
mod ipc;
mod launch;
mod lookup;
mod memory;
mod module;
mod nvml;
mod stream;

use crate::driver::Driver;
use crate::log::log;
use crate::status::Status;
use arguments::Argument;
use atoll_cuda_api::types::*;
use atoll_cuda_api::{ENTRY_POINTS, EntryPoint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The address of an entry point.
pub(crate) type Address = *const ();

/// Its associated functions are the implementations of entry points.
struct StandIn;

/// Declares the implementations of a family's entry points, and a list of their names. A body
/// returns `Result<(), Status>`.
macro_rules! entry_points {
    ($list:ident: $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)+) => {
        #[allow(non_snake_case, reason = "the names are those of the driver's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        impl $crate::exports::StandIn {
            $(pub(super) fn $name($($argument: $type),*) -> Result<(), Status> $body)+
        }

        /// The entry points that this file implements.
        pub(super) const $list: &[&str] = &[$(stringify!($name)),+];
    };
}
use entry_points;

/// The implemented entry points.
const IMPLEMENTED: [&[&str]; 12] = [
    context::CONTEXT,
    copy::COPY,
    device::DEVICE,
    event::EVENT,
    graph::GRAPH,
    green::GREEN,
    ipc::IPC,
    launch::LAUNCH,
    lookup::LOOKUP,
    memory::MEMORY,
    module::MODULE,
    stream::STREAM,
];

/// Entry points that are not implemented: they return `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_IMPLEMENTED: &[&str] = &[
    "cuDeviceGetByPCIBusId",
    "cuGetExportTable",
    "cuDeviceGetP2PAttribute",
    "cuCtxGetLimit",
    "cuCtxGetCacheConfig",
    "cuCtxSetCacheConfig",
    "cuCtxEnablePeerAccess",
    "cuCtxDisablePeerAccess",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuPointerGetAttributes",
    "cuPointerSetAttribute",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemsetD2D8_v2",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D8Async",
    "cuMemsetD2D16Async",
    "cuMemsetD2D32Async",
    "cuMemcpy2D_v2",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2DAsync_v2",
    "cuModuleLoad",
    "cuFuncGetName",
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuLibraryGetKernel",
    "cuLibraryGetModule",
    "cuKernelGetFunction",
    "cuLibraryGetGlobal",
    "cuKernelGetAttribute",
    "cuKernelSetAttribute",
    "cuKernelGetParamInfo",
    "cuThreadExchangeStreamCaptureMode",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuStreamAddCallback",
    "cuStreamAttachMemAsync",
    "cuGraphCreate",
    "cuGraphClone",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceSetMemPool",
    "cuDeviceGetMemPool",
    "cuMemPoolTrimTo",
    "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolGetAccess",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemAllocFromPoolAsync",
    "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2",
    "cuMemAdvise",
    "cuMemAdvise_v2",
    "cuMemRangeGetAttribute",
    "cuMemcpy3D_v2",
    "cuMemcpy3DAsync_v2",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamUpdateCaptureDependencies",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuGraphAddKernelNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphKernelNodeGetParams",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeSetParams",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphAddMemcpyNode",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemcpyNodeSetParams",
    "cuGraphAddMemsetNode",
    "cuGraphMemsetNodeGetParams",
    "cuGraphMemsetNodeSetParams",
    "cuGraphAddHostNode",
    "cuGraphHostNodeGetParams",
    "cuGraphHostNodeSetParams",
    "cuGraphAddChildGraphNode",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphAddEmptyNode",
    "cuGraphAddEventRecordNode",
    "cuGraphEventRecordNodeGetEvent",
    "cuGraphEventRecordNodeSetEvent",
    "cuGraphAddEventWaitNode",
    "cuGraphEventWaitNodeGetEvent",
    "cuGraphEventWaitNodeSetEvent",
    "cuGraphNodeFindInClone",
    "cuGraphNodeGetType",
    "cuGraphGetRootNodes",
    "cuGraphGetEdges",
    "cuGraphGetEdges_v2",
    "cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependentNodes",
    "cuGraphNodeGetDependentNodes_v2",
    "cuGraphAddDependencies",
    "cuGraphAddDependencies_v2",
    "cuGraphRemoveDependencies",
    "cuGraphRemoveDependencies_v2",
    "cuGraphDestroyNode",
    "cuGraphInstantiateWithParams",
    "cuGraphExecGetFlags",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecEventRecordNodeSetEvent",
    "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuGraphNodeSetEnabled",
    "cuGraphNodeGetEnabled",
    "cuCtxFromGreenCtx",
    "cuGreenCtxGetDevResource",
    "cuGreenCtxRecordEvent",
    "cuGreenCtxWaitEvent",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuCtxResetPersistingL2Cache",
    "cuCtxSetFlags",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAccess",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastUnbind",
    "cuKernelGetName",
    "cuKernelGetLibrary",
    "cuKernelSetCacheConfig",
    "cuLinkCreate_v2",
    "cuLinkAddData_v2",
    "cuLinkAddFile_v2",
    "cuLinkComplete",
    "cuLinkDestroy",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapReplaceAddress",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
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

/// Generates the exports, and default implementations that return an error.
macro_rules! exports {
    ($($since:literal fn $name:ident($($argument:ident: $type:ty),*);)+) => {
        /// The default implementations, for entry points without an associated function of
        /// [`StandIn`]. An associated function takes precedence over a trait's.
        #[allow(dead_code, non_snake_case, reason = "it has all entry points, under the driver's names")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's functions have")]
        trait NotImplemented {
            $(fn $name($(_: $type),*) -> Result<(), Status> {
                Err(Status::NotSupported)
            })+
        }

        impl NotImplemented for StandIn {}

        $(
            /// # Safety
            /// The arguments must be as the driver's header requires; a pointer that is checked may
            /// be null.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
                enter(stringify!($name), move || StandIn::$name($(Argument::of($argument)),*))
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
const _: () = atoll_cuda_api::coverage::assert_complete(&IMPLEMENTED, NOT_IMPLEMENTED);

/// Runs an entry point. A panic becomes an error code and does not unwind into the program.
fn enter(name: &'static str, body: impl FnOnce() -> Result<(), Status>) -> CUresult {
    let run = || {
        if let Ok(driver) = Driver::get() {
            driver.fail_on_demand(name)?;
        }
        body()
    };
    let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Status::Unknown));
    let Err(status) = outcome else { return 0 };
    if status != Status::NotReady && Driver::get().is_ok_and(|driver| driver.options.verbose) {
        log(&format_args!("{name}: {status}"));
    }
    status as CUresult
}
