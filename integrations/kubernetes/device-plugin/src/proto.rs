//! Messages and services of the kubelet, generated from `proto/` by `build.rs`.

#![expect(unreachable_pub, reason = "generated code has its own style")]

include!(concat!(env!("OUT_DIR"), "/v1beta1.rs"));
