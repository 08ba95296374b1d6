//! Messages and services of the gRPC port, generated from `proto/` by `build.rs`.

#![expect(unreachable_pub, clippy::enum_variant_names, reason = "generated code has its own style")]

/// KServe's service with Triton's extensions.
pub(crate) mod inference {
    include!(concat!(env!("OUT_DIR"), "/server/inference.rs"));
}

/// The health service.
pub(crate) mod health {
    include!(concat!(env!("OUT_DIR"), "/server/grpc.health.v1.rs"));
}

/// The description of all services, for reflection: an encoded `FileDescriptorSet`.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
