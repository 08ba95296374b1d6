//! CUDA programs in sessions of a daemon with a GPU, which is the stand-in driver.

#![cfg(target_arch = "x86_64")]

use crate::cancel::metric;
use crate::control::{Setup, refusal};
use crate::cuda_sessions::{CONFIG, Program, first_round, flooding, kill, log, same, session_program, text};
use crate::cuda_suspend::Steps;
use crate::executors::{children, wait_until};
use crate::functions::manifest;
use crate::gpu_tenants::pack_for_gpu;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Class, CudaSessionState, Deploy, RefusalKind, Tensor};
use atoll_tests::root;
use std::process::{Output, Stdio};

/// Memory of the GPU that is reserved for tenants.
const TENANTS: [&str; 2] = ["--tenant-memory", "512M"];

/// Waits until no session is left, and checks that none of their memory is.
fn all_gone(setup: &Setup) -> Result<()> {
    wait_until("no session", || Ok(metric(&setup.daemon, "atoll_cuda_sessions")? == 0.0))?;
    ensure!(metric(&setup.daemon, "atoll_cuda_session_memory_bytes")? == 0.0);
    Ok(())
}

fn run(setup: &Setup, program: &Program, options: &[&str], mode: &str) -> Result<Output> {
    Ok(program.command(setup, options, &[mode]).output()?)
}

/// What a program prints that fails, and the daemon's log.
fn failed(setup: &Setup, program: &Program, options: &[&str], mode: &str) -> Result<String> {
    let output = run(setup, program, options, mode)?;
    ensure!(!output.status.success(), "{options:?} {mode}: it did not fail");
    Ok(format!("{}{}\n{}", text(&output.stdout), text(&output.stderr), log(setup)))
}

#[test]
fn programs_give_the_outputs_of_the_stand_in() -> Result<()> {
    let setup = Setup::start_on_gpu(&TENANTS, CONFIG)?;
    let folder = root().join("runtime/interpose/tests/programs");
    let calls = Program::compile(&folder.join("main.c"))?;
    for arguments in [&["loop", "20"][..], &["streams"]] {
        same(&setup, &calls, &["--tenant", "team", "--memory-mib", "24"], arguments)?;
    }
    let own = session_program()?;
    // Without `--tenant`, the daemon's own user.
    for tenant in [&["--tenant", "team"][..], &[]] {
        for arguments in [&["table"][..], &["flood", "2"], &["wild"]] {
            same(&setup, &own, tenant, arguments)?;
        }
    }
    for (file, mode, end) in
        [("graphs.c", "captured", "captured\n"), ("memory.c", "managed", "prefetch to the host: 0\n")]
    {
        let options = ["--tenant", "team", "--memory-mib", "24"];
        let output = run(&setup, &Program::compile(&folder.join(file))?, &options, mode)?;
        let (found, said) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success() && found.ends_with(end), "{mode}: {found}\n{said}\n{}", log(&setup));
    }
    all_gone(&setup)
}

