//! NVIDIA GPUs on the stand-in driver: models, the daemon, and messages for errors of the driver.

use super::cancel::{HARMLESS, metric, send};
use super::executors::{children, wait_until};
use super::gpu_engine::Gpu;
use super::serve::{Daemon, LOG, atoll, conformance};
use anyhow::{Context, Result, ensure};
use atoll_device_cuda::{CudaConfig, CudaDevice};
use atoll_engine::{Class, Engine, EngineConfig, FunctionKey, FunctionOptions};
use atoll_executor::{ExecutorConfig, ExecutorPool};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::http::{self, answer};
use atoll_tests::{Loaded, built_small, compile_for, oracle, root, stand_in, trained};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

pub(crate) fn engine(config: EngineConfig) -> Result<Engine> {
    Ok(Engine::start(Box::new(CudaDevice::start(&gpu()?)?), config)?)
}

/// Like [`engine`], with the GPU in an executor.
pub(crate) fn engine_behind_executor(config: EngineConfig) -> Result<Engine> {
    let executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(gpu()?)? };
    Ok(Engine::start(Box::new(ExecutorPool::new(executor)?), config)?)
}

fn gpu() -> Result<CudaConfig> {
    Ok(CudaConfig { library: Some(stand_in::library()?), memory_bytes: Some(256 << 20), ..CudaConfig::default() })
}

/// The stand-in as a GPU for the engine.
const GPU: Gpu = Gpu {
    target: Target::NVIDIA,
    model: |folder| built_small("squeezenet", folder),
    urgent: |_| trained("magika", &[("unk__214", 1)]),
    pause: Duration::ZERO,
};

#[test]
fn models_agree_with_the_oracle_also_when_they_are_evicted() -> Result<()> {
    GPU.models_agree_also_when_evicted(engine)
}

#[test]
fn a_busy_lane_of_a_gpu_that_is_closed_goes_on_in_the_default_lane() -> Result<()> {
    GPU.a_busy_lane_is_closed(engine)?;
    GPU.a_busy_lane_is_closed(engine_behind_executor)
}

#[test]
fn best_effort_work_is_preempted_and_results_are_correct() -> Result<()> {
    GPU.best_effort_work_makes_way(engine)
}

#[test]
fn best_effort_work_is_preempted_in_an_executor() -> Result<()> {
    GPU.best_effort_work_makes_way(engine_behind_executor)
}

/// Launches of a real-time request are submitted in segments, and best-effort work is preempted for
/// them.
#[test]
fn real_time_work_goes_in_segments() -> Result<()> {
    let cuda = || -> Result<CudaConfig> { Ok(CudaConfig { segment: 4, queue_capacity: 8, ..gpu()? }) };
    // Without parallel branches, so that the same launches recur.
    let config = |config| EngineConfig { device_queue_capacity: 8, branch_gain_min: None, ..config };
    let here = |of| Ok(Engine::start(Box::new(CudaDevice::start(&cuda()?)?), config(of))?);
    let executor =
        || -> Result<ExecutorConfig> { Ok(ExecutorConfig { program: atoll(), ..ExecutorConfig::new(cuda()?)? }) };
    let there = |of| Ok(Engine::start(Box::new(ExecutorPool::new(executor()?)?), config(of))?);
    let folder = tempfile::tempdir()?;
    let model = built_small("squeezenet", folder.path())?;
    let bundle = compile_for(&model, folder.path(), Target::NVIDIA)?;
    let case = oracle(&model, &[1], folder.path())?.remove(0);
    let engines: [&dyn Fn(EngineConfig) -> Result<Engine>; 2] = [&here, &there];
    for engine in engines {
        GPU.best_effort_work_makes_way(engine)?;
        let loaded = Loaded::start_in(engine(EngineConfig::default())?, &bundle)?;
        let urgent = FunctionOptions {
            key: FunctionKey::local("urgent"),
            class: Class::RealTime,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        let urgent = loaded.beside(&bundle, urgent)?;
        // Launches of a segment share their start time. The first request is launched one by one;
        // by the fifth, the recurring launches are known.
        let mut together = Vec::new();
        for _ in 0..5 {
            let launches = urgent.check(&model, &case)?.launches;
            together.push(launches.windows(2).filter(|pair| pair[0].started_ns == pair[1].started_ns).count());
        }
        ensure!(together[0] == 0 && together[4] >= 8, "launches that began with the one before: {together:?}");
        loaded.stop();
    }
    Ok(())
}

#[test]
fn the_daemon_serves_on_a_gpu() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    std::fs::copy(trained("magika", &[])?.path, repository.join("magika.onnx"))?;
    stand_in::install(folder.path())?;
    let daemon =
        Daemon::start_in(&repository, folder.path(), &["--device", "cuda:0"], &environment(folder.path(), ""))?;
    conformance(&daemon)?;
    let log = std::fs::read_to_string(folder.path().join(LOG))?;
    ensure!(log.contains("cuda:0"), "another device: {log}");
    Ok(())
}

