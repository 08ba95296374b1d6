//! compiler/targets/nvidia
