//! The measured kernels, compiled by nvcc from `kernels.c` (see `regenerate.sh`).

/// The kernels in PTX.
pub(super) const PTX: &str = include_str!("kernels.ptx");

/// A kernel with its launch and its unit of work.
pub(super) struct MeasuredKernel {
    pub(super) name: &'static str,
    pub(super) entry: &'static str,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) args: &'static [Given],
    #[cfg_attr(not(feature = "native"), expect(dead_code, reason = "only `bench kernel` counts"))]
    pub(super) unit: &'static str,
    /// Work of one launch, in 10⁹ units.
    #[cfg_attr(not(feature = "native"), expect(dead_code, reason = "only `bench kernel` counts"))]
    pub(super) work: f64,
}

/// An argument of a measured launch.
pub(super) enum Given {
    /// A buffer of this many floats.
    Floats(usize),
    /// A buffer of this many bytes.
    Bytes(usize),
    Int(i32),
}

const PLANE: usize = 1 << 20;
const PLANE_BYTES: f64 = 4.0 * PLANE as f64;

use Given::{Bytes, Floats, Int};

pub(super) const KERNELS: [MeasuredKernel; 7] = [
    MeasuredKernel {
        name: "gemm_f32_512",
        entry: "gemm",
        grid: [16, 8, 1],
        block: [32, 8, 1],
        args: &[Floats(512 * 512), Floats(512 * 512), Floats(512 * 512), Int(512)],
        unit: "GFLOP/s",
        work: 2.0 * 512.0 * 512.0 * 512.0 / 1e9,
    },
    MeasuredKernel {
        name: "vector_add_f32_1m",
        entry: "vector_add",
        grid: [4096, 1, 1],
        block: [256, 1, 1],
        args: &[Floats(PLANE), Floats(PLANE), Floats(PLANE), Int(PLANE as i32)],
        unit: "GB/s",
        work: 3.0 * PLANE_BYTES / 1e9,
    },
    MeasuredKernel {
        name: "softmax_f32_1024x1024",
        entry: "softmax",
        grid: [1024, 1, 1],
        block: [256, 1, 1],
        args: &[Floats(PLANE), Floats(PLANE), Int(1024)],
        unit: "GB/s",
        work: 2.0 * PLANE_BYTES / 1e9,
    },
    MeasuredKernel {
        name: "layernorm_f32_1024x1024",
        entry: "layernorm",
        grid: [1024, 1, 1],
        block: [256, 1, 1],
        args: &[Floats(PLANE), Floats(1024), Floats(1024), Floats(PLANE), Int(1024)],
        unit: "GB/s",
        work: 2.0 * PLANE_BYTES / 1e9,
    },
    MeasuredKernel {
        name: "conv3x3_f32_1024",
        entry: "conv3x3",
        grid: [32, 128, 1],
        block: [32, 8, 1],
        args: &[Floats(PLANE), Floats(9), Floats(PLANE), Int(1024)],
        unit: "GFLOP/s",
        work: 18.0 * PLANE as f64 / 1e9,
    },
    MeasuredKernel {
        name: "transpose_f32_1024",
        entry: "transpose",
        grid: [32, 32, 1],
        block: [32, 8, 1],
        args: &[Floats(PLANE), Floats(PLANE), Int(1024)],
        unit: "GB/s",
        work: 2.0 * PLANE_BYTES / 1e9,
    },
    MeasuredKernel {
        name: "histogram_u8_4m",
        entry: "histogram",
        grid: [64, 1, 1],
        block: [256, 1, 1],
        args: &[Bytes(4 * PLANE), Bytes(1024), Int(4 * PLANE as i32)],
        unit: "GB/s",
        work: PLANE_BYTES / 1e9,
    },
];
