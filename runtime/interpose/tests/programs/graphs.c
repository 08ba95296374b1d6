/* Programs that build, capture, change and launch graphs. They check their results. */
#include "calls.h"
#include "graphs.h"

enum { WORDS = 1000, GLOBAL = 0, LOCAL = 1, RELAXED = 2 };

/* Ends the program if a condition does not hold. */
#define IS(condition) do { if (!(condition)) { \
    printf("line %d: %s does not hold\n", __LINE__, #condition); exit(1); } } while (0)

static CUhandle scale_kernel(void) {
    CUhandle module;
    DO(cuModuleLoadData(&module, PTX));
    return kernel(module, "scale");
}

static void add_one(void *number) {
    ++*(int *)number;
}

/* The word that `scale` makes of a word. */
static uint32_t scaled(uint32_t word, unsigned index) {
    return word * 3 + index;
}

static size_t node_count(CUhandle graph) {
    size_t count = 0;
    DO(cuGraphGetNodes(graph, 0, &count));
    return count;
}

/* Work of two streams is captured once and launched with other data each time. */
static int captured(void) {
    CUhandle one, two, fork, join, graph, executable, scale;
    CUhandle const *tips;
    CUdeviceptr at, side, sum;
    uint32_t *in, *out;
    uint64_t id = 0;
    size_t count = 9;
    int status = -1, calls = 0;
    unsigned n = WORDS;
    begin();
    scale = scale_kernel();
    DO(cuMemHostAlloc((void **)&in, WORDS * 4, 0));
    DO(cuMemHostAlloc((void **)&out, 2 * WORDS * 4, 0));
    DO(cuMemAlloc_v2(&at, WORDS * 4));
    DO(cuMemAlloc_v2(&side, WORDS * 4));
    DO(cuMemAlloc_v2(&sum, 2 * WORDS * 4));
    DO(cuStreamCreate(&one, 0));
    DO(cuStreamCreate(&two, 1));
    DO(cuEventCreate(&fork, 2));
    DO(cuEventCreate(&join, 2));
    void *of_at[] = {&at, &n}, *of_side[] = {&side, &n};
    DO(cuStreamBeginCapture_v2(one, GLOBAL));
    DO(cuStreamIsCapturing(one, &status));
    IS(status == 1);
    DO(cuStreamIsCapturing(two, &status));
    IS(status == 0);
    DO(cuMemcpyHtoDAsync_v2(at, in, WORDS * 4, one));
    DO(cuEventRecord(fork, one));
    DO(cuStreamWaitEvent(two, fork, 0));
    DO(cuStreamGetCaptureInfo_v2(two, &status, &id, &graph, &tips, &count));
    IS(status == 1 && id != 0 && count == 1 && node_count(graph) == 1);
    DO(cuMemsetD16Async(side, 5, WORDS * 2, two));
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, two, of_side, 0));
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, one, of_at, 0));
    DO(cuEventRecord(join, two));
    DO(cuStreamWaitEvent(one, join, 0));
    DO(cuMemcpyDtoDAsync_v2(sum, at, WORDS * 4, one));
    DO(cuMemcpyDtoDAsync_v2(sum + WORDS * 4, side, WORDS * 4, one));
    DO(cuMemcpyDtoHAsync_v2(out, sum, 2 * WORDS * 4, one));
    DO(cuLaunchHostFunc(one, add_one, &calls));
    IS(calls == 0);
    DO(cuStreamEndCapture(one, &graph));
    IS(node_count(graph) == 8);
    count = 2;
    CUhandle root[2];
    DO(cuGraphGetRootNodes(graph, root, &count));
    IS(count == 1 && root[1] == 0);
    DO(cuGraphNodeGetType(root[0], &status));
    IS(status == 1);
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    DO(cuGraphDestroy(graph));
    DO(cuGraphUpload(executable, one));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < WORDS; i++) in[i] = 100 * round + i, out[i] = 0;
        DO(cuGraphLaunch(executable, round & 1 ? two : one));
        IS(calls == round + 1);
        DO(cuStreamSynchronize(round & 1 ? two : one));
        for (int i = 0; i < WORDS; i++) IS(out[i] == scaled(100 * round + i, i));
        for (int i = 0; i < WORDS; i++) IS(out[WORDS + i] == scaled(5 << 16 | 5, i));
    }
    /* A launch that is captured is a child of the graph. */
    DO(cuStreamBeginCapture_v2(two, LOCAL));
    DO(cuGraphLaunch(executable, two));
    DO(cuGraphLaunch(executable, two));
    DO(cuStreamEndCapture(two, &graph));
    DO(cuGraphExecDestroy(executable));
    IS(node_count(graph) == 2);
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    DO(cuGraphLaunch(executable, one));
    DO(cuStreamSynchronize(one));
    IS(calls == 7);
    /* A captured stream is free again. */
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, two, of_side, 0));
    DO(cuCtxSynchronize());
    printf("captured\n");
    return 0;
}