/// Environment in which programs find the stand-in, with its options.
pub(crate) fn environment(folder: &Path, options: &str) -> [(&'static str, OsString); 2] {
    [("LD_LIBRARY_PATH", folder.into()), (stand_in::OPTIONS, options.into())]
}

/// Runs `atoll infer` on a GPU that behaves according to `options`.
fn infer(bundle: &Path, folder: &Path, options: &str) -> Result<(bool, String)> {
    infer_with(bundle, folder, options, &[])
}

fn infer_with(bundle: &Path, folder: &Path, options: &str, flags: &[&str]) -> Result<(bool, String)> {
    let program = atoll();
    let output = stand_in::command(&program, folder, options)?
        .args(["infer", "--device", "cuda"])
        .args(flags)
        .arg("--model")
        .arg(bundle)
        .output()?;
    Ok((
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    ))
}

#[test]
fn errors_of_the_driver_are_reported_with_a_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bundle = compile_for(&built_small("squeezenet", folder.path())?, folder.path(), Target::NVIDIA)?;
    let (works, said) = infer(bundle.path(), folder.path(), "")?;
    ensure!(works, "{said}");
    for (options, words) in [
        ("devices=0", "the NVIDIA driver finds no device"),
        ("prohibited", "device 0 is in prohibited mode"),
        ("exclusive", "device 0 is in exclusive mode and another process uses it"),
        ("ptx=6.0", "which needs a driver for CUDA"),
        ("fail=cuMemAlloc_v2@1", "contiguous bytes of memory"),
    ] {
        let (works, said) = infer(bundle.path(), folder.path(), options)?;
        ensure!(!works && said.contains(words) && !said.contains("panicked"), "{options}: {said}");
    }
    for (options, flags, words) in [
        ("units=6", ["--compute-units", "3", "--isolation", "process"], ""),
        ("units=6", ["--compute-units", "7", "--isolation", "process"], "the GPU has 6 compute units, not 7"),
        (
            "driver=12.3",
            ["--compute-units", "2", "--isolation", "none"],
            "cannot divide a GPU: that needs CUDA 12.5, and it supports 12.3",
        ),
    ] {
        let (works, said) = infer_with(bundle.path(), folder.path(), options, &flags)?;
        ensure!(
            works == words.is_empty() && said.contains(words) && !said.contains("panicked"),
            "{options} {flags:?}: {said}"
        );
    }
    let nowhere = tempfile::tempdir()?;
    let output = std::process::Command::new(atoll())
        .env("LD_LIBRARY_PATH", nowhere.path())
        .args(["infer", "--device", "cuda", "--model"])
        .arg(bundle.path())
        .output()
        .context("atoll")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // On a machine with a GPU the command succeeds.
    ensure!(
        output.status.success() || said.contains("no NVIDIA driver here") || said.contains("finds no device"),
        "{said}"
    );
    Ok(())
}

