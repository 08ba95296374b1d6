//! The kernel generators, one file per family.

pub(crate) mod concat;
pub(crate) mod conv;
pub(crate) mod depthwise;
pub(crate) mod direct_conv;
pub(crate) mod gather;
pub(crate) mod gemm;
pub(crate) mod gemv;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod nest;
pub(crate) mod pad;
pub(crate) mod plain_product;
pub(crate) mod pointwise;
pub(crate) mod pool;
pub(crate) mod recurrence;
pub(crate) mod reduce;
pub(crate) mod resize;
pub(crate) mod softmax;
