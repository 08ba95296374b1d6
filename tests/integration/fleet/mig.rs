//! MIG instances of a stand-in GPU as devices.

use super::{ask_faulty, refused, stand_in_options, two_gpus};
use crate::cancel::{HARMLESS, metric};
use crate::serve::{Daemon, atoll};
use anyhow::{Result, ensure};
use atoll_client::Client;
use atoll_tests::stand_in;
use std::ffi::OsString;
use std::path::Path;

/// The stand-in has two GPUs, of which the first is divided into two instances of 4 units.
const OPTIONS: &str = "devices=2,mig=2,units=8,memory=1G";

/// The ids of its GPUs and instances.
const GPUS: [&str; 2] = ["GPU-61746f6c-6c20-7374-616e-642d696e2000", "GPU-61746f6c-6c20-7374-616e-642d696e2001"];
const INSTANCES: [&str; 2] = ["MIG-61746f6c-6c20-7374-616e-642d696e4100", "MIG-61746f6c-6c20-7374-616e-642d696e4200"];
/// An instance that does not exist.
const ABSENT: &str = "MIG-00000000-0000-0000-0000-000000000001";

/// Environment of programs that see the stand-in, and of its devices those in a list.
fn environment(folder: &Path, list: Option<&str>) -> Vec<(&'static str, OsString)> {
    let list = list.map(|list| ("CUDA_VISIBLE_DEVICES", OsString::from(list)));
    stand_in_options(folder, OPTIONS).into_iter().chain(list).collect()
}

/// The name of a device.
fn named(id: &str) -> String {
    format!("cuda:{id}")
}

/// A process sees one instance only, so this needs an executor for each.
#[test]
fn two_instances_and_another_gpu_serve_in_one_daemon() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    std::fs::copy(repository.join("first.kg"), repository.join("third.kg"))?;
    let devices = [INSTANCES[0], INSTANCES[1], GPUS[1]].map(named);
    for (model, device) in ["first", "second", "third"].iter().zip(&devices) {
        std::fs::write(repository.join(format!("{model}.toml")), format!("device = \"{device}\""))?;
    }
    let flags: Vec<&str> = devices.iter().flat_map(|device| ["--device", device]).collect();
    let daemon = Daemon::start_in(&repository, folder.path(), &flags, &environment(folder.path(), None))?;
    let reports = Client::connect(&folder.path().join("atoll.sock"))?.devices()?.devices;
    for ((model, device), units) in ["first", "second", "third"].iter().zip(&devices).zip([4, 4, 8]) {
        let (status, body) = ask_faulty(&daemon, model, HARMLESS)?;
        ensure!(status == 200, "{model}: {body}");
        let served = format!("nv_inference_request_success{{model=\"{model}\",version=\"1\",device=\"{device}\"}}");
        ensure!(metric(&daemon, &served)? == 1.0, "{served}");
        let has_units = metric(&daemon, &format!("atoll_device_compute_units{{device=\"{device}\"}}"))?;
        ensure!(has_units == f64::from(units), "{device} has {has_units} units");
        ensure!(reports.iter().any(|one| one.device == *device && one.compute_units == units), "{reports:?}");
    }
    Ok(())
}

#[test]
fn instances_that_a_process_cannot_use_are_refused_with_the_cause() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    let (absent, second) = (named(ABSENT), named(INSTANCES[1]));
    for (devices, list, causes) in [
        (&["cuda:0", &second][..], None, &["may be the same GPU"][..]),
        (&[absent.as_str()], None, &["cannot start cuda:MIG-00000000", "no device that this process sees has the id"]),
        (&[second.as_str()], Some(INSTANCES[0]), &["does not see", INSTANCES[0]]),
        (&[second.as_str()], Some("0"), &["a process sees one MIG instance only"]),
        (&["cuda:MIG-1"], None, &["`1` is not a whole UUID"]),
    ] {
        let said = refused(&repository, devices, &environment(folder.path(), list))?;
        ensure!(causes.iter().all(|cause| said.contains(cause)), "{devices:?} {list:?}: {said}");
    }
    Ok(())
}

/// What `atoll doctor` says about the second instance.
fn doctor(folder: &Path) -> Result<String> {
    let device = named(INSTANCES[1]);
    let output = stand_in::command(&atoll(), folder, OPTIONS)?
        .env_remove("CUDA_VISIBLE_DEVICES")
        .args(["doctor", "--device", &device])
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn doctor_lists_gpus_and_instances_and_what_an_instance_guarantees() -> Result<()> {
    let folder = tempfile::tempdir()?;
    stand_in::install_nvml(folder.path())?;
    let said = doctor(folder.path())?;
    let (first, second) = ("Atoll stand-in 0 (host CPU, no GPU)", "Atoll stand-in 1 (host CPU, no GPU)");
    for line in [
        format!("device       {}: {first}, 1.0 GiB, in MIG mode: models run on its instances", GPUS[0]),
        format!(
            "device       cuda:{}: {first} MIG 0, 4 compute units, 512.0 MiB, MIG instance of {} (GPU instance 7, \
             compute instance 0)",
            INSTANCES[0], GPUS[0]
        ),
        format!("device       cuda:{}: {first} MIG 1, 4 compute units, 512.0 MiB, MIG instance", INSTANCES[1]),
        // Its units are not known, since a process that sees an instance sees no GPU.
        format!("device       cuda:{}: {second}, 1.0 GiB", GPUS[1]),
        format!("GPU          cuda:{}: {first} MIG 1, sm_90, 4 compute units", INSTANCES[1]),
        format!("it is a MIG instance of {}", GPUS[0]),
        "MIG: compute units of a client: exactly its own; memory bandwidth: its own; a fault ends: the instance".into(),
    ] {
        ensure!(said.contains(&line), "{line}\nis not in\n{said}");
    }
    Ok(())
}

#[test]
fn without_nvml_doctor_lists_what_a_process_sees() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // Files that are no libraries, in front of those of a machine that has NVML.
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        std::fs::write(folder.path().join(name), "")?;
    }
    let said = doctor(folder.path())?;
    let second =
        format!("cuda:{}: Atoll stand-in 0 (host CPU, no GPU) MIG 1, 4 compute units, 512.0 MiB", INSTANCES[1]);
    ensure!(said.contains(&second) && !said.contains(INSTANCES[0]), "{said}");
    ensure!(said.contains("NVML         NVIDIA's management library cannot be loaded"), "{said}");
    Ok(())
}