/* A graph of explicit nodes, its copy, and changes of its executable form. */
static int built(void) {
    enum { SIDE = 10 };
    CUhandle graph, inner, copy, executable, scale, event, nodes[8], inside, found, stream;
    CUdeviceptr at;
    static uint32_t out[WORDS], box[2 * SIDE * SIDE];
    unsigned n = WORDS, few = 10;
    int calls = 0, kind;
    size_t count;
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 1));
    DO(cuEventCreate(&event, 0));
    DO(cuMemAlloc_v2(&at, WORDS * 4));
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphCreate(&inner, 0));
    void *params[] = {&at, &n}, *fewer[] = {&at, &few};
    kernel_node launch = {scale, {4, 1, 1}, {256, 1, 1}, 0, params, 0, 0, 0}, shown;
    fill_node fill = {at, 0, 7, 4, WORDS, 1}, read;
    DO(cuGraphAddKernelNode_v2(&inside, inner, 0, 0, &launch));
    DO(cuGraphAddMemsetNode(&nodes[0], graph, 0, 0, &fill, 0));
    DO(cuGraphAddKernelNode_v2(&nodes[1], graph, nodes, 1, &launch));
    DO(cuGraphAddChildGraphNode(&nodes[2], graph, nodes + 1, 1, inner));
    DO(cuGraphAddEmptyNode(&nodes[3], graph, 0, 0));
    DO(cuGraphAddDependencies(graph, nodes + 2, nodes + 3, 1));
    box_copy back = {.src_kind = 2, .src_device = at, .dst_kind = 1, .dst_host = out, .width = sizeof out,
                     .height = 1, .depth = 1};
    DO(cuGraphAddMemcpyNode(&nodes[4], graph, nodes + 3, 1, &back, 0));
    /* The same memory as two planes of 10 by 10 words, of which 5 words of 3 rows are copied. */
    back = (box_copy){.src_kind = 2, .src_device = at, .src_x = 8, .src_y = 2, .src_pitch = SIDE * 4,
                      .src_height = SIDE, .dst_kind = 1, .dst_host = box, .dst_pitch = SIDE * 4,
                      .dst_height = SIDE, .width = 20, .height = 3, .depth = 2};
    DO(cuGraphAddMemcpyNode(&nodes[5], graph, nodes + 3, 1, &back, 0));
    DO(cuGraphAddHostNode(&nodes[6], graph, nodes + 4, 2, &(host_node){add_one, &calls}));
    DO(cuGraphAddEventRecordNode(&nodes[7], graph, nodes + 6, 1, event));
    count = 0;
    DO(cuGraphGetEdges(graph, 0, 0, &count));
    IS(count == 8);
    /* The child is a copy: a change of the graph that was given does not change it. */
    DO(cuGraphDestroyNode(inside));
    DO(cuGraphInstantiateWithFlags(&executable, graph, 2));
    DO(cuGraphLaunch(executable, stream));
    DO(cuEventSynchronize(event));
    IS(calls == 1);
    DO(cuStreamSynchronize(stream));
    for (int i = 0; i < WORDS; i++) IS(out[i] == scaled(scaled(7, i), i));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                int from = (z * SIDE + y + 2) * SIDE + x + 2;
                IS(box[(z * SIDE + y) * SIDE + x] == (x < 5 && y < 3 ? out[from] : 0));
            }
    /* Parameters that the program reads. */
    DO(cuGraphKernelNodeGetParams_v2(nodes[1], &shown));
    IS(shown.function == scale && shown.grid[0] == 4 && shown.block[0] == 256);
    IS(*(CUdeviceptr *)shown.params[0] == at && *(unsigned *)shown.params[1] == WORDS);
    DO(cuGraphMemsetNodeGetParams(nodes[0], &read));
    IS(read.at == at && read.value == 7 && read.size == 4 && read.width == WORDS && read.height == 1);
    /* A copy of the graph with another fill, which updates the executable form. */
    DO(cuGraphClone(&copy, graph));
    DO(cuGraphNodeFindInClone(&found, nodes[0], copy));
    fill.value = 9;
    DO(cuGraphMemsetNodeSetParams(found, &fill));
    update_info info;
    DO(cuGraphExecUpdate_v2(executable, copy, &info));
    IS(info.result == 0);
    DO(cuGraphLaunch(executable, 0));
    DO(cuCtxSynchronize());
    for (int i = 0; i < WORDS; i++) IS(out[i] == scaled(scaled(9, i), i));
    /* The same copy, whose kinds of memory the driver finds from the addresses. */
    back = (box_copy){.src_kind = 4, .src_device = at, .dst_kind = 4, .dst_device = (uintptr_t)out,
                      .width = sizeof out, .height = 1, .depth = 1};
    DO(cuGraphExecMemcpyNodeSetParams(executable, nodes[4], &back, 0));
    back.dst_device = at;
    SAY_IF_NOT(1, cuGraphExecMemcpyNodeSetParams(executable, nodes[4], &back, 0));
    /* A copy of no rows, in many planes. */
    back = (box_copy){.src_kind = 2, .src_device = at, .dst_kind = 1, .dst_host = box, .width = 4,
                      .depth = (size_t)1 << 60};
    DO(cuMemcpy3D_v2(&back));
    /* Fewer threads in the first launch, and no fill. */
    launch.params = fewer;
    DO(cuGraphExecKernelNodeSetParams_v2(executable, nodes[1], &launch));
    DO(cuGraphNodeSetEnabled(executable, nodes[0], 0));
    static uint32_t before[WORDS];
    memcpy(before, out, sizeof out);
    DO(cuGraphLaunch(executable, stream));
    DO(cuCtxSynchronize());
    for (int i = 0; i < WORDS; i++) IS(out[i] == scaled(i < 10 ? scaled(before[i], i) : before[i], i));
    /* A graph with another structure does not update it. */
    DO(cuGraphDestroyNode(found));
    SAY_IF_NOT(910, cuGraphExecUpdate_v2(executable, copy, &info));
    IS(info.result == 2);
    DO(cuGraphAddEmptyNode(&found, copy, 0, 0));
    SAY_IF_NOT(910, cuGraphExecUpdate_v2(executable, copy, &info));
    IS(info.result == 3 && info.node != 0);
    DO(cuGraphNodeGetType(nodes[6], &kind));
    IS(kind == 3 && calls == 3);
    printf("built\n");
    return 0;
}

