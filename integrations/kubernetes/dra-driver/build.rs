//! Generates the messages and services of the kubelet's protocols from `proto/`, without a system
//! `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["pluginregistration.proto", "dra_v1.proto", "dra_v1beta1.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_client(false).build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
