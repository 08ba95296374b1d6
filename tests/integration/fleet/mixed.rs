//! A host device and a stand-in GPU in one daemon.

use super::{stand_in_options, two_hosts};
use crate::cancel::metric;
use crate::functions::manifest;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, Deploy, Tensor};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::stand_in;

#[test]
fn a_host_device_and_a_gpu_serve_one_function() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let (repository, bundle) = (path.join("repository"), path.join("line.kg"));
    std::fs::create_dir(&repository)?;
    let compile = CompileOptions { targets: Target::defaults(), ..CompileOptions::default() };
    pack(&manifest("affine"), &bundle, &compile, &Silent)?;
    stand_in::install(path)?;
    let [flag, host, ..] = two_hosts()?;
    let devices = [flag.as_str(), &host, "--device", "cuda:0", "--trust-tenants"];
    let daemon = Daemon::start_in(&repository, path, &devices, &stand_in_options(path, "devices=1,units=1"))?;
    let mut client = Client::connect(&path.join("atoll.sock"))?;
    let deployed = client.deploy(&bundle, &Deploy { name: Some("line".into()), ..Deploy::default() })?;
    ensure!(deployed.devices.len() == 2, "{deployed:?}");
    let call = |client: &mut Client, seed: f32| -> Result<()> {
        let tensor = |values: [f32; 2]| Tensor::f32(&[2], &values);
        let call = Call::of("line").input("x", tensor([seed, 2.0])).input("b", tensor([1.0, 0.0]));
        let answer = client.invoke(call)?;
        ensure!(answer.tensor("y")? == &tensor([seed.mul_add(3.0, 1.0), 6.0]), "{answer:?}");
        Ok(())
    };
    for seed in 0..20 {
        call(&mut client, seed as f32)?;
    }
    let placed = |device: &str| metric(&daemon, &format!("atoll_device_placed_total{{device=\"{device}\"}}"));
    let (on_host, on_gpu) = (placed("host:0")?, placed("cuda:0")?);
    ensure!(on_host + on_gpu == 20.0 && on_host > 0.0 && on_gpu > 0.0, "each kind is measured: {on_host}, {on_gpu}");
    // Each of them alone.
    for (drained, other) in [("host:0", "cuda:0"), ("cuda:0", "host:0")] {
        client.drain(drained, true)?;
        let before = placed(other)?;
        call(&mut client, 7.0).context(other)?;
        ensure!(placed(other)? == before + 1.0, "{other}");
        client.drain(drained, false)?;
    }
    Ok(())
}
