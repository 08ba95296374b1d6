//! CUDA programs in sessions of a daemon: real programs, real executors, the host device.

#![cfg(target_arch = "x86_64")]

use crate::cancel::metric;
use crate::control::Setup;
use crate::executors::wait_until;
use crate::serve::LOG;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Deploy, Tensor};
use atoll_tests::{full, program, root, seed};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Rights of tenants in these tests: `small` has little device memory, `slow` no real-time work.
pub(crate) const CONFIG: &str = "[tenant.small]\ndevice_bytes = 33554432\n[tenant.slow]\nclass = \"best-effort\"\n";

/// A compiled program, and a folder in which it finds the stand-in driver.
pub(crate) struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    /// Compiles a C file, linked with the library of sessions.
    pub(crate) fn compile(source: &Path) -> Result<Program> {
        Program::compile_with(source, &[])
    }

    /// Compiles a C file, linked with further libraries too: names, and files beside the program.
    pub(crate) fn compile_with(source: &Path, libraries: &[(&str, &str)]) -> Result<Program> {
        let folder = tempfile::tempdir()?;
        let direct = folder.path().join("direct");
        std::fs::create_dir(&direct)?;
        std::os::unix::fs::symlink(program("libatoll_stand_in_cuda.so"), direct.join("libcuda.so.1"))?;
        std::os::unix::fs::symlink(program("libatoll_interpose.so"), folder.path().join("libcuda.so.1"))?;
        let mut command = Command::new("cc");
        command.args(["-O1", "-pthread", "-o"]).arg(folder.path().join("program")).arg(source);
        command.arg(format!("-L{}", folder.path().display())).arg("-l:libcuda.so.1");
        for (name, file) in libraries {
            std::os::unix::fs::symlink(program(file), folder.path().join(name))?;
            command.arg(format!("-l:{name}"));
        }
        let output = command.arg("-lm").output().context("a C compiler")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Program { folder })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Runs it on the stand-in driver, without a session.
    pub(crate) fn direct(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.direct_command(arguments).output()?)
    }

    /// The command that runs it on the stand-in driver.
    pub(crate) fn direct_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path());
        command.args(arguments).env("LD_LIBRARY_PATH", self.folder.path().join("direct"));
        command
    }

    /// The command that runs it in a session of the daemon.
    pub(crate) fn command(&self, setup: &Setup, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = setup.command(&[&["run"], options, &["--"]].concat());
        command.arg(self.path()).args(arguments);
        command
    }

    fn run(&self, setup: &Setup, options: &[&str], arguments: &[&str]) -> Result<Output> {
        Ok(self.command(setup, options, arguments).output()?)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn log(setup: &Setup) -> String {
    std::fs::read_to_string(setup.path(LOG)).unwrap_or_default()
}

pub(crate) fn session_program() -> Result<Program> {
    Program::compile(&root().join("tests/programs/session.c"))
}

/// Waits until no session is left, and checks that nothing of any session is left.
pub(crate) fn all_gone(setup: &Setup) -> Result<()> {
    wait_until("no session", || Ok(metric(&setup.daemon, "atoll_cuda_sessions")? == 0.0))?;
    ensure!(metric(&setup.daemon, "atoll_cuda_session_memory_bytes")? == 0.0);
    wait_until("no memory", || Ok(metric(&setup.daemon, "nv_gpu_memory_used_bytes{gpu_uuid=\"host:0\"}")? == 0.0))
}

/// Runs a program both ways; outputs and exit codes must be equal.
pub(crate) fn same(setup: &Setup, program: &Program, options: &[&str], arguments: &[&str]) -> Result<String> {
    let direct = program.direct(arguments)?;
    let session = program.run(setup, options, arguments)?;
    let (expected, found) = (text(&direct.stdout), text(&session.stdout));
    let said = || format!("{arguments:?}: {}\n{}", text(&session.stderr), log(setup));
    ensure!(found == expected, "{found}\ninstead of\n{expected}\n{}", said());
    ensure!(session.status.code() == direct.status.code(), "{} instead of {}", session.status, direct.status);
    Ok(found)
}

#[test]
fn programs_give_the_outputs_of_the_stand_in_and_are_billed() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let programs = Program::compile(&root().join("runtime/interpose/tests/programs/main.c"))?;
    let tenant = ["--tenant", "team"];
    for arguments in [&["loop", "50"][..], &["streams"], &["threads"]] {
        same(&setup, &programs, &tenant, arguments)?;
    }
    for (mode, expected) in [("rows", "rows and libraries\n"), ("fork", "child 42, parent 7\n")] {
        let output = programs.run(&setup, &tenant, &[mode])?;
        ensure!(text(&output.stdout) == expected, "{mode}: {}\n{}", text(&output.stdout), text(&output.stderr));
    }
    let own = session_program()?;
    for arguments in [&["table"][..], &["flood", "2"], &["wild"]] {
        same(&setup, &own, &tenant, arguments)?;
    }
    ensure!(text(&own.run(&setup, &tenant, &["table"])?.stdout).ends_with("210 420 630 840\n"));
    all_gone(&setup)?;
    let launches = metric(&setup.daemon, "atoll_cuda_launches_total")?;
    let flushes = metric(&setup.daemon, "atoll_cuda_flushes_total")?;
    ensure!(launches > 200.0 && flushes > 0.0, "{launches} launches in {flushes} tasks");
    let usage = setup.json(&["usage", "--tenant", "team"])?;
    let rows = usage["rows"].as_array().context("rows")?;
    let billed: f64 = rows.iter().filter_map(|row| row["device_s"].as_f64()).sum();
    ensure!(billed > 0.0, "the sessions are billed: {usage}");
    Ok(())
}