#[test]
fn a_fault_ends_one_session_and_no_other_work() -> Result<()> {
    let setup = Setup::start_on_gpu(&TENANTS, CONFIG)?;
    let program = session_program()?;
    let flood = flooding(&program, &setup)?;
    let executors = children(setup.daemon.process().id() as i32)?;
    // Of another tenant, of the same one, and of the daemon's own user.
    for tenant in [&["--tenant", "team"][..], &["--tenant", "flood"], &[]] {
        let said = failed(&setup, &program, tenant, "wild")?;
        ensure!(said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
        ensure!(said.contains("outside the memory of its tenant"), "{said}");
    }
    ensure!(children(setup.daemon.process().id() as i32)? == executors, "the process of the GPU was replaced");
    ensure!(metric(&setup.daemon, "atoll_cuda_sessions")? == 1.0, "{}", log(&setup));
    kill(flood)?;
    all_gone(&setup)
}

#[test]
fn real_time_work_preempts_a_session_and_killed_clients_leave_nothing() -> Result<()> {
    let setup = Setup::start_on_gpu(&TENANTS, CONFIG)?;
    let program = session_program()?;
    let mut client = setup.client()?;
    pack_for_gpu(&manifest("affine"), &setup.path("affine-gpu.kg"))?;
    let urgent = Deploy { class: Some(Class::RealTime), name: Some("affine".into()), ..Deploy::default() };
    client.deploy(&setup.path("affine-gpu.kg"), &urgent)?;
    let flood = flooding(&program, &setup)?;
    let vector = |value: f32| Tensor::f32(&[1000], &[value; 1000]);
    wait_until("a preemption", || {
        let answer = client.invoke(Call::of("affine").input("x", vector(2.0)).input("b", vector(1.0)))?;
        ensure!(answer.tensor("y")?.to_f32() == [7.0; 1000]);
        Ok(metric(&setup.daemon, "atoll_preemptions_total")? > 3.0)
    })?;
    kill(flood)?;
    for _ in 0..3 {
        kill(flooding(&program, &setup)?)?;
    }
    all_gone(&setup)?;
    // After the preemptions, another session computes what the program computes directly.
    same(&setup, &program, &["--tenant", "flood"], &["flood", "2"])?;
    all_gone(&setup)
}

#[test]
fn a_session_on_a_gpu_is_suspended_and_resumed_and_does_not_move() -> Result<()> {
    let setup = Setup::start_on_gpu(&[&TENANTS[..], &["--device", "host:0"]].concat(), CONFIG)?;
    let program = session_program()?;
    let mut client = setup.client()?;
    for tenant in [&["--tenant", "team"][..], &[]] {
        let options = [tenant, &["--device", "cuda:0"]].concat();
        let mut steps = Steps::start(&setup, &program, &options, 1_000_000)?;
        steps.step(&setup)?;
        let session = client.cuda_sessions()?.pop().context("a session")?;
        ensure!(session.device == "cuda:0", "{session:?}");
        let report = client.suspend_cuda_session(session.session)?;
        ensure!(report.state == CudaSessionState::Suspended, "{report:?}");
        steps.step(&setup)?;
        steps.step(&setup)?;
        let (kind, said) = refusal(client.resume_cuda_session(session.session, Some("host:0")))?;
        ensure!(kind == RefusalKind::BadRequest && said.contains("is of another kind"), "{said}");
        steps.step(&setup)?;
        steps.end()?;
        all_gone(&setup)?;
    }
    Ok(())
}

#[test]
fn a_session_that_the_gpu_has_no_memory_for_is_refused() -> Result<()> {
    let setup = Setup::start_on_gpu(&TENANTS, CONFIG)?;
    let program = session_program()?;
    let said = failed(&setup, &program, &["--tenant", "small", "--memory-mib", "64"], "table")?;
    ensure!(said.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
    let said = failed(&setup, &program, &["--memory-mib", "100000"], "table")?;
    ensure!(said.contains("bytes of memory"), "{said}");
    all_gone(&setup)?;
    // The memory and that for variables are a power of two together.
    let mut command = program.command(&setup, &["--tenant", "team", "--memory-mib", "10"], &["flood", "1000000"]);
    let (child, _) = first_round(&setup, command.stdout(Stdio::piped()).stderr(Stdio::null()))?;
    ensure!(metric(&setup.daemon, "atoll_cuda_session_memory_bytes")? == f64::from(24 << 20), "{}", log(&setup));
    kill(child)?;
    all_gone(&setup)
}

#[test]
fn without_memory_for_tenants_there_are_no_sessions_on_a_gpu() -> Result<()> {
    let setup = Setup::start_on_gpu(&["--tenant-memory", "0"], "")?;
    let said = failed(&setup, &session_program()?, &[], "table")?;
    ensure!(said.contains("no memory is reserved for tenants; start the daemon with --tenant-memory"), "{said}");
    all_gone(&setup)
}
