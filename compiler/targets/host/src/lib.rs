//! compiler/targets/host
