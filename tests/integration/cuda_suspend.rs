//! Sessions of CUDA programs that are suspended to host memory, moved to another device, and resumed:
//! real programs, real executors, host devices.

#![cfg(target_arch = "x86_64")]

use crate::cancel::metric;
use crate::control::Setup;
use crate::cuda_sessions::{CONFIG, Program, all_gone, first_round, kill, log, session_program, text};
use crate::fleet::two_hosts;
use anyhow::{Context, Result, ensure};
use atoll_client::{Client, ClientError, CudaSessionReport, CudaSessionState, RefusalKind};
use atoll_tests::full;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A program that takes a step for each line of its input, and prints a line.
pub(crate) struct Steps {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The lines that it prints without a session.
    expected: Vec<String>,
    taken: usize,
}

impl Steps {
    /// Starts it in a session, with this many bytes of its own memory.
    pub(crate) fn start(setup: &Setup, program: &Program, options: &[&str], bytes: u64) -> Result<Steps> {
        let bytes = bytes.to_string();
        let arguments = ["steps", &bytes];
        let mut direct = program.direct_command(&arguments);
        let mut direct = direct.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        direct.stdin.take().context("its input")?.write_all("\n".repeat(20).as_bytes())?;
        let expected = text(&direct.wait_with_output()?.stdout).lines().map(str::to_owned).collect();
        let mut command = program.command(setup, options, &arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("its output")?);
        Ok(Steps { child, input, output: BufReader::new(output), expected, taken: 0 })
    }

