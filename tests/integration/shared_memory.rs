//! Shared memory with a real daemon and unmodified clients of Triton: files in `/dev/shm`, and memory
//! of a GPU on the stand-in driver.

use crate::cancel::metric;
use crate::serve::Daemon;
use anyhow::{Result, ensure};
use atoll_tests::{python, root, stand_in};
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

fn script(name: &str, arguments: &[&OsStr], environment: &[(&'static str, OsString)]) -> Result<()> {
    let script = root().join("tests/python").join(name);
    let output = Command::new(python()).arg(script).args(arguments).envs(environment.iter().cloned()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    Ok(())
}

/// Writes the model of Triton's examples into a repository in this folder.
fn repository(folder: &Path) -> Result<std::path::PathBuf> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    script("shared_memory.py", &["model".as_ref(), repository.join("simple.onnx").as_os_str()], &[])?;
    Ok(repository)
}

#[test]
fn clients_of_triton_share_memory_over_both_protocols() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = repository(folder.path())?;
    let mut daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    script("shared_memory.py", &["run".as_ref(), daemon.http.as_ref(), daemon.grpc.as_ref()], &[])?;
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    Ok(())
}

/// The client, the daemon and the executor of the GPU are separate processes, which share device
/// memory by handles of CUDA IPC.
#[test]
fn clients_of_triton_share_memory_of_a_gpu() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = repository(folder.path())?;
    stand_in::install(folder.path())?;
    let environment = [("LD_LIBRARY_PATH", folder.path().into()), (stand_in::OPTIONS, OsString::new())];
    let devices = ["--no-control", "--device", "cuda:0"];
    let mut daemon = Daemon::start_in(&repository, folder.path(), &devices, &environment)?;
    let pid = daemon.process().id().to_string();
    let arguments: [&OsStr; 4] = ["run".as_ref(), daemon.http.as_ref(), daemon.grpc.as_ref(), pid.as_ref()];
    script("cuda_shared_memory.py", &arguments, &environment)?;
    ensure!(metric(&daemon, "atoll_cuda_shared_memory_regions{tenant=\"local\"}")? == 0.0, "all were unregistered");
    for (what, least) in [("read", 128.0), ("written", 256.0)] {
        let bytes = metric(&daemon, &format!("atoll_cuda_shared_memory_{what}_bytes_total"))?;
        ensure!(bytes >= least, "{bytes} bytes were {what}");
    }
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    Ok(())
}
