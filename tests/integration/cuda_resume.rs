//! CUDA sessions over the network whose connections break: programs that notice nothing, clients
//! that do not come back, and tickets that are not valid.

#![cfg(target_arch = "x86_64")]

mod proxy;
pub(crate) mod raw;

use self::proxy::Proxy;
use self::raw::Raw;
use crate::cancel::metric;
use crate::control::Setup;
use crate::cuda_sessions::{CONFIG, Program, all_gone, first_round, log, same, session_program, text};
use crate::executors::wait_until;
use crate::identity::{create_token, shown};
use anyhow::{Context, Result, ensure};
use atoll_tests::{full, root};
use std::io::Read;
use std::process::Stdio;

/// Options of a daemon that takes sessions on loopback.
const SESSIONS: [&str; 2] = ["--sessions", "127.0.0.1:0"];

fn resumes(setup: &Setup) -> Result<f64> {
    metric(&setup.daemon, "atoll_cuda_session_resumes_total")
}

fn detached(setup: &Setup) -> Result<f64> {
    metric(&setup.daemon, "atoll_cuda_sessions_detached")
}

fn denied(setup: &Setup, reason: &str) -> Result<f64> {
    metric(&setup.daemon, &format!("atoll_denied_requests_total{{reason=\"{reason}\"}}"))
}

#[test]
fn programs_notice_nothing_of_connections_that_break() -> Result<()> {
    let setup = Setup::start(&SESSIONS, CONFIG)?;
    let programs = Program::compile(&root().join("runtime/interpose/tests/programs/main.c"))?;
    let own = session_program()?;
    let of_daemon = |name: &str| metric(&setup.daemon, name);
    let (launches, sessions) = ("atoll_cuda_launches_total", "atoll_cuda_sessions_total");
    let (seeds, mut cuts) = (if full() { 0..20 } else { 0..2 }, 0);
    for (program, arguments) in [
        (&programs, &["loop", "200"][..]),
        (&programs, &["streams"]),
        (&programs, &["threads"]),
        (&own, &["table"]),
        (&own, &["flood", "3"]),
    ] {
        let before = of_daemon(launches)?;
        same(&setup, program, &["--server", &setup.daemon.sessions], arguments)?;
        let undisturbed = of_daemon(launches)? - before;
        for seed in seeds.clone() {
            let proxy = Proxy::start(&setup.daemon.sessions, Some(seed))?;
            let (before, begun) = (of_daemon(launches)?, of_daemon(sessions)?);
            same(&setup, program, &["--server", &proxy.address()], arguments)
                .with_context(|| format!("seed {seed}, {} cuts", proxy.cuts()))?;
            // Each call was carried out once, in one session.
            let launched = of_daemon(launches)? - before;
            ensure!(launched == undisturbed, "{arguments:?}, seed {seed}: {launched}, not {undisturbed} launches");
            ensure!(of_daemon(sessions)? == begun + 1.0);
            cuts += proxy.cuts();
        }
    }
    let resumed = resumes(&setup)?;
    ensure!(cuts > 10 && resumed > 5.0, "{cuts} connections broke, and {resumed} continued a session");
    all_gone(&setup)?;
    ensure!(detached(&setup)? == 0.0);
    Ok(())
}

