// Prints occupancies according to NVIDIA's calculator, cuda_occupancy.h of the package
// nvidia-cuda-runtime. Usage: g++ -I CUDA/include nvidia.cpp && ./a.out > nvidia.txt
#include <climits>
#include <cstdio>
#include <cstring>
#include <cuda_occupancy.h>

struct Device {
    const char *name;
    int major, minor, threads_per_block, threads, blocks_unused, registers, shared_block, shared_optin, shared, units;
};

// From "Compute Capabilities" in the CUDA programming guide; numbers of SMs from data sheets.
static const Device DEVICES[] = {
    {"v100", 7, 0, 1024, 2048, 32, 65536, 49152, 98304, 98304, 80},
    {"t4", 7, 5, 1024, 1024, 16, 65536, 49152, 65536, 65536, 40},
    {"a100", 8, 0, 1024, 2048, 32, 65536, 49152, 166912, 167936, 108},
    {"a10", 8, 6, 1024, 1536, 16, 65536, 49152, 101376, 102400, 72},
    {"jetson-orin", 8, 7, 1024, 1536, 16, 65536, 49152, 166912, 167936, 16},
    {"rtx-4090", 8, 9, 1024, 1536, 24, 65536, 49152, 101376, 102400, 128},
    {"h100", 9, 0, 1024, 2048, 32, 65536, 49152, 232448, 233472, 132},
    {"b200", 10, 0, 1024, 2048, 32, 65536, 49152, 232448, 233472, 148},
    {"jetson-thor", 11, 0, 1024, 1536, 24, 65536, 49152, 232448, 233472, 20},
    {"rtx-5090", 12, 0, 1024, 1536, 24, 65536, 49152, 101376, 102400, 170},
};

int main()
{
    const int registers[] = {16, 32, 33, 48, 72, 128, 168, 255};
    const int threads[] = {32, 49, 96, 196, 256, 512, 768, 1024};
    const int shared[] = {0, 1, 4096, 10000, 33000, 65536, 101376};
    for (const Device &d : DEVICES) {
        cudaOccDeviceProp p;
        memset(&p, 0, sizeof p);
        p.computeMajor = d.major;
        p.computeMinor = d.minor;
        p.maxThreadsPerBlock = d.threads_per_block;
        p.maxThreadsPerMultiprocessor = d.threads;
        p.regsPerBlock = p.regsPerMultiprocessor = d.registers;
        p.warpSize = 32;
        p.sharedMemPerBlock = d.shared_block;
        p.sharedMemPerMultiprocessor = d.shared;
        p.sharedMemPerBlockOptin = d.shared_optin;
        p.reservedSharedMemPerBlock = d.major >= 8 ? 1024 : 0;
        p.numSms = d.units;
        for (int r : registers)
            for (int t : threads)
                for (int s : shared) {
                    if (s > d.shared_optin)
                        continue;
                    cudaOccFuncAttributes a;
                    memset(&a, 0, sizeof a);
                    a.maxThreadsPerBlock = 1024;
                    a.numRegs = r;
                    a.maxDynamicSharedSizeBytes = s;
                    a.partitionedGCConfig = PARTITIONED_GC_OFF;
                    a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
                    cudaOccDeviceState state;
                    memset(&state, 0, sizeof state);
                    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
                    cudaOccResult result;
                    cudaOccError e = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &p, &a, &state, t, s);
                    if (e != CUDA_OCC_SUCCESS)
                        continue;
                    printf("%s %d %d %d %d\n", d.name, r, t, s, result.activeBlocksPerMultiprocessor);
                }
    }
}
