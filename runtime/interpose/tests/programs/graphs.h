/* Nodes of graphs, and the calls of the driver for graphs. */
typedef struct {
    CUhandle function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    CUhandle kernel, context;
} kernel_node;

typedef struct {
    size_t src_x, src_y, src_z, src_lod;
    unsigned src_kind;
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array, *reserved0;
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod;
    unsigned dst_kind;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array, *reserved1;
    size_t dst_pitch, dst_height, width, height, depth;
} box_copy;

typedef struct { CUdeviceptr at; size_t pitch; unsigned value, size; size_t width, height; } fill_node;
typedef struct { void (*function)(void *); void *data; } host_node;
typedef struct { int result; CUhandle node, from; } update_info;

CUresult cuStreamBeginCapture_v2(CUhandle, int), cuStreamEndCapture(CUhandle, CUhandle *);
CUresult cuStreamIsCapturing(CUhandle, int *), cuThreadExchangeStreamCaptureMode(int *);
CUresult cuStreamGetCaptureInfo_v2(CUhandle, int *, uint64_t *, CUhandle *, CUhandle const **, size_t *);
CUresult cuStreamUpdateCaptureDependencies(CUhandle, CUhandle *, size_t, unsigned);
CUresult cuGraphCreate(CUhandle *, unsigned), cuGraphDestroy(CUhandle), cuGraphClone(CUhandle *, CUhandle);
CUresult cuGraphInstantiateWithFlags(CUhandle *, CUhandle, unsigned long long);
CUresult cuGraphLaunch(CUhandle, CUhandle), cuGraphUpload(CUhandle, CUhandle), cuGraphExecDestroy(CUhandle);
CUresult cuGraphGetNodes(CUhandle, CUhandle *, size_t *), cuGraphGetRootNodes(CUhandle, CUhandle *, size_t *);
CUresult cuGraphGetEdges(CUhandle, CUhandle *, CUhandle *, size_t *);
CUresult cuGraphAddKernelNode_v2(CUhandle *, CUhandle, CUhandle const *, size_t, const kernel_node *);
CUresult cuGraphKernelNodeGetParams_v2(CUhandle, kernel_node *);
CUresult cuGraphKernelNodeSetParams_v2(CUhandle, const kernel_node *), cuLaunchCooperativeKernel(
    CUhandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUhandle, void **);
CUresult cuGraphExecKernelNodeSetParams_v2(CUhandle, CUhandle, const kernel_node *);
CUresult cuGraphAddMemcpyNode(CUhandle *, CUhandle, CUhandle const *, size_t, const box_copy *, CUhandle);
CUresult cuGraphAddMemsetNode(CUhandle *, CUhandle, CUhandle const *, size_t, const fill_node *, CUhandle);
CUresult cuGraphMemsetNodeGetParams(CUhandle, fill_node *), cuGraphMemsetNodeSetParams(CUhandle, const fill_node *);
CUresult cuGraphAddHostNode(CUhandle *, CUhandle, CUhandle const *, size_t, const host_node *);
CUresult cuGraphAddChildGraphNode(CUhandle *, CUhandle, CUhandle const *, size_t, CUhandle);
CUresult cuGraphAddEmptyNode(CUhandle *, CUhandle, CUhandle const *, size_t);
CUresult cuGraphAddEventRecordNode(CUhandle *, CUhandle, CUhandle const *, size_t, CUhandle);
CUresult cuGraphAddDependencies(CUhandle, CUhandle const *, CUhandle const *, size_t);
CUresult cuGraphNodeGetType(CUhandle, int *), cuGraphDestroyNode(CUhandle);
CUresult cuGraphNodeFindInClone(CUhandle *, CUhandle, CUhandle), cuGraphNodeSetEnabled(CUhandle, CUhandle, unsigned);
CUresult cuGraphExecMemcpyNodeSetParams(CUhandle, CUhandle, const box_copy *, CUhandle);
CUresult cuMemcpy3D_v2(const box_copy *);
CUresult cuGraphExecUpdate_v2(CUhandle, CUhandle, update_info *), cuMemAllocAsync(CUdeviceptr *, size_t, CUhandle);
CUresult cuMemFreeAsync(CUdeviceptr, CUhandle), cuMemGetInfo_v2(size_t *, size_t *);