#[test]
fn graphs_pools_and_managed_memory_work_on_the_host_device() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let folder = root().join("runtime/interpose/tests/programs");
    for (file, mode, end) in [
        ("graphs.c", "captured", "captured\n"),
        ("graphs.c", "built", "built\n"),
        ("graphs.c", "allocated", "free by the graph again: 1\n"),
        ("graphs.c", "wrong", "a node that is gone: 1\n"),
        ("memory.c", "pools", "another device: 101\n"),
        ("memory.c", "managed", "prefetch to the host: 0\n"),
    ] {
        let output = Program::compile(&folder.join(file))?.run(&setup, &["--tenant", "team"], &[mode])?;
        let (found, said) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success() && found.ends_with(end), "{mode}: {found}\n{said}\n{}", log(&setup));
    }
    all_gone(&setup)
}

/// One part of a program, drawn by `ATOLL_SEED`; all in a full run.
fn some(parts: [&'static str; 2]) -> Vec<&'static str> {
    if full() { parts.to_vec() } else { vec![parts[seed() as usize % 2]] }
}

#[test]
fn cublas_computes_in_a_session() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let libraries = [
        ("libcublas.so.12", "libatoll_cublas.so"),
        ("libcublasLt.so.12", "libatoll_cublas.so"),
        ("libcudart.so.12", "libatoll_cudart.so"),
    ];
    let programs = root().join("runtime/cublas/tests/programs");
    for (name, parts) in [("products", ["plain", "batches"]), ("lt", ["epilogues", "others"])] {
        let program = Program::compile_with(&programs.join(format!("{name}.c")), &libraries)?;
        for part in some(parts) {
            let output = program.run(&setup, &["--tenant", "team"], &[part])?;
            let (found, said) = (text(&output.stdout), text(&output.stderr));
            ensure!(found == format!("{part}\n") && said.is_empty(), "{found}\n{said}\n{}", log(&setup));
        }
    }
    all_gone(&setup)
}

#[test]
fn cudnn_computes_in_a_session() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let libraries = [("libcudnn.so.9", "libatoll_cudnn.so"), ("libcudart.so.12", "libatoll_cudart.so")];
    let programs = root().join("runtime/cudnn/tests/programs");
    for (name, parts) in [("convolutions", ["forwards", "epilogues"]), ("windows", ["poolings", "softmaxes"])] {
        let program = Program::compile_with(&programs.join(format!("{name}.c")), &libraries)?;
        for part in some(parts) {
            let output = program.run(&setup, &["--tenant", "team"], &[part])?;
            let (found, said) = (text(&output.stdout), text(&output.stderr));
            ensure!(found == format!("{part}\n") && said.is_empty(), "{found}\n{said}\n{}", log(&setup));
        }
    }
    all_gone(&setup)
}