    /// Takes a step. Its line must be the one without a session.
    pub(crate) fn step(&mut self, setup: &Setup) -> Result<()> {
        self.input.as_mut().context("its input")?.write_all(b"\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let expected = self.expected.get(self.taken).context("at most twenty steps")?;
        ensure!(line.trim_end() == expected, "{line} instead of {expected}\n{}", log(setup));
        self.taken += 1;
        Ok(())
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

/// The only session.
fn only(client: &mut Client) -> Result<CudaSessionReport> {
    let mut sessions = client.cuda_sessions()?;
    ensure!(sessions.len() == 1, "{sessions:?}");
    sessions.pop().context("a session")
}

fn of_device(setup: &Setup, name: &str, device: &str) -> Result<f64> {
    metric(&setup.daemon, &format!("{name}{{device=\"{device}\"}}"))
}

#[test]
fn a_session_that_is_suspended_moved_and_resumed_gives_the_same_result() -> Result<()> {
    let options = two_hosts()?;
    let setup = Setup::start(&options.each_ref().map(String::as_str), CONFIG)?;
    let program = session_program()?;
    let mut client = setup.client()?;
    // The second tenant has a quota, and so perhaps an executor with a smaller region of memory.
    for options in [&["--device", "host:0"][..], &["--tenant", "small", "--memory-mib", "8", "--device", "host:0"]] {
        let mut steps = Steps::start(&setup, &program, options, 3_000_000)?;
        steps.step(&setup)?;
        let session = only(&mut client)?;
        ensure!(session.device == "host:0" && session.state != CudaSessionState::Suspended, "{session:?}");
        let number = session.session;
        // Suspended, and resumed by its next call.
        let report = client.suspend_cuda_session(number)?;
        ensure!(report.state == CudaSessionState::Suspended && report.idle_s.is_none(), "{report:?}");
        ensure!(of_device(&setup, "atoll_cuda_sessions_suspended", "host:0")? == 1.0);
        ensure!(of_device(&setup, "atoll_cuda_session_host_bytes", "host:0")? > 3_000_000.0);
        ensure!(client.suspend_cuda_session(number)?.state == CudaSessionState::Suspended, "it is suspended already");
        steps.step(&setup)?;
        ensure!(of_device(&setup, "atoll_cuda_sessions_suspended", "host:0")? == 0.0);
        // Moved from the device, and from host memory.
        let report = client.resume_cuda_session(number, Some("host:1"))?;
        ensure!(report.device == "host:1" && report.state == CudaSessionState::Idle, "{report:?}");
        steps.step(&setup)?;
        steps.step(&setup)?;
        client.suspend_cuda_session(number)?;
        ensure!(of_device(&setup, "atoll_cuda_sessions_suspended", "host:1")? == 1.0);
        let report = client.resume_cuda_session(number, Some("host:0"))?;
        ensure!(report.device == "host:0" && report.state == CudaSessionState::Idle, "{report:?}");
        steps.step(&setup)?;
        // A session that is on the device already stays there.
        client.resume_cuda_session(number, None)?;
        client.resume_cuda_session(number, Some("host:0"))?;
        steps.step(&setup)?;
        steps.end()?;
        all_gone(&setup)?;
        ensure!(metric(&setup.daemon, "nv_gpu_memory_used_bytes{gpu_uuid=\"host:1\"}")? == 0.0);
    }
    ensure!(metric(&setup.daemon, "atoll_cuda_session_moves_total")? == 4.0);
    Ok(())
}

#[test]
fn a_session_keeps_its_stored_functions_when_it_moves() -> Result<()> {
    let options = two_hosts()?;
    let setup = Setup::start(&options.each_ref().map(String::as_str), CONFIG)?;
    let program = session_program()?;
    let mut client = setup.client()?;
    let mut steps = Steps::start(&setup, &program, &["--device", "host:0", "--stored-functions=2"], 1_000_000)?;
    let stored = |client: &mut Client| -> Result<[u64; 3]> {
        let CudaSessionReport { stored_functions, stored_calls, stored_differences, .. } = only(client)?;
        Ok([stored_functions, stored_calls, stored_differences])
    };
    // Two steps are recorded, the third is stored.
    for calls in [0, 0, 0, 1, 2] {
        steps.step(&setup)?;
        ensure!(stored(&mut client)?[1] == calls, "{:?}", stored(&mut client)?);
    }
    ensure!(stored(&mut client)? == [1, 2, 0]);
    let number = only(&mut client)?.session;
    client.suspend_cuda_session(number)?;
    steps.step(&setup)?;
    let report = client.resume_cuda_session(number, Some("host:1"))?;
    ensure!(report.device == "host:1" && report.stored_functions == 1, "{report:?}");
    steps.step(&setup)?;
    ensure!(stored(&mut client)? == [1, 4, 0]);
    steps.end()?;
    all_gone(&setup)
}

#[test]
fn sessions_move_while_others_flood_their_devices() -> Result<()> {
    let options = two_hosts()?;
    let setup = Setup::start(&options.each_ref().map(String::as_str), CONFIG)?;
    let program = session_program()?;
    let mut floods = Vec::new();
    for device in ["host:0", "host:1"] {
        let mut command = program.command(&setup, &["--tenant", "flood", "--device", device], &["flood", "1000000"]);
        floods.push(first_round(&setup, command.stdout(Stdio::piped()).stderr(Stdio::null()))?);
    }
    let mut client = setup.client_of("team")?;
    let mut steps = Steps::start(&setup, &program, &["--tenant", "team", "--device", "host:0"], 1_000_000)?;
    steps.step(&setup)?;
    let number = only(&mut client)?.session;
    let mut device = "host:0";
    for round in 0..12 {
        if round % 3 == 0 {
            client.suspend_cuda_session(number)?;
        } else {
            device = if device == "host:0" { "host:1" } else { "host:0" };
            let report = client.resume_cuda_session(number, Some(device))?;
            ensure!(report.device == device, "{report:?}");
        }
        steps.step(&setup)?;
    }
    steps.end()?;
    for (flood, _) in floods {
        kill(flood)?;
    }
    all_gone(&setup)
}

#[test]
fn a_flood_that_is_suspended_again_and_again_computes_the_same() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    let arguments = ["flood", "60"];
    let expected = text(&program.direct(&arguments)?.stdout);
    let mut command = program.command(&setup, &[], &arguments);
    let (mut flood, output) = first_round(&setup, command.stdout(Stdio::piped()).stderr(Stdio::null()))?;
    let mut client = setup.client()?;
    let number = only(&mut client)?.session;
    let mut suspended = 0;
    while flood.try_wait()?.is_none() {
        match client.suspend_cuda_session(number) {
            Ok(_) => suspended += 1,
            Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(suspended > 0, "it was over too soon");
    let lines: Vec<String> = output.lines().collect::<std::io::Result<_>>()?;
    ensure!(lines.last().map(String::as_str) == expected.lines().last(), "{lines:?} instead of {expected}");
    all_gone(&setup)
}

#[test]
fn idle_sessions_leave_the_device_to_others() -> Result<()> {
    // Sessions may have three quarters of 256 MiB: one of these at a time.
    let setup = Setup::start(&[], &format!("sessions_suspend_idle_ms = 0\n{CONFIG}"))?;
    let program = session_program()?;
    let memory = ["--memory-mib", "100"];
    let mut steps = Vec::new();
    for _ in 0..3 {
        let mut one = Steps::start(&setup, &program, &memory, 500_000)?;
        one.step(&setup)?;
        steps.push(one);
    }
    ensure!(of_device(&setup, "atoll_cuda_sessions_suspended", "host:0")? == 2.0, "{}", log(&setup));
    for _ in 0..3 {
        for one in &mut steps {
            one.step(&setup)?;
        }
    }
    let sessions = setup.json(&["session", "ls"])?;
    let is_suspended = |session: &&serde_json::Value| session["state"] == "suspended";
    let suspended = sessions.as_array().context("sessions")?.iter().filter(is_suspended).count();
    ensure!(suspended == 2, "{sessions}");
    ensure!(of_device(&setup, "atoll_cuda_session_returns_total", "host:0")? >= 8.0);
    steps.into_iter().try_for_each(Steps::end)?;
    all_gone(&setup)
}

#[test]
fn a_session_waits_for_memory_where_others_do_not_leave() -> Result<()> {
    let setup = Setup::start(&[], &format!("sessions_suspend = false\n{CONFIG}"))?;
    let program = session_program()?;
    let memory = ["--memory-mib", "100"];
    let mut first = Steps::start(&setup, &program, &memory, 500_000)?;
    first.step(&setup)?;
    let refused = program.command(&setup, &memory, &["table"]).output()?;
    let said = text(&refused.stdout);
    ensure!(said.starts_with("cuInit(0): CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
    // An operator makes room.
    let mut client = setup.client()?;
    let number = only(&mut client)?.session;
    client.suspend_cuda_session(number)?;
    let mut second = Steps::start(&setup, &program, &memory, 500_000)?;
    second.step(&setup)?;
    let Err(ClientError::Refused(refusal)) = client.resume_cuda_session(number, None) else {
        anyhow::bail!("there is no memory for it");
    };
    ensure!(refusal.kind == RefusalKind::Busy, "{refusal:?}");
    ensure!(refusal.message.starts_with("the session stays suspended: the invocation needs"), "{refusal:?}");
    // Its next call waits until the other session has ended.
    let ends = std::thread::spawn(move || second.end());
    first.step(&setup)?;
    ends.join().map_err(|_| anyhow::anyhow!("the second program"))??;
    first.step(&setup)?;
    first.end()?;
    all_gone(&setup)
}

#[test]
fn limits_of_host_memory_hold_and_are_named() -> Result<()> {
    let limits = "sessions_suspend_idle_ms = 0\nsessions_host_bytes = \"50M\"\n\
                  sessions_host_bytes_per_tenant = \"20M\"\n";
    let setup = Setup::start(&[], &format!("{limits}{CONFIG}"))?;
    let program = session_program()?;
    let mut client = setup.client()?;
    for (mib, limit) in [("100", "tenant `team` have 0 of at most 20971520 bytes"), ("4", "")] {
        let options = ["--tenant", "team", "--memory-mib", mib];
        let mut steps = Steps::start(&setup, &program, &options, 500_000)?;
        steps.step(&setup)?;
        let number = only(&mut client)?.session;
        match client.suspend_cuda_session(number) {
            Ok(report) => ensure!(limit.is_empty() && report.state == CudaSessionState::Suspended, "{report:?}"),
            Err(ClientError::Refused(refusal)) => {
                ensure!(refusal.kind == RefusalKind::Quota, "{refusal:?}");
                ensure!(!limit.is_empty() && refusal.message.contains(limit), "{refusal:?}");
            }
            Err(error) => return Err(error.into()),
        }
        steps.step(&setup)?;
        steps.end()?;
        all_gone(&setup)?;
    }
    ensure!(of_device(&setup, "atoll_cuda_session_suspension_failures_total", "host:0")? == 1.0);
    // A session that cannot be suspended keeps its memory, and others are refused.
    let mut steps = Steps::start(&setup, &program, &["--memory-mib", "100"], 500_000)?;
    steps.step(&setup)?;
    let refused = program.command(&setup, &["--memory-mib", "100"], &["table"]).output()?;
    ensure!(text(&refused.stdout).starts_with("cuInit(0): CUDA_ERROR_OUT_OF_MEMORY"), "{}", text(&refused.stdout));
    ensure!(log(&setup).contains("a session cannot be suspended"), "{}", log(&setup));
    steps.step(&setup)?;
    steps.end()?;
    all_gone(&setup)
}

#[test]
fn clients_that_are_killed_while_suspended_leave_nothing() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    let mut client = setup.client()?;
    for round in 0..if full() { 200 } else { 8 } {
        let mut steps = Steps::start(&setup, &program, &["--tenant", "team"], 500_000)?;
        steps.step(&setup)?;
        let number = only(&mut client)?.session;
        client.suspend_cuda_session(number)?;
        if round % 2 == 1 {
            // It is killed on its way back.
            steps.input.as_mut().context("its input")?.write_all(b"\n")?;
        }
        kill(steps.child).with_context(|| format!("round {round}"))?;
        all_gone(&setup)?;
        ensure!(of_device(&setup, "atoll_cuda_session_host_bytes", "host:0")? == 0.0);
        ensure!(client.cuda_sessions()?.is_empty());
    }
    Ok(())
}

#[test]
fn wrong_requests_about_sessions_are_refused() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = session_program()?;
    let mut steps = Steps::start(&setup, &program, &["--tenant", "team"], 100_000)?;
    steps.step(&setup)?;
    let number = only(&mut setup.client_of("team")?)?.session;
    ensure!(setup.client_of("other")?.cuda_sessions()?.is_empty());
    for (tenant, session, device, kind, message) in [
        ("other", number, None, RefusalKind::NotFound, "there is no session"),
        ("team", number + 1, None, RefusalKind::NotFound, "there is no session"),
        ("team", u64::MAX, Some("host:0"), RefusalKind::NotFound, "there is no session"),
        ("team", number, Some("host:9"), RefusalKind::BadRequest, "there is no device `host:9`"),
    ] {
        let mut client = setup.client_of(tenant)?;
        let answer = match device {
            Some(device) => client.resume_cuda_session(session, Some(device)),
            None => client.suspend_cuda_session(session),
        };
        let Err(ClientError::Refused(refusal)) = answer else { anyhow::bail!("{session} {device:?} is not refused") };
        ensure!(refusal.kind == kind && refusal.message.contains(message), "{refusal:?}");
    }
    let output = setup.command(&["session", "suspend", "x"]).output()?;
    ensure!(output.status.code() == Some(2), "{}", text(&output.stderr));
    steps.step(&setup)?;
    steps.end()?;
    all_gone(&setup)?;
    ensure!(setup.client_of("team")?.suspend_cuda_session(number).is_err(), "it has ended");
    Ok(())
}