/* Memory that a graph allocates. */
static int allocated(void) {
    CUhandle stream, graph, other, executable, freeing, scale, nodes[5];
    CUdeviceptr at, kept;
    static uint32_t out[WORDS];
    unsigned n = WORDS;
    size_t count = 5, free_before, free_after, total;
    int kind[2];
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 1));
    DO(cuMemGetInfo_v2(&free_before, &total));
    /* Allocated and freed by each launch. */
    DO(cuStreamBeginCapture_v2(stream, GLOBAL));
    DO(cuMemAllocAsync(&at, WORDS * 4, stream));
    void *params[] = {&at, &n};
    DO(cuMemsetD16Async(at, 3, WORDS * 2, stream));
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, params, 0));
    DO(cuMemcpyDtoHAsync_v2(out, at, sizeof out, stream));
    DO(cuMemFreeAsync(at, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphGetNodes(graph, nodes, &count));
    DO(cuGraphNodeGetType(nodes[0], &kind[0]));
    DO(cuGraphNodeGetType(nodes[4], &kind[1]));
    IS(count == 5 && kind[0] == 10 && kind[1] == 11);
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    DO(cuGraphDestroy(graph));
    for (int round = 0; round < 3; round++) {
        DO(cuGraphLaunch(executable, stream));
        DO(cuStreamSynchronize(stream));
        for (int i = 0; i < WORDS; i++) IS(out[i] == scaled(3 << 16 | 3, i));
    }
    SAY("not live", cuMemFreeAsync(at, stream));
    DO(cuGraphExecDestroy(executable));
    DO(cuMemGetInfo_v2(&free_after, &total));
    IS(free_after == free_before);
    /* Allocated by a launch and freed by the program, or by the next launch. */
    DO(cuStreamBeginCapture_v2(stream, GLOBAL));
    DO(cuMemAllocAsync(&kept, WORDS * 4, stream));
    DO(cuMemsetD16Async(kept, 4, WORDS * 2, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    DO(cuGraphInstantiateWithFlags(&freeing, graph, 1));
    DO(cuGraphLaunch(executable, stream));
    SAY("still live", cuGraphLaunch(executable, stream));
    DO(cuStreamSynchronize(stream));
    DO(cuMemcpyDtoH_v2(out, kept, sizeof out));
    IS(out[WORDS - 1] == (4 << 16 | 4));
    DO(cuMemFreeAsync(kept, stream));
    DO(cuGraphLaunch(executable, stream));
    DO(cuGraphLaunch(freeing, stream));
    DO(cuGraphDestroy(graph));
    /* Another graph frees it. */
    DO(cuStreamBeginCapture_v2(stream, GLOBAL));
    DO(cuMemFreeAsync(kept, stream));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphInstantiateWithFlags(&other, graph, 0));
    DO(cuGraphExecDestroy(executable));
    DO(cuGraphExecDestroy(freeing));
    /* It has outlived its graphs. */
    DO(cuMemsetD8_v2(kept, 1, WORDS * 4));
    DO(cuGraphLaunch(other, stream));
    SAY("free again", cuMemFree_v2(kept));
    SAY("free by the graph again", cuGraphLaunch(other, stream));
    DO(cuCtxSynchronize());
    DO(cuMemGetInfo_v2(&free_after, &total));
    IS(free_after == free_before);
    return 0;
}

/* Graphs and handles that are wrong. */
static int wrong(void) {
    CUhandle graph, other, executable, scale, stream, one, two, foreign;
    update_info info = {0};
    CUdeviceptr at;
    unsigned n = WORDS;
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 0));
    DO(cuMemAlloc_v2(&at, WORDS * 4));
    void *params[] = {&at, &n};
    kernel_node launch = {scale, {4, 1, 1}, {256, 1, 1}, 0, params, 0, 0, 0};
    fill_node fill = {at, 0, 7, 4, WORDS, 1};
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphCreate(&other, 0));
    DO(cuGraphAddKernelNode_v2(&one, graph, 0, 0, &launch));
    DO(cuGraphAddMemsetNode(&two, graph, &one, 1, &fill, 0));
    DO(cuGraphAddEmptyNode(&foreign, other, 0, 0));
    SAY("flags", cuGraphCreate(&executable, 1));
    SAY("no node", cuGraphAddEmptyNode(0, graph, 0, 0));
    SAY("a node of another graph", cuGraphAddEmptyNode(&foreign, graph, &foreign, 1));
    SAY("an edge to another graph", cuGraphAddDependencies(graph, &one, &foreign, 1));
    SAY("an edge twice", cuGraphAddDependencies(graph, &one, &two, 1));
    SAY("an edge to itself", cuGraphAddDependencies(graph, &one, &one, 1));
    SAY("a stream", cuGraphAddEmptyNode(&foreign, stream, 0, 0));
    SAY("a graph as a node", cuGraphDestroyNode(graph));
    SAY("an address", cuGraphLaunch((CUhandle)&at, stream));
    SAY("a graph", cuGraphLaunch(graph, stream));
    SAY("params of another kind", cuGraphMemsetNodeSetParams(one, &fill));
    launch.block[0] = 100000;
    SAY("a large block", cuGraphAddKernelNode_v2(&foreign, graph, 0, 0, &launch));
    fill.size = 3;
    SAY("an element of 3 bytes", cuGraphAddMemsetNode(&foreign, graph, 0, 0, &fill, 0));
    fill = (fill_node){at, 4, 7, 4, 2, 2};
    SAY("rows that overlap", cuGraphAddMemsetNode(&foreign, graph, 0, 0, &fill, 0));
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    SAY("unknown flags", cuGraphInstantiateWithFlags(&other, graph, 1 << 20));
    SAY("a launch on the device", cuGraphInstantiateWithFlags(&other, graph, 4));
    DO(cuGraphAddDependencies(graph, &two, &one, 1));
    SAY("a cycle", cuGraphInstantiateWithFlags(&other, graph, 0));
    DO(cuGraphLaunch(executable, stream));
    DO(cuStreamSynchronize(stream));
    DO(cuMemFree_v2(at));
    SAY("freed memory", cuGraphLaunch(executable, stream));
    SAY("synchronize", cuStreamSynchronize(stream));
    DO(cuGraphExecDestroy(executable));
    SAY("after destroy", cuGraphLaunch(executable, stream));
    SAY("destroy again", cuGraphExecDestroy(executable));
    SAY("update after destroy", cuGraphExecUpdate_v2(executable, other, &info));
    IS(info.result == 1);
    DO(cuGraphDestroy(graph));
    SAY("destroy again", cuGraphDestroy(graph));
    SAY("a node that is gone", cuGraphDestroyNode(one));
    return 0;
}

