// Sum of an array: warp shuffles and votes, dynamic shared memory, an atomic, an early return.
#include "gpu.h"
extern __shared__ float partial[];
extern "C" __global__ void reduce(const float *data, float *total, int count) {
    int lane = tid_x() & 31, warp = tid_x() >> 5, i = ctaid_x() * ntid_x() + tid_x();
    float sum = i < count ? data[i] : 0;
    if (!__nvvm_vote_any_sync(0xffffffff, sum != 0)) return;
    for (int offset = 16; offset; offset >>= 1) sum += __nvvm_shfl_sync_down_f32(0xffffffff, sum, offset, 31);
    if (lane == 0) partial[warp] = sum;
    sync();
    if (tid_x() == 0) {
        for (unsigned w = 1; w < ntid_x() / 32; w++) sum += partial[w];
        __nvvm_atom_add_gen_f(total, sum);
    }
}