#[test]
fn doctor_reports_where_kernels_read_epochs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output =
        stand_in::command(&atoll(), folder.path(), "units=3")?.args(["doctor", "--device", "cuda"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(said.contains("3 compute units") && said.contains("kernels read epochs from "), "{said}");
    ensure!(
        said.contains("it can be partitioned in units of at least 2 compute units")
            && said.contains("MPS is not running"),
        "{said}"
    );
    let shares = "shares       green contexts: compute units of a client: exactly its own; memory bandwidth: shared";
    ensure!(said.contains(shares) && !said.contains("MPS: compute units"), "{said}");
    Ok(())
}

#[test]
fn an_mps_client_detaches_when_its_daemon_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let service = folder.path().join("mps");
    let variables = stand_in::install_mps(folder.path(), &service)?;
    let daemon = faulty_daemon_in(folder.path(), &["--mps", "50"], "", &variables)?;
    let harmless = answer(send(&daemon.http, HARMLESS, "{}")?)?;
    ensure!(harmless.starts_with("HTTP/1.1 200"), "{harmless}");
    let doctor = stand_in::command(&atoll(), folder.path(), "")?
        .envs(variables.clone())
        .args(["doctor", "--device", "cuda"])
        .output()?;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(doctor.contains("MPS is running"), "{doctor}");
    let mps = "MPS: compute units of a client: at most its percentage, any of them; memory bandwidth: shared; a fault \
               ends: perhaps all clients of the GPU";
    ensure!(doctor.contains(mps), "{doctor}");
    let journal = || std::fs::read_to_string(service.join("journal")).unwrap_or_default();
    let first = |what: &str| journal().lines().find_map(|line| line.strip_prefix(what)?.trim().parse::<i32>().ok());
    let (control, executor) = first("start").zip(first("client")).context("a control daemon and its client")?;
    // A kernel that runs until its time limit.
    let _running = send(&daemon.http, 5, "{}")?;
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_raw(daemon.process().id() as i32).context("a number")?, Signal::KILL)?;
    let at = |what: &str| journal().lines().position(|line| line == format!("{what} {executor}"));
    wait_until("the executor detached", || Ok(at("gone").is_some()))?;
    let order = [at("client"), at("terminate"), at("gone")];
    ensure!(order.is_sorted() && order[0].is_some(), "{}", journal());
    kill_process(Pid::from_raw(control).context("a number")?, Signal::KILL)?;
    Ok(())
}

#[test]
fn mps_shares_need_a_gpu_and_a_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (options, why) in [
        (&["--mps", "50"][..], "--mps applies to NVIDIA GPUs only"),
        (&["--mps", "50", "--device", "cuda", "--isolation", "none"], "--mps needs --isolation process"),
        (&["--mps", "0", "--device", "cuda"], "0 is not in 1..=100"),
        (&["--mps", "50", "--device", "cuda", "--compute-units", "2"], "cannot be used with"),
        (
            &["--mps", "50", "--isolation", "process", "--device", "cuda:MIG-00000000-0000-0000-0000-000000000001"],
            "--mps applies to whole GPUs only",
        ),
    ] {
        let output =
            stand_in::command(&atoll(), folder.path(), "")?.args(["bench", "overhead"]).args(options).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2) && said.contains(why), "{options:?}: {said}");
    }
    Ok(())
}

/// A kernel that adds 1 to each element, and one that stores to an unmapped address.
const KERNELS: &str = "\
.version 6.3
.target sm_75
.address_size 64
.visible .entry increment(.param .u64 data)
{
	.reg .b32 %i, %value;
	.reg .b64 %at, %offset;
	mov.u32 %i, %tid.x;
	mul.wide.u32 %offset, %i, 4;
	ld.param.u64 %at, [data];
	add.s64 %at, %at, %offset;
	ld.global.u32 %value, [%at];
	add.u32 %value, %value, 1;
	st.global.u32 [%at], %value;
	ret;
}
.visible .entry astray(.param .u64 data)
{
	.reg .b64 %at;
	mov.u64 %at, 16;
	st.global.u64 [%at], %at;
	ret;
}
";

#[test]
fn single_kernels_run_on_a_gpu_and_a_fault_is_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("kernels.ptx");
    std::fs::write(&file, KERNELS)?;
    let run = |entry: &str| -> Result<(bool, String)> {
        let output = stand_in::command(&atoll(), folder.path(), "")?
            .args([
                "kernel",
                "run",
                "--device",
                "cuda",
                "--grid",
                "1",
                "--block",
                "32",
                "--arg",
                "inout:u32:32:arange",
                "--entry",
                entry,
            ])
            .arg(&file)
            .output()?;
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        ))
    };
    let (works, said) = run("increment")?;
    ensure!(works && said.contains("first  1 2 3 4"), "{said}");
    let (works, said) = run("astray")?;
    ensure!(!works && said.contains("kernel 'astray' faulted: a kernel accessed unmapped memory"), "{said}");
    Ok(())
}

/// A daemon on a GPU with a function that faults on request.
fn faulty_daemon(folder: &Path, options: &[&str]) -> Result<Daemon> {
    faulty_daemon_in(folder, options, "", &[])
}