/* Calls that end or invalidate a capture. */
static int forbidden(void) {
    CUhandle stream, free_stream, graph, event, other, scale, node, executable;
    CUdeviceptr at, more;
    unsigned n = WORDS;
    int mode = RELAXED, status;
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 0));
    DO(cuStreamCreate(&free_stream, 1));
    DO(cuEventCreate(&event, 2));
    DO(cuEventCreate(&other, 2));
    DO(cuMemAlloc_v2(&at, WORDS * 4));
    void *params[] = {&at, &n};
    SAY("the default stream", cuStreamBeginCapture_v2(0, GLOBAL));
    SAY("no mode", cuStreamBeginCapture_v2(stream, 9));
    SAY("no capture", cuStreamEndCapture(stream, &graph));
#define CAPTURE(mode) DO(cuStreamBeginCapture_v2(stream, mode)); \
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, params, 0))
#define END() SAY("end", cuStreamEndCapture(stream, &graph)); IS(graph == 0)
    CAPTURE(GLOBAL);
    SAY("begin again", cuStreamBeginCapture_v2(stream, GLOBAL));
    SAY("allocate", cuMemAlloc_v2(&more, 4));
    SAY("launch", cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, params, 0));
    END();
    CAPTURE(LOCAL);
    SAY("synchronize", cuStreamSynchronize(stream));
    END();
    CAPTURE(LOCAL);
    SAY("synchronize all", cuCtxSynchronize());
    END();
    CAPTURE(RELAXED);
    SAY("the default stream", cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, 0, params, 0));
    END();
    CAPTURE(RELAXED);
    SAY("an event outside", cuEventRecord(event, free_stream));
    SAY("wait", cuStreamWaitEvent(stream, event, 0));
    END();
    CAPTURE(RELAXED);
    DO(cuEventRecord(event, stream));
    SAY("query", cuEventQuery(event));
    SAY("synchronize", cuEventSynchronize(event));
    DO(cuStreamWaitEvent(free_stream, event, 0));
    DO(cuMemsetD16Async(at, 1, 2, free_stream));
    END();
    CAPTURE(RELAXED);
    DO(cuStreamBeginCapture_v2(free_stream, RELAXED));
    DO(cuEventRecord(other, free_stream));
    SAY("merge", cuStreamWaitEvent(stream, other, 0));
    SAY("end", cuStreamEndCapture(free_stream, &graph));
    END();
    CAPTURE(GLOBAL);
    SAY("free in order", cuMemFreeAsync(at, stream));
    END();
    /* The thread permits what the capture forbids, and questions are no use of the default stream. */
    CAPTURE(GLOBAL);
    SAY("ask the default stream", cuStreamIsCapturing(0, &status));
    SAY("ask it for more", cuStreamGetCaptureInfo_v2(0, &status, 0, 0, 0, 0));
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    IS(mode == GLOBAL);
    DO(cuMemAlloc_v2(&more, 4));
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    IS(mode == RELAXED);
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphDestroy(graph));
    /* A stream that is destroyed ends its capture. */
    CAPTURE(GLOBAL);
    DO(cuStreamDestroy_v2(stream));
    DO(cuMemAlloc_v2(&more, 4));
    SAY("an event of a capture that ended", cuStreamWaitEvent(free_stream, event, 0));
    /* A graph that is launched records it, as a stream does. */
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphAddEventRecordNode(&node, graph, 0, 0, event));
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    DO(cuGraphLaunch(executable, free_stream));
    DO(cuEventSynchronize(event));
    SAY("an event of the other one", cuEventQuery(other));
    DO(cuEventRecord(other, free_stream));
    DO(cuEventSynchronize(other));
    return 0;
}

