//! Cold starts on four stand-in GPUs: those of the Poisson run of KaaS's thesis (§6.2, figure 6.4).
//!
//! There are two functions and four GPUs, and constants that are on a GPU stay there. A policy that
//! pays no attention to where constants are runs, sooner or later, both functions on all GPUs: 2 ×
//! 4 = 8 cold starts, and more are not possible. `exclusive` gives two GPUs to each of the two
//! tenants, and a GPU only loads the function of its tenant: 1 × 4 = 4 cold starts.
//!
//! A GPU loads the constants of a function when it is deployed if there is memory for them, and
//! then no request is cold. So a third function, the filler, takes nearly all memory first. The
//! first request of either function on a GPU evicts the filler, whose memory has room for both.
//! Nothing calls the filler, so nothing is evicted after that.

use super::stand_in_options;
use crate::cancel::metric;
use crate::executors::wait_until;
use crate::functions::grind_sources;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, DataType, Deploy, Tensor};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::chaos::grind;
use atoll_tests::{measured, stand_in};
use std::path::Path;

const GPUS: usize = 4;

/// Policies with the cold starts that the thesis counts.
const COLD: [(&str, u32); 5] = [("round-robin", 8), ("balance", 8), ("srtf", 8), ("mlfqs", 8), ("exclusive", 4)];

/// The functions, each with the seed of its constants, which take 64 KiB. Each belongs to a tenant
/// with its name, because `exclusive` divides the GPUs among tenants.
const FUNCTIONS: [(&str, u64); 2] = [("first", 1), ("second", 2)];

/// Memory of a GPU.
const MEMORY: &str = "512K";
/// Elements of the filler's constants. They take 480 KiB and leave no room for 64 KiB.
const FILLER_LENGTH: usize = 480 << 8;

/// Simultaneous calls of each function. A GPU takes two requests at a time, so three calls need
/// both GPUs of a tenant of `exclusive`, and none of them waits. That matters: `exclusive` moves a
/// GPU to a tenant with two waiting requests, and the thesis's run has no moves.
const CALLS: usize = 3;
/// Steps of simultaneous calls: enough that the third call usually arrives before the first one
/// ends.
const LONG: u32 = 2_000_000;

/// Samples of the loads of a GPU, without the device.
const LOADS: [&str; 2] = ["atoll_constants_loads_total{tier=\"host\",", "atoll_constants_loads_total{tier=\"disk\","];
const EVICTIONS: [&str; 1] = ["atoll_constants_evictions_total{"];
const PLACED: [&str; 1] = ["atoll_device_placed_total{"];

/// Packs the functions and the filler, each as `NAME.kg`.
fn pack_all(folder: &Path) -> Result<()> {
    let compile = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    let bundle = |name: &str| folder.join(name).with_extension("kg");
    for (name, seed) in FUNCTIONS {
        pack(&grind_sources(folder, seed)?, &bundle(name), &compile, &Silent)?;
    }
    let manifest = grind_sources(folder, 3)?;
    let text = std::fs::read_to_string(&manifest)?;
    let larger = text.replace("[16384]", &format!("[{FILLER_LENGTH}]"));
    ensure!(larger != text, "the constants of grind have another shape: {text}");
    std::fs::write(&manifest, larger)?;
    std::fs::write(manifest.with_file_name("c.bin"), vec![9_u8; 4 * FILLER_LENGTH])?;
    pack(&manifest, &bundle("filler"), &compile, &Silent)?;
    Ok(())
}

/// A daemon with four GPUs.
pub(super) struct Gpus {
    daemon: Daemon,
    folder: tempfile::TempDir,
}

impl Gpus {
    /// A daemon whose GPUs have this much memory.
    pub(super) fn start(policy: &str, memory: &str) -> Result<Gpus> {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let (repository, config) = (path.join("repository"), path.join("atoll.toml"));
        std::fs::create_dir(&repository)?;
        std::fs::write(&config, "[default]\ntrusted_code = true\n")?;
        stand_in::install(path)?;
        let devices = (0..GPUS).flat_map(|gpu| ["--device".into(), format!("cuda:{gpu}")]);
        let others = ["--placement", policy, "--memory-limit", memory, "--isolation", "none", "--trust-tenants"];
        let others = others.into_iter().map(String::from).chain(["--config".into(), config.display().to_string()]);
        let options: Vec<String> = devices.chain(others).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let daemon = Daemon::start_in(&repository, path, &options, &stand_in_options(path, "devices=4,units=1"))?;
        Ok(Gpus { daemon, folder })
    }

