// Clusters, tensor maps, bulk copies and barriers in shared memory, for sm_90 and newer.
#include <cooperative_groups/reduce.h>
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;

struct alignas(64) Map {
    unsigned char bytes[128];
};

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 2) exchange(float *out, const float *in, int n) {
    __shared__ float tile[128];
    cg::cluster_group cluster = cg::this_cluster();
    tile[threadIdx.x] = in[blockIdx.x * 128 + threadIdx.x];
    cluster.sync();
    float *other = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1);
    float sum = cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), other[threadIdx.x], cg::plus<float>());
    cluster.sync();
    if (threadIdx.x < n) atomicAdd(out + threadIdx.x, sum);
}

__global__ void copies(const __grid_constant__ Map map, const float *in, float *out, unsigned bytes) {
    __shared__ alignas(128) float tile[1024];
#pragma nv_diag_suppress 20054
    __shared__ barrier ready;
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::memcpy_async(tile, in, cuda::aligned_size_t<16>(bytes), ready);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                         (unsigned)__cvta_generic_to_shared(tile)),
                     "l"(&map), "r"(0), "r"(1), "r"((unsigned)__cvta_generic_to_shared(&ready))
                     : "memory");
    }
    ready.arrive_and_wait();
    out[threadIdx.x] = tile[threadIdx.x];
}
