//! The entry points of CUDA 11.8, 12.9 and 13.5 that are not implemented. They are exported so that
//! a program that refers to one can start.

use super::entry_points;
use crate::error::Code;
use atoll_cuda_library::log_once;

/// Declares entry points that print their name once and return an error. They ignore their
/// arguments, which the caller passes in registers and on its own stack.
macro_rules! missing {
    ($($name:ident)+) => {
        entry_points! {
            $(fn $name() {
                log_once(
                    stringify!($name),
                    &concat!(stringify!($name), " is not supported; it returns cudaErrorNotSupported"),
                );
                Err(Code::NOT_SUPPORTED)
            })+
        }
    };
}

#[rustfmt::skip]
missing! {
    __cudaGetProcAddress cudaArrayGetInfo cudaArrayGetMemoryRequirements cudaArrayGetPlane
    cudaArrayGetSparseProperties cudaBindSurfaceToArray cudaBindTexture cudaBindTexture2D cudaBindTextureToArray
    cudaBindTextureToMipmappedArray cudaChooseDevice cudaCreateSurfaceObject cudaCreateTextureObject
    cudaCreateTextureObject_v2 cudaCtxResetPersistingL2Cache cudaDestroyExternalMemory cudaDestroyExternalSemaphore
    cudaDestroySurfaceObject cudaDestroyTextureObject cudaDevResourceGenerateDesc cudaDevSmResourceSplit
    cudaDevSmResourceSplitByCount cudaDeviceDisablePeerAccess cudaDeviceEnablePeerAccess
    cudaDeviceFlushGPUDirectRDMAWrites cudaDeviceGetDevResource cudaDeviceGetExecutionCtx
    cudaDeviceGetGraphMemAttribute cudaDeviceGetHostAtomicCapabilities cudaDeviceGetNvSciSyncAttributes
    cudaDeviceGetP2PAtomicCapabilities cudaDeviceGetP2PAttribute cudaDeviceGetTexture1DLinearMaxWidth
    cudaDeviceGraphMemTrim cudaDeviceRegisterAsyncNotification cudaDeviceSetGraphMemAttribute
    cudaDeviceUnregisterAsyncNotification cudaEGLStreamConsumerAcquireFrame cudaEGLStreamConsumerConnect
    cudaEGLStreamConsumerConnectWithFlags cudaEGLStreamConsumerDisconnect cudaEGLStreamConsumerReleaseFrame
    cudaEGLStreamProducerConnect cudaEGLStreamProducerDisconnect cudaEGLStreamProducerPresentFrame
    cudaEGLStreamProducerReturnFrame cudaEventCreateFromEGLSync cudaExecutionCtxDestroy
    cudaExecutionCtxGetDevResource cudaExecutionCtxGetDevice cudaExecutionCtxGetId cudaExecutionCtxRecordEvent
    cudaExecutionCtxStreamCreate cudaExecutionCtxSynchronize cudaExecutionCtxWaitEvent
    cudaExternalMemoryGetMappedBuffer cudaExternalMemoryGetMappedMipmappedArray cudaFreeArray cudaFreeMipmappedArray
    cudaFuncGetName cudaFuncGetParamCount cudaGLGetDevices cudaGLMapBufferObject cudaGLMapBufferObjectAsync
    cudaGLRegisterBufferObject cudaGLSetBufferObjectMapFlags cudaGLSetGLDevice cudaGLUnmapBufferObject
    cudaGLUnmapBufferObjectAsync cudaGLUnregisterBufferObject cudaGetChannelDesc cudaGetExportTable cudaGetKernel
    cudaGetMipmappedArrayLevel cudaGetSurfaceObjectResourceDesc cudaGetSurfaceReference
    cudaGetTextureAlignmentOffset cudaGetTextureObjectResourceDesc cudaGetTextureObjectResourceViewDesc
    cudaGetTextureObjectTextureDesc cudaGetTextureObjectTextureDesc_v2 cudaGetTextureReference
    cudaGraphAddExternalSemaphoresSignalNode cudaGraphAddExternalSemaphoresWaitNode cudaGraphAddMemAllocNode
    cudaGraphAddMemFreeNode cudaGraphAddNode cudaGraphAddNode_v2 cudaGraphConditionalHandleCreate
    cudaGraphConditionalHandleCreate_v2 cudaGraphDebugDotPrint cudaGraphExecExternalSemaphoresSignalNodeSetParams
    cudaGraphExecExternalSemaphoresWaitNodeSetParams cudaGraphExecGetId cudaGraphExecMemcpyNodeSetParamsFromSymbol
    cudaGraphExecMemcpyNodeSetParamsToSymbol cudaGraphExecNodeSetParams
    cudaGraphExternalSemaphoresSignalNodeGetParams cudaGraphExternalSemaphoresSignalNodeSetParams
    cudaGraphExternalSemaphoresWaitNodeGetParams cudaGraphExternalSemaphoresWaitNodeSetParams cudaGraphGetId
    cudaGraphKernelNodeCopyAttributes cudaGraphKernelNodeGetAttribute cudaGraphKernelNodeSetAttribute
    cudaGraphMemAllocNodeGetParams cudaGraphMemFreeNodeGetParams cudaGraphMemcpyNodeSetParamsFromSymbol
    cudaGraphMemcpyNodeSetParamsToSymbol cudaGraphNodeGetContainingGraph cudaGraphNodeGetLocalId
    cudaGraphNodeGetParams cudaGraphNodeGetToolsId cudaGraphNodeSetParams cudaGraphReleaseUserObject
    cudaGraphRetainUserObject cudaGraphicsEGLRegisterImage cudaGraphicsGLRegisterBuffer cudaGraphicsGLRegisterImage
    cudaGraphicsMapResources cudaGraphicsResourceGetMappedEglFrame cudaGraphicsResourceGetMappedMipmappedArray
    cudaGraphicsResourceGetMappedPointer cudaGraphicsResourceSetMapFlags cudaGraphicsSubResourceGetMappedArray
    cudaGraphicsUnmapResources cudaGraphicsUnregisterResource cudaGraphicsVDPAURegisterOutputSurface
    cudaGraphicsVDPAURegisterVideoSurface cudaGreenCtxCreate cudaImportExternalMemory cudaImportExternalSemaphore
    cudaIpcCloseMemHandle cudaIpcGetEventHandle cudaIpcGetMemHandle cudaIpcOpenEventHandle cudaIpcOpenMemHandle
    cudaKernelSetAttributeForDevice cudaLaunchCooperativeKernelMultiDevice cudaLaunchHostFunc_v2
    cudaLaunchHostFunc_v2_ptsz cudaLibraryEnumerateKernels cudaLibraryGetGlobal cudaLibraryGetKernel
    cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction cudaLibraryLoadData
    cudaLibraryLoadFromFile cudaLibraryUnload cudaLogsCurrent cudaLogsDumpToFile cudaLogsDumpToMemory
    cudaLogsRegisterCallback cudaLogsUnregisterCallback cudaMalloc3DArray cudaMallocArray cudaMallocMipmappedArray
    cudaMemDiscardAndPrefetchBatchAsync cudaMemDiscardAndPrefetchBatchAsync_ptsz cudaMemDiscardBatchAsync
    cudaMemDiscardBatchAsync_ptsz cudaMemGetDefaultMemPool cudaMemGetLocationInfo cudaMemGetMemPool
    cudaMemPoolExportPointer cudaMemPoolExportToShareableHandle cudaMemPoolImportFromShareableHandle
    cudaMemPoolImportPointer cudaMemPrefetchBatchAsync cudaMemPrefetchBatchAsync_ptsz cudaMemRangeGetAttribute
    cudaMemRangeGetAttributes cudaMemSetMemPool cudaMemcpy2DArrayToArray cudaMemcpy2DArrayToArray_ptds
    cudaMemcpy2DFromArray cudaMemcpy2DFromArrayAsync cudaMemcpy2DFromArrayAsync_ptsz cudaMemcpy2DFromArray_ptds
    cudaMemcpy2DToArray cudaMemcpy2DToArrayAsync cudaMemcpy2DToArrayAsync_ptsz cudaMemcpy2DToArray_ptds
    cudaMemcpy3DBatchAsync cudaMemcpy3DBatchAsync_ptsz cudaMemcpy3DPeer cudaMemcpy3DPeerAsync
    cudaMemcpy3DPeerAsync_ptsz cudaMemcpy3DPeer_ptds cudaMemcpy3DWithAttributesAsync
    cudaMemcpy3DWithAttributesAsync_ptsz cudaMemcpyArrayToArray cudaMemcpyArrayToArray_ptds cudaMemcpyBatchAsync
    cudaMemcpyBatchAsync_ptsz cudaMemcpyFromArray cudaMemcpyFromArrayAsync cudaMemcpyFromArrayAsync_ptsz
    cudaMemcpyFromArray_ptds cudaMemcpyPeer cudaMemcpyPeerAsync cudaMemcpyToArray cudaMemcpyToArrayAsync
    cudaMemcpyToArrayAsync_ptsz cudaMemcpyToArray_ptds cudaMemcpyWithAttributesAsync
    cudaMemcpyWithAttributesAsync_ptsz cudaMemset3D cudaMemset3DAsync cudaMemset3DAsync_ptsz cudaMemset3D_ptds
    cudaMipmappedArrayGetMemoryRequirements cudaMipmappedArrayGetSparseProperties cudaOccupancyMaxActiveClusters
    cudaOccupancyMaxPotentialClusterSize cudaProfilerInitialize cudaSetDoubleForDevice cudaSetDoubleForHost
    cudaSetValidDevices cudaSignalExternalSemaphoresAsync cudaSignalExternalSemaphoresAsync_ptsz
    cudaSignalExternalSemaphoresAsync_v2 cudaSignalExternalSemaphoresAsync_v2_ptsz cudaStreamBeginCaptureToGraph
    cudaStreamBeginCaptureToGraph_ptsz cudaStreamBeginRecaptureToGraph cudaStreamBeginRecaptureToGraph_ptsz
    cudaStreamCopyAttributes cudaStreamCopyAttributes_ptsz cudaStreamGetAttribute cudaStreamGetAttribute_ptsz
    cudaStreamGetDevResource cudaStreamGetDevResource_ptsz cudaStreamSetAttribute cudaStreamSetAttribute_ptsz
    cudaSubgridCreate cudaSubgridWorkerGridCreate cudaSubgridWorksetCreate cudaThreadGetCacheConfig
    cudaThreadGetLimit cudaThreadSetCacheConfig cudaThreadSetLimit cudaUnbindTexture cudaUserObjectCreate
    cudaUserObjectRelease cudaUserObjectRetain cudaVDPAUGetDevice cudaVDPAUSetVDPAUDevice
    cudaWaitExternalSemaphoresAsync cudaWaitExternalSemaphoresAsync_ptsz cudaWaitExternalSemaphoresAsync_v2
    cudaWaitExternalSemaphoresAsync_v2_ptsz
}
