// The few words of CUDA C the sources here need, so that clang compiles them without any CUDA package.
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define tid_x() __nvvm_read_ptx_sreg_tid_x()
#define tid_y() __nvvm_read_ptx_sreg_tid_y()
#define ntid_x() __nvvm_read_ptx_sreg_ntid_x()
#define ctaid_x() __nvvm_read_ptx_sreg_ctaid_x()
#define ctaid_y() __nvvm_read_ptx_sreg_ctaid_y()
#define sync() __syncthreads()