    fn client(&self, tenant: &str) -> Result<Client> {
        Ok(Client::connect_as(&self.folder.path().join("atoll.sock"), Some(tenant.parse()?))?)
    }

    /// Deploys a bundle on all GPUs.
    pub(super) fn deploy(&self, tenant: &str, name: &str, bundles: &Path) -> Result<()> {
        let how = Deploy { name: Some(name.into()), ..Deploy::default() };
        let deployed = self.client(tenant)?.deploy(&bundles.join(name).with_extension("kg"), &how)?;
        ensure!(deployed.devices.len() == GPUS, "{deployed:?}");
        Ok(())
    }

    /// Calls a function, and compares with the expected result for its constants.
    pub(super) fn call(&self, (name, seed): (&str, u64), times: u32) -> Result<()> {
        let x = [1_u32, 2, 3, 4_000_000_000];
        let vector = |values: &[u32]| Tensor {
            datatype: DataType::Uint32,
            shape: vec![values.len() as i64],
            bytes: grind::bytes(values),
        };
        let call = Call::of(name).input("x", vector(&x)).input("times", vector(&[times]));
        let answer = self.client(name)?.invoke(call)?;
        let expected = vector(&grind::grind(&x, &grind::table(seed), times));
        ensure!(answer.tensor("y")? == &expected, "{name} with {times} steps is wrong");
        Ok(())
    }

    /// Calls both functions [`CALLS`] times at once.
    fn call_at_once(&self) -> Result<()> {
        std::thread::scope(|scope| {
            let calls = FUNCTIONS.into_iter().flat_map(|function| [function; CALLS]);
            let calls: Vec<_> = calls.map(|function| scope.spawn(move || self.call(function, LONG))).collect();
            calls.into_iter().try_for_each(|call| call.join().expect("no panic"))
        })
    }

    /// Loads of constants so far, for each GPU.
    pub(super) fn loads(&self) -> Result<[f64; GPUS]> {
        self.each(&LOADS)
    }

    /// The sum of samples, for each GPU.
    fn each(&self, samples: &[&str]) -> Result<[f64; GPUS]> {
        let mut sums = [0.0; GPUS];
        for (gpu, sum) in sums.iter_mut().enumerate() {
            for sample in samples {
                *sum += metric(&self.daemon, &format!("{sample}device=\"cuda:{gpu}\"}}"))?;
            }
        }
        Ok(sums)
    }
}

/// The cold starts of each GPU under a policy.
fn cold_starts(policy: &str, bundles: &Path) -> Result<[f64; GPUS]> {
    let gpus = Gpus::start(policy, MEMORY)?;
    // The filler belongs to one of the two tenants, so that `exclusive` divides by two.
    gpus.deploy(FUNCTIONS[0].0, "filler", bundles)?;
    for (name, _) in FUNCTIONS {
        gpus.deploy(name, name, bundles)?;
    }
    let loads = gpus.loads()?;
    ensure!(loads == [1.0; GPUS], "before the first request, only the filler is on each GPU: {loads:?}");
    // One after the other, requests go round the GPUs. `exclusive` takes the first one of a tenant.
    for function in FUNCTIONS {
        (0..GPUS).try_for_each(|_| gpus.call(function, 1))?;
    }
    wait_until("all GPUs are used", || {
        gpus.call_at_once()?;
        Ok(gpus.each(&PLACED)?.iter().all(|placed| *placed > 0.0))
    })?;
    // What was loaded stays: no later request is cold.
    (0..3).try_for_each(|_| gpus.call_at_once())?;
    let evictions = gpus.each(&EVICTIONS)?;
    ensure!(evictions == [1.0; GPUS], "only the filler leaves each GPU: {evictions:?}");
    Ok(gpus.loads()?.map(|loads| loads - 1.0))
}

#[test]
fn are_counted_exactly_on_four_gpus() -> Result<()> {
    let bundles = tempfile::tempdir()?;
    pack_all(bundles.path())?;
    for (policy, cold) in COLD {
        let each = cold_starts(policy, bundles.path()).with_context(|| policy)?;
        measured(&format!("{policy}: cold starts of each GPU {each:?}"));
        ensure!(each == [f64::from(cold) / GPUS as f64; GPUS], "{policy}: {each:?}, not {cold} in all");
    }
    Ok(())
}
