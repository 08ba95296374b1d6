//! The entry points of graphs.

/// Calls a macro with rows, and then with those of graphs. A part of
/// [`for_each_entry_point`](crate::for_each_entry_point).
#[doc(hidden)]
#[macro_export]
macro_rules! with_graph_entry_points {
    ($consumer:ident { $($rows:tt)* }) => {
        $consumer! {
            $($rows)*

            // Graphs.
            11040 fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
            11000 fn cuGraphInstantiate_v2(
                executable: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char,
                buffer_size: usize
            );
            10000 fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream);
            11010 fn cuGraphUpload(graph: CUgraphExec, stream: CUstream);
            10000 fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
            10000 fn cuGraphDestroy(graph: CUgraph);
            10000 fn cuGraphExecDestroy(executable: CUgraphExec);
            10000 fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
            10000 fn cuGraphClone(clone: *mut CUgraph, original_graph: CUgraph);
            10000 fn cuGraphAddKernelNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                params: *const CUDA_KERNEL_NODE_PARAMS_v1
            );
            12000 fn cuGraphAddKernelNode_v2(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                params: *const CUDA_KERNEL_NODE_PARAMS_v2
            );
            10000 fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v1);
            12000 fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v2);
            10000 fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1);
            12000 fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2);
            10000 fn cuGraphAddMemcpyNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                params: *const CUDA_MEMCPY3D_v2, context: CUcontext
            );
            10000 fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMCPY3D_v2);
            10000 fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMCPY3D_v2);
            10000 fn cuGraphAddMemsetNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                params: *const CUDA_MEMSET_NODE_PARAMS_v1, context: CUcontext
            );
            10000 fn cuGraphMemsetNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS_v1);
            10000 fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS_v1);
            10000 fn cuGraphAddHostNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                params: *const CUDA_HOST_NODE_PARAMS_v1
            );
            10000 fn cuGraphHostNodeGetParams(node: CUgraphNode, params: *mut CUDA_HOST_NODE_PARAMS_v1);
            10000 fn cuGraphHostNodeSetParams(node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS_v1);
            10000 fn cuGraphAddChildGraphNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                child: CUgraph
            );
            10000 fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, child: *mut CUgraph);
            10000 fn cuGraphAddEmptyNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize
            );
            11010 fn cuGraphAddEventRecordNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                event: CUevent
            );
            11010 fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: *mut CUevent);
            11010 fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent);
            11010 fn cuGraphAddEventWaitNode(
                node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
                event: CUevent
            );
            11010 fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: *mut CUevent);
            11010 fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent);
            10000 fn cuGraphNodeFindInClone(node: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph);
            10000 fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
            10000 fn cuGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
            10000 fn cuGraphGetEdges(
                graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize
            );
            12030 fn cuGraphGetEdges_v2(
                graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
                num_edges: *mut usize
            );
            10000 fn cuGraphNodeGetDependencies(
                node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize
            );
            12030 fn cuGraphNodeGetDependencies_v2(
                node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData,
                num_dependencies: *mut usize
            );
            10000 fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: *mut CUgraphNode, num_nodes: *mut usize);
            12030 fn cuGraphNodeGetDependentNodes_v2(
                node: CUgraphNode, nodes: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_nodes: *mut usize
            );
            10000 fn cuGraphAddDependencies(
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize
            );
            12030 fn cuGraphAddDependencies_v2(
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData,
                num_dependencies: usize
            );
            10000 fn cuGraphRemoveDependencies(
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize
            );
            12030 fn cuGraphRemoveDependencies_v2(
                graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData,
                num_dependencies: usize
            );
            10000 fn cuGraphDestroyNode(node: CUgraphNode);
            12000 fn cuGraphInstantiateWithParams(
                executable: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS
            );
            12000 fn cuGraphExecGetFlags(executable: CUgraphExec, flags: *mut u64);
            10010 fn cuGraphExecKernelNodeSetParams(
                executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1
            );
            12000 fn cuGraphExecKernelNodeSetParams_v2(
                executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2
            );
            10020 fn cuGraphExecMemcpyNodeSetParams(
                executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMCPY3D_v2, context: CUcontext
            );
            10020 fn cuGraphExecMemsetNodeSetParams(
                executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_MEMSET_NODE_PARAMS_v1,
                context: CUcontext
            );
            10020 fn cuGraphExecHostNodeSetParams(
                executable: CUgraphExec, node: CUgraphNode, params: *const CUDA_HOST_NODE_PARAMS_v1
            );
            11010 fn cuGraphExecChildGraphNodeSetParams(executable: CUgraphExec, node: CUgraphNode, child: CUgraph);
            11010 fn cuGraphExecEventRecordNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent);
            11010 fn cuGraphExecEventWaitNodeSetEvent(executable: CUgraphExec, node: CUgraphNode, event: CUevent);
            10020 fn cuGraphExecUpdate(
                executable: CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode,
                result: *mut CUgraphExecUpdateResult
            );
            12000 fn cuGraphExecUpdate_v2(
                executable: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo
            );
            11060 fn cuGraphNodeSetEnabled(executable: CUgraphExec, node: CUgraphNode, is_enabled: c_uint);
            11060 fn cuGraphNodeGetEnabled(executable: CUgraphExec, node: CUgraphNode, is_enabled: *mut c_uint);

            // Objects of the program that graphs keep.
            11030 fn cuUserObjectCreate(
                object: *mut CUuserObject, pointer: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint,
                flags: c_uint
            );
            11030 fn cuUserObjectRetain(object: CUuserObject, count: c_uint);
            11030 fn cuUserObjectRelease(object: CUuserObject, count: c_uint);
            11030 fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
            11030 fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);
        }
    };
}