/* New parameters of a node leave its launch cooperative. */
static int cooperative(void) {
    CUhandle stream, graph, executable, scale, node;
    CUdeviceptr at;
    unsigned n = WORDS;
    size_t count = 1;
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 1));
    DO(cuMemAlloc_v2(&at, WORDS * 4));
    void *params[] = {&at, &n};
    kernel_node launch = {scale, {1, 1, 1}, {64, 1, 1}, 0, params, 0, 0, 0};
    DO(cuStreamBeginCapture_v2(stream, GLOBAL));
    DO(cuLaunchCooperativeKernel(scale, 1, 1, 1, 256, 1, 1, 0, stream, params));
    DO(cuStreamEndCapture(stream, &graph));
    DO(cuGraphGetNodes(graph, &node, &count));
    DO(cuGraphKernelNodeSetParams_v2(node, &launch));
    DO(cuGraphInstantiateWithFlags(&executable, graph, 0));
    DO(cuGraphLaunch(executable, stream));
    DO(cuStreamSynchronize(stream));
    launch.grid[0] = 1 << 16;
    DO(cuGraphExecKernelNodeSetParams_v2(executable, node, &launch));
    DO(cuGraphLaunch(executable, stream));
    SAY("more blocks than run at once", cuStreamSynchronize(stream));
    return 0;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "captured")) return captured();
    if (!strcmp(what, "built")) return built();
    if (!strcmp(what, "allocated")) return allocated();
    if (!strcmp(what, "wrong")) return wrong();
    if (!strcmp(what, "forbidden")) return forbidden();
    if (!strcmp(what, "cooperative")) return cooperative();
    return 2;
}