/// The same, on a GPU that behaves according to `stand_in`.
pub(crate) fn faulty_daemon_in(
    folder: &Path,
    options: &[&str],
    stand_in: &str,
    variables: &[(&'static str, OsString)],
) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let compile = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    pack(&root().join("tests/functions/faulty.toml"), &repository.join("faulty.kg"), &compile, &Silent)?;
    atoll_tests::stand_in::install(folder)?;
    let options = [&["--device", "cuda"], options].concat();
    Daemon::start_in(&repository, folder, &options, &[&environment(folder, stand_in)[..], variables].concat())
}

fn is_ready(daemon: &Daemon) -> Result<bool> {
    Ok(http::ask(&daemon.http, "GET", "/v2/health/ready", "")?.0 == 200)
}

#[test]
fn a_daemon_outlives_the_contexts_of_its_gpu() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = faulty_daemon(folder.path(), &["--time-limit", "0.5"])?;
    let ask = |mode| -> Result<String> { Ok(answer(send(&daemon.http, mode, "{}")?)?) };
    // The body of an answer, without the date in its head.
    let body = |text: &str| text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    let right = ask(HARMLESS)?;
    ensure!(right.starts_with("HTTP/1.1 200"), "{right}");
    let pid = daemon.process().id() as i32;
    for (mode, cause) in [
        (1, "kernel 'faulty' faulted: a kernel accessed unmapped memory"),
        (4, "kernel 'faulty' faulted: "),
        (5, "ended no launch within"),
    ] {
        let before = children(pid)?;
        let failed = ask(mode)?;
        ensure!(failed.starts_with("HTTP/1.1 5") && failed.contains(cause), "mode {mode}: {failed}");
        let again = ask(HARMLESS)?;
        ensure!(body(&again) == body(&right), "after mode {mode}: {again}");
        ensure!(before.len() == 1 && children(pid)?.iter().all(|child| !before.contains(child)), "it was replaced");
    }
    // While a request is running, and while none is.
    for _ in 0..2 {
        let executor = children(pid)?.first().copied().context("an executor")?;
        kill_process(Pid::from_raw(executor).context("a number")?, Signal::KILL)?;
        let again = ask(HARMLESS)?;
        ensure!(body(&again) == body(&right), "it is tried again: {again}");
    }
    ensure!(metric(&daemon, "atoll_executor_losses_total{cause=\"died\"}")? >= 4.0, "they were counted");
    ensure!(is_ready(&daemon)?, "the device is there");
    Ok(())
}

#[test]
fn kernels_of_tenants_run_on_a_gpu_where_they_are_trusted() -> Result<()> {
    let deploy = |folder: &Path, more: &[&str]| -> Result<(Option<i32>, String)> {
        let bundle = folder.join("repository/faulty.kg");
        let mut command = std::process::Command::new(atoll());
        let output = command
            .env("XDG_RUNTIME_DIR", folder)
            .args(["fn", "deploy", "--name", "mine"])
            .args(more)
            .arg(bundle)
            .output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let folder = tempfile::tempdir()?;
    let _daemon = faulty_daemon(folder.path(), &[])?;
    let (status, said) = deploy(folder.path(), &["--tenant", "alice"])?;
    ensure!(
        status == Some(2)
            && said.contains("does not run kernels of tenant `alice`")
            && said.contains("--trust-tenants"),
        "{said}"
    );
    let (status, said) = deploy(folder.path(), &[])?;
    ensure!(status == Some(0), "the own tenant of the daemon needs no --trust-tenants: {said}");
    let folder = tempfile::tempdir()?;
    let _daemon = faulty_daemon(folder.path(), &["--trust-tenants"])?;
    let (status, said) = deploy(folder.path(), &["--tenant", "alice"])?;
    ensure!(status == Some(0), "{said}");
    Ok(())
}

#[test]
fn a_daemon_whose_gpu_keeps_failing_is_not_ready_and_reports_the_cause() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = faulty_daemon(folder.path(), &[])?;
    ensure!(is_ready(&daemon)?, "it starts ready");
    let pid = daemon.process().id() as i32;
    let mut killed = Vec::new();
    wait_until("given up", || {
        if let Some(executor) = children(pid)?.into_iter().find(|child| !killed.contains(child)) {
            kill_process(Pid::from_raw(executor).context("a number")?, Signal::KILL)?;
            killed.push(executor);
        }
        if killed.len() < 5 || is_ready(&daemon)? {
            return Ok(false);
        }
        // A device that is being replaced is not ready either, but then requests wait.
        let refused = answer(send(&daemon.http, HARMLESS, "{}")?)?;
        Ok(refused.starts_with("HTTP/1.1 503") && refused.contains("was killed by SIGKILL"))
    })?;
    ensure!(!is_ready(&daemon)?, "and so it stays for a while");
    Ok(())
}
