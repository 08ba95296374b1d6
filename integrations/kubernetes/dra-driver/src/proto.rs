//! Messages and services of the kubelet, generated from `proto/` by `build.rs`.

/// How the kubelet finds plugins.
#[expect(unreachable_pub, reason = "generated code has its own style")]
pub(crate) mod registration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}

/// The calls about claims.
#[expect(unreachable_pub, reason = "generated code has its own style")]
pub(crate) mod v1 {
    include!(concat!(env!("OUT_DIR"), "/k8s.io.kubelet.pkg.apis.dra.v1.rs"));
}

/// The service of an earlier version, with the messages of the later one.
#[expect(unreachable_pub, reason = "generated code has its own style")]
pub(crate) mod v1beta1 {
    include!(concat!(env!("OUT_DIR"), "/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs"));
}