#[test]
fn a_refused_session_says_why() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    for (options, expected) in [
        (&["--tenant", "slow", "--class", "real-time"][..], "tenant `slow` may run best-effort work only"),
        (&["--tenant", "small", "--memory-mib", "64"], "OUT_OF_MEMORY"),
        (&["--device", "cuda:7"], "there is no device `cuda:7`"),
        (&["--memory-mib", "1000000"], "bytes of memory"),
        (&["--tenant", "team", "--sm-partition", "50"], "may hold no leases"),
    ] {
        let output = program.run(&setup, options, &["table"])?;
        let said = text(&output.stderr) + &text(&output.stdout);
        ensure!(output.status.code() == Some(1), "{options:?}: {said}");
        ensure!(said.contains(expected) || log(&setup).contains(expected), "{options:?}: {said}\n{}", log(&setup));
        ensure!(text(&output.stdout).starts_with("cuInit(0): CUDA_ERROR_"), "{options:?}: {said}");
    }
    all_gone(&setup)?;
    // The daemon serves others as before.
    ensure!(text(&program.run(&setup, &["--tenant", "small"], &["table"])?.stdout).contains("30 60 90 120"));
    ensure!(text(&program.run(&setup, &["--sm-partition", "50"], &["table"])?.stdout).contains("30 60 90 120"));
    all_gone(&setup)
}

#[test]
fn later_sessions_of_a_tenant_neither_send_nor_read_their_code_again() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    let hits = |kind: &str| metric(&setup.daemon, &format!("atoll_cuda_warm_hits_total{{kind=\"{kind}\"}}"));
    let run = |tenant: &str| -> Result<[f64; 2]> {
        same(&setup, &program, &["--tenant", tenant], &["large"])?;
        Ok([hits("image")?, hits("ptx")?])
    };
    ensure!(run("team")? == [0.0, 0.0]);
    let kept = metric(&setup.daemon, "atoll_cuda_warm_bytes")?;
    ensure!(kept >= 400_000.0, "an image and its PTX are kept: {kept} bytes");
    // The program has a small image, too, which it sends.
    ensure!(run("team")? == [1.0, 2.0], "{:?}", [hits("image")?, hits("ptx")?]);
    ensure!(run("other")? == [1.0, 2.0], "tenants share nothing");
    ensure!(metric(&setup.daemon, "atoll_cuda_warm_bytes")? == 2.0 * kept);
    all_gone(&setup)
}

/// Starts a flood and waits until its first round has run.
pub(crate) fn flooding(program: &Program, setup: &Setup) -> Result<Child> {
    let mut command = program.command(setup, &["--tenant", "flood"], &["flood", "1000000"]);
    Ok(first_round(setup, command.stdout(Stdio::piped()).stderr(Stdio::null()))?.0)
}

/// Starts a flood, and waits until its first round has run. Also returns the rest of its output.
pub(crate) fn first_round(setup: &Setup, command: &mut Command) -> Result<(Child, BufReader<ChildStdout>)> {
    let mut child = command.spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("its output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line.starts_with("first "), "{line}\n{}", log(setup));
    Ok((child, output))
}

/// Kills the program of `atoll run`, and with it the session; `atoll run` then ends by itself.
pub(crate) fn kill(mut child: Child) -> Result<()> {
    for program in crate::executors::children(child.id() as i32)? {
        let pid = rustix::process::Pid::from_raw(program).context("a process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    child.wait()?;
    Ok(())
}

#[test]
fn real_time_work_preempts_a_session_that_floods() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    let mut client = setup.client()?;
    let urgent = Deploy { class: Some(atoll_client::Class::RealTime), ..Deploy::default() };
    client.deploy(&setup.path("affine.kg"), &urgent)?;
    let flood = flooding(&program, &setup)?;
    let vector = |value: f32| Tensor::f32(&[1000], &[value; 1000]);
    wait_until("a preemption", || {
        let answer = client.invoke(Call::of("affine").input("x", vector(2.0)).input("b", vector(1.0)))?;
        ensure!(answer.tensor("y")?.to_f32() == [7.0; 1000]);
        Ok(metric(&setup.daemon, "atoll_preemptions_total")? > 3.0)
    })?;
    kill(flood)?;
    wait_until("no session", || Ok(metric(&setup.daemon, "atoll_cuda_sessions")? == 0.0))?;
    // After the preemptions, another session computes what the program computes directly.
    same(&setup, &program, &["--tenant", "flood"], &["flood", "2"])?;
    client.remove_function("affine")?;
    all_gone(&setup)
}

#[test]
fn killed_clients_leave_nothing() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    let rounds = if full() { 1000 } else { 20 };
    for round in 0..rounds {
        kill(flooding(&program, &setup)?).with_context(|| format!("round {round}"))?;
    }
    all_gone(&setup)?;
    ensure!(metric(&setup.daemon, "atoll_cuda_sessions_total")? == f64::from(rounds));
    let output = program.run(&setup, &["--tenant", "flood"], &["table"])?;
    ensure!(text(&output.stdout).contains("30 60 90 120"), "{}\n{}", text(&output.stderr), log(&setup));
    all_gone(&setup)
}
