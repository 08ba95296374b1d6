//! The Multi-Process Service: if a control daemon is listening, this process becomes its client. In
//! tests the control daemon is `atoll-stand-in-mps-control`.
//!
//! A client has the share of the compute units that its environment names. A terminated client
//! keeps running, but all calls in its contexts fail.

use crate::driver::Driver;
use crate::status::Status;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Becomes a client if there is a control daemon. Returns the number of compute units that this
/// process may use.
pub(crate) fn join(compute_units: u32) -> u32 {
    let Some(folder) = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY") else { return compute_units };
    // Without one the program runs as if there were no MPS, as with NVIDIA's driver.
    let Ok(stream) = UnixStream::connect(Path::new(&folder).join("control")) else { return compute_units };
    if serve(stream).is_err() {
        return compute_units;
    }
    let percentage = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").ok().and_then(|text| text.parse().ok());
    percentage
        .map_or(compute_units, |percentage: u32| (compute_units * percentage).div_ceil(100).clamp(1, compute_units))
}

/// Registers this process, and handles requests until the process ends.
fn serve(mut stream: UnixStream) -> std::io::Result<()> {
    writeln!(stream, "client {}", std::process::id())?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let welcome = lines.next().transpose()?;
    if welcome.as_deref() != Some("welcome") {
        return Err(std::io::ErrorKind::ConnectionRefused.into());
    }
    let listen = move || {
        for line in lines.map_while(Result::ok) {
            if line == "terminate" {
                end_all();
                if writeln!(stream, "terminated").is_err() {
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().name("stand-in-mps".to_owned()).spawn(listen).map(drop)
}

/// Ends all work of this process on its devices.
fn end_all() {
    let Ok(driver) = Driver::get() else { return };
    while let Some(context) = driver.contexts.find(|context| !context.is_over()) {
        context.fail(Status::MpsClientTerminated);
    }
}
