//! Generates the messages and services of the gRPC port from `proto/`, without a system `protoc`.
//!
//! In the output folder, `server/` has the code of the server and `client/` that of clients, for
//! tests. `descriptors.bin` describes the services for reflection.

use protox::prost_reflect::prost::Message as _;
use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 3] = ["inference.proto", "model_config.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(FILES, ["proto"])?;
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    for side in ["server", "client"] {
        let folder = out.join(side);
        std::fs::create_dir_all(&folder)?;
        let mut settings = tonic_prost_build::configure()
            .build_server(side == "server")
            .build_client(side == "client")
            .build_transport(false)
            .bytes(".inference.ModelInferResponse.raw_output_contents")
            .out_dir(folder);
        if side == "server" {
            settings = settings.codec_path("crate::grpc::codec::Codec");
        }
        settings.compile_fds(descriptors.clone())?;
    }
    Ok(())
}