#[test]
fn a_client_that_does_not_come_back_loses_its_session() -> Result<()> {
    let setup = Setup::start(&SESSIONS, &format!("sessions_keep_s = 1\n{CONFIG}"))?;
    let program = session_program()?;
    let proxy = Proxy::start(&setup.daemon.sessions, None)?;
    let address = proxy.address();
    let options = ["--server", &address];
    let mut command = program.command(&setup, &options, &["flood", "1000000"]);
    let (mut child, mut output) = first_round(&setup, command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    proxy.cut(true);
    let (mut rest, mut said) = (String::new(), String::new());
    output.read_to_string(&mut rest)?;
    child.stderr.take().context("its messages")?.read_to_string(&mut said)?;
    ensure!(rest.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{rest}\n{said}");
    ensure!(child.wait()?.code() == Some(1));
    ensure!(said.contains("is lost") && said.contains("for more than 1 s"), "{said}");
    all_gone(&setup)?;
    let expired = metric(&setup.daemon, "atoll_cuda_sessions_expired_total")?;
    ensure!(expired == 1.0 && detached(&setup)? == 0.0 && resumes(&setup)? == 0.0, "{expired}\n{}", log(&setup));
    ensure!(log(&setup).contains("the client of a CUDA session did not come back in time"), "{}", log(&setup));
    proxy.restore();
    same(&setup, &program, &options, &["table"])?;
    all_gone(&setup)
}

#[test]
fn a_session_goes_on_although_the_daemon_did_not_notice_the_loss() -> Result<()> {
    let setup = Setup::start(&SESSIONS, CONFIG)?;
    let program = session_program()?;
    let proxy = Proxy::start(&setup.daemon.sessions, None)?;
    let address = proxy.address();
    let command = |arguments: &[&str]| program.command(&setup, &["--server", &address], arguments);
    let undisturbed = command(&["flood", "6"]).output()?;
    let mut command = command(&["flood", "6"]);
    let (mut child, mut output) = first_round(&setup, command.stdout(Stdio::piped()).stderr(Stdio::inherit()))?;
    // The session has a connection, as far as the daemon knows, until its client does not answer.
    proxy.cut_silently();
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    ensure!(text(&undisturbed.stdout).ends_with(&rest) && rest.starts_with("sum "), "{rest}\n{}", log(&setup));
    ensure!(child.wait()?.success());
    ensure!(resumes(&setup)? == 1.0 && denied(&setup, "ticket")? >= 1.0, "{}", log(&setup));
    all_gone(&setup)
}

#[test]
fn a_daemon_that_has_restarted_does_not_know_the_session() -> Result<()> {
    let mut setup = Setup::start(&SESSIONS, CONFIG)?;
    let program = session_program()?;
    let proxy = Proxy::start(&setup.daemon.sessions, None)?;
    let address = proxy.address();
    let mut command = program.command(&setup, &["--server", &address], &["flood", "1000000"]);
    let (mut child, mut output) = first_round(&setup, command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    proxy.cut(true);
    setup.kill_and_restart()?;
    proxy.redirect(&setup.daemon.sessions);
    proxy.restore();
    let (mut rest, mut said) = (String::new(), String::new());
    output.read_to_string(&mut rest)?;
    child.stderr.take().context("its messages")?.read_to_string(&mut said)?;
    ensure!(rest.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{rest}\n{said}");
    ensure!(said.contains("no session has this ticket; the daemon may have restarted"), "{said}");
    ensure!(child.wait()?.code() == Some(1) && denied(&setup, "ticket")? == 1.0);
    same(&setup, &program, &["--server", &address], &["table"])?;
    all_gone(&setup)
}

#[test]
fn tickets_are_of_one_tenant_and_of_one_connection() -> Result<()> {
    let keys = tempfile::tempdir()?;
    let keys_file = shown(&keys.path().join("keys.json"));
    let (token, other) = (create_token(&keys_file, "team")?, create_token(&keys_file, "small")?);
    let options = [&SESSIONS[..], &["--auth-keys", &keys_file]].concat();
    let setup = Setup::start(&options, &format!("sessions_keep_s = 20\n{CONFIG}"))?;
    let address = setup.daemon.sessions.clone();
    let first = Raw::begin(&address, &token)?;
    let (ticket, received) = (first.ticket, first.received.len() as u64);
    let refused = |token: &str, ticket: &[u8; 40], received: u64, why: &str| -> Result<()> {
        let before = denied(&setup, "ticket")?;
        let said = Raw::resume(&address, token, ticket, received)?.err().context("it was not refused")?;
        ensure!(said.contains(why), "{said}");
        wait_until("a count", || Ok(denied(&setup, "ticket")? > before))
    };
    // The daemon may not have noticed yet that an earlier connection is closed.
    let resumed = || -> Result<Raw> {
        let mut resumed = None;
        wait_until("another connection", || {
            match Raw::resume(&address, &token, &ticket, received)? {
                Ok(raw) => resumed = Some(raw),
                Err(said) => ensure!(said.contains("the session has a connection"), "{said}"),
            }
            Ok(resumed.is_some())
        })?;
        resumed.context("a connection")
    };
    let mut wrong = ticket;
    wrong[39] ^= 1;
    let mut unknown = ticket;
    unknown[0] ^= 1;
    refused(&token, &wrong, received, "no session has this ticket")?;
    refused(&token, &unknown, received, "no session has this ticket")?;
    refused(&other, &ticket, received, "the ticket is of another tenant's session")?;
    refused(&token, &ticket, received, "the session has a connection")?;
    ensure!(
        Raw::resume(&address, "x", &ticket, received)?.err().is_some_and(|said| said.contains("token is not valid"))
    );
    first.close()?;
    wait_until("no connection", || Ok(detached(&setup)? == 1.0))?;
    refused(&token, &wrong, received, "no session has this ticket")?;
    refused(&other, &ticket, received, "the ticket is of another tenant's session")?;
    // More than was sent.
    let says = format!("has received {} bytes", received + 1_000_000);
    refused(&token, &ticket, received + 1_000_000, &says)?;
    let mut second = resumed()?;
    ensure!(second.ticket == ticket && second.had_received == 0);
    // Half of a message, and the rest on another connection: the daemon has the first half.
    second.send(0, &[1, 0, 0, 0, 0, 0, 0, 0])?;
    second.close()?;
    let mut third = resumed()?;
    ensure!(third.had_received == 8, "{}", third.had_received);
    // A synchronization, which is answered once.
    third.send(8, &[0; 8])?;
    third.read(36)?;
    ensure!(third.received.starts_with(b"ANSR"), "{:?}", third.received);
    ensure!(resumes(&setup)? == 2.0);
    // A byte that was sent before ends the session.
    third.send(8, &[0; 8])?;
    third.close()?;
    all_gone(&setup)?;
    let says = "byte 8 of the session came instead of byte 16";
    ensure!(log(&setup).contains(says) && denied(&setup, "protocol")? == 1.0, "{}", log(&setup));
    wait_until("the end of the ticket", || {
        let said = Raw::resume(&address, &token, &ticket, received)?.err().context("it was not refused")?;
        Ok(said.contains("the session of this ticket has ended"))
    })
}

#[test]
fn an_expired_ticket_is_refused_as_such() -> Result<()> {
    let setup = Setup::start(&SESSIONS, &format!("sessions_keep_s = 1\n{CONFIG}"))?;
    let address = setup.daemon.sessions.clone();
    let first = Raw::begin(&address, "")?;
    let ticket = first.ticket;
    first.close()?;
    all_gone(&setup)?;
    wait_until("the end of the ticket", || {
        let said = Raw::resume(&address, "", &ticket, 0)?.err().context("it was not refused")?;
        Ok(said.contains("the ticket has expired: the session had no connection for more than 1 s"))
    })?;
    ensure!(metric(&setup.daemon, "atoll_cuda_sessions_expired_total")? == 1.0);
    // A session that its client ends is not kept, nor is any if the configuration says so.
    Raw::begin(&address, "")?.end(0)?;
    all_gone(&setup)?;
    let setup = Setup::start(&SESSIONS, &format!("sessions_keep_s = 0\n{CONFIG}"))?;
    Raw::begin(&setup.daemon.sessions, "")?.close()?;
    all_gone(&setup)?;
    ensure!(metric(&setup.daemon, "atoll_cuda_sessions_expired_total")? == 0.0);
    Ok(())
}

#[test]
fn an_address_has_a_limited_number_of_connections() -> Result<()> {
    let setup = Setup::start(&SESSIONS, &format!("sessions_per_address = 2\n{CONFIG}"))?;
    let address = setup.daemon.sessions.clone();
    let first = Raw::begin(&address, "")?;
    let second = Raw::begin(&address, "")?;
    let program = session_program()?;
    let output = program.command(&setup, &["--server", &address], &["table"]).output()?;
    let said = text(&output.stderr) + &text(&output.stdout);
    ensure!(said.contains("127.0.0.1 has 2 connections, the most of an address"), "{said}");
    ensure!(text(&output.stdout).starts_with("cuInit(0): CUDA_ERROR_"), "{said}");
    ensure!(denied(&setup, "connections")? == 1.0);
    first.end(0)?;
    wait_until("a place", || {
        let output = program.command(&setup, &["--server", &address], &["table"]).output()?;
        Ok(text(&output.stdout).contains("30 60 90 120"))
    })?;
    second.end(0)?;
    all_gone(&setup)
}
