//! CUDA programs in sessions of a daemon on the network: TLS, tokens, certificates, and clients that
//! do not keep to the protocol.

#![cfg(target_arch = "x86_64")]

use crate::cancel::metric;
use crate::control::Setup;
use crate::cuda_resume::raw::{Raw, VERSION, entry};
use crate::cuda_sessions::{CONFIG, Program, all_gone, first_round, kill, log, same, session_program, text};
use crate::executors::wait_until;
use crate::identity::{Authority, create_token, shown};
use anyhow::{Context, Result, ensure};
use atoll_tests::root;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A daemon with sessions over TLS, and clients that it knows.
struct Network {
    setup: Setup,
    authority: Authority,
    keys: tempfile::TempDir,
}

impl Network {
    fn start() -> Result<Network> {
        let (authority, keys) = (Authority::new()?, tempfile::tempdir()?);
        authority.issue("server", &["localhost", "127.0.0.1"], |_| ())?;
        authority.issue("client", &["client.example"], |_| ())?;
        authority.issue("unlisted", &["unlisted.example"], |_| ())?;
        let file = |name: &str| shown(&authority.path(name));
        for tenant in ["team", "small", "slow"] {
            let token = create_token(&shown(&keys.path().join("keys.json")), tenant)?;
            std::fs::write(keys.path().join(tenant), token)?;
        }
        let keys_file = shown(&keys.path().join("keys.json"));
        let config = format!(
            "auth_keys = \"{keys_file}\"\nsessions_keep_s = 1\n{CONFIG}[tenant.certified]\n\
             certificates = [\"dns:client.example\"]\n"
        );
        let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
        let options = ["--sessions", "127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
        let setup = Setup::start(&[&options[..], &["--tls-client-ca", &ca]].concat(), &config)?;
        Ok(Network { setup, authority, keys })
    }

    fn file(&self, name: &str) -> String {
        shown(&self.authority.path(name))
    }

    fn token(&self, tenant: &str) -> String {
        shown(&self.keys.path().join(tenant))
    }

    /// Options of `atoll run` for a client with this token.
    fn options(&self, tenant: &str) -> Vec<String> {
        let (address, ca) = (self.setup.daemon.sessions.clone(), self.file("ca.pem"));
        ["--server", &address, "--tls-ca", &ca, "--token-file", &self.token(tenant)].map(str::to_owned).into()
    }

    fn command(&self, program: &Program, options: &[String], arguments: &[&str]) -> Command {
        let mut command = program.command(&self.setup, &as_texts(options), arguments);
        command.env_remove("ATOLL_TOKEN");
        command
    }

    fn run(&self, program: &Program, options: &[String], arguments: &[&str]) -> Result<Output> {
        Ok(self.command(program, options, arguments).output()?)
    }

    fn revoke(&self, tenant: &str) -> Result<()> {
        let token = std::fs::read_to_string(self.token(tenant))?;
        let id = token.split('_').nth(1).context("an id")?.to_owned();
        let keys = shown(&self.keys.path().join("keys.json"));
        for arguments in [&["auth", "revoke", "--auth-keys", &keys, &id][..], &["auth", "reload"]] {
            let output = self.setup.command(arguments).output()?;
            ensure!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        }
        Ok(())
    }

    fn denied(&self, reason: &str) -> Result<f64> {
        metric(&self.setup.daemon, &format!("atoll_denied_requests_total{{reason=\"{reason}\"}}"))
    }

    fn closed(&self, reason: &str) -> Result<f64> {
        metric(&self.setup.daemon, &format!("atoll_connections_closed_total{{reason=\"{reason}\"}}"))
    }

    /// A session works, and leaves nothing.
    fn works(&self, program: &Program) -> Result<()> {
        let output = self.run(program, &self.options("team"), &["table"])?;
        let said = || format!("{}\n{}", text(&output.stderr), log(&self.setup));
        ensure!(text(&output.stdout).contains("30 60 90 120"), "{}", said());
        all_gone(&self.setup)
    }
}

fn as_texts(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[test]
fn programs_on_other_machines_do_what_local_ones_do() -> Result<()> {
    let network = Network::start()?;
    let programs = Program::compile(&root().join("runtime/interpose/tests/programs/main.c"))?;
    let own = session_program()?;
    let by_token = network.options("team");
    for arguments in [&["loop", "50"][..], &["streams"], &["threads"]] {
        same(&network.setup, &programs, &as_texts(&by_token), arguments)?;
    }
    let storing = [&as_texts(&by_token)[..], &["--stored-functions"]].concat();
    same(&network.setup, &programs, &storing, &["loop", "50"])?;
    ensure!(metric(&network.setup.daemon, "atoll_cuda_stored_calls_total")? == 45.0);
    let output = network.run(&programs, &by_token, &["fork"])?;
    ensure!(text(&output.stdout) == "child 42, parent 7\n", "{}\n{}", text(&output.stdout), text(&output.stderr));
    for arguments in [&["table"][..], &["flood", "2"], &["wild"]] {
        same(&network.setup, &own, &as_texts(&by_token), arguments)?;
    }
    // A certificate instead of a token, and a token in the environment, which the program does not
    // see.
    let (ca, certificate, key) = (network.file("ca.pem"), network.file("client.pem"), network.file("client.key"));
    let server = ["--server", &network.setup.daemon.sessions, "--tls-ca", &ca];
    let by_certificate = [&server[..], &["--tls-cert", &certificate, "--tls-key", &key]].concat();
    same(&network.setup, &own, &by_certificate, &["table"])?;
    let token = std::fs::read_to_string(network.token("team"))?;
    let mut command = own.command(&network.setup, &server, &["table"]);
    ensure!(text(&command.env("ATOLL_TOKEN", &token).output()?.stdout).contains("30 60 90 120"));
    let mut command = network.setup.command(&[&["run"], &server[..], &["--", "printenv", "ATOLL_TOKEN"]].concat());
    ensure!(command.env("ATOLL_TOKEN", &token).output()?.stdout.is_empty());
    all_gone(&network.setup)?;
    for tenant in ["team", "certified"] {
        let usage = network.setup.json(&["usage", "--tenant", tenant])?;
        let rows = usage["rows"].as_array().context("rows")?;
        let billed: f64 = rows.iter().filter_map(|row| row["device_s"].as_f64()).sum();
        ensure!(billed > 0.0, "{tenant} is billed: {usage}");
    }
    Ok(())
}

#[test]
fn clients_that_the_daemon_does_not_know_are_refused_and_told_why() -> Result<()> {
    let network = Network::start()?;
    let program = session_program()?;
    let other = Authority::new()?;
    std::fs::write(network.keys.path().join("wrong"), format!("atoll_{}_{}", "0".repeat(16), "0".repeat(64)))?;
    network.revoke("slow")?;
    let server = ["--server", &network.setup.daemon.sessions].map(str::to_owned);
    let with = |more: &[&str]| [&server[..], &more.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()].concat();
    let (ca, other_ca) = (network.file("ca.pem"), shown(&other.path("ca.pem")));
    let (certificate, key) = (network.file("unlisted.pem"), network.file("unlisted.key"));
    let token = network.token("team");
    let of_other_tenant = [network.options("team"), vec!["--tenant".into(), "other".into()]].concat();
    for (options, says, reason) in [
        (with(&["--tls-ca", &ca]), "this daemon requires authentication", "no_credentials"),
        (network.options("wrong"), "the token is not valid", "bad_token"),
        (network.options("slow"), "the token is not valid", "bad_token"),
        (
            with(&["--tls-ca", &ca, "--tls-cert", &certificate, "--tls-key", &key]),
            "assigned to no tenant",
            "unknown_certificate",
        ),
        (with(&["--tls-ca", &other_ca, "--token-file", &token]), "invalid peer certificate", "handshake"),
        (with(&["--token-file", &token]), "no session of the daemon at", "handshake"),
        (of_other_tenant, "this client may act for tenant `team` only", "user"),
    ] {
        let before = network.denied(reason)?;
        let output = network.run(&program, &options, &["table"])?;
        let said = text(&output.stderr) + &text(&output.stdout);
        ensure!(output.status.code() == Some(1) && said.contains(says), "{options:?}: {said}");
        ensure!(text(&output.stdout).starts_with("cuInit(0): CUDA_ERROR_"), "{options:?}: {said}");
        ensure!(!said.contains(&"0".repeat(64)), "{said}");
        wait_until("a count", || Ok(network.denied(reason)? > before)).context(reason)?;
    }
    let logged = log(&network.setup);
    for says in ["a CUDA session is refused", "the TLS handshake of a CUDA session failed"] {
        ensure!(logged.contains(says), "{logged}");
    }
    // What a tenant may not do is refused as on the control socket.
    let options = [network.options("small"), vec!["--memory-mib".into(), "64".into()]].concat();
    let output = network.run(&program, &options, &["table"])?;
    ensure!(text(&output.stderr).contains("OUT_OF_MEMORY") || text(&output.stdout).contains("OUT_OF_MEMORY"));
    let output = network.run(&program, &["--server".into(), "127.0.0.1:1".into()], &["table"])?;
    ensure!(text(&output.stdout).starts_with("cuInit(0): CUDA_ERROR_NO_DEVICE"), "{}", text(&output.stdout));
    network.works(&program)
}

#[test]
fn clients_that_do_not_keep_to_the_protocol_disturb_no_others() -> Result<()> {
    let keys = tempfile::tempdir()?;
    let keys_file = shown(&keys.path().join("keys.json"));
    let token = create_token(&keys_file, "team")?;
    let setup = Setup::start(&["--sessions", "127.0.0.1:0", "--auth-keys", &keys_file], CONFIG)?;
    let program = session_program()?;
    let metric = |name: &str, reason: &str| metric(&setup.daemon, &format!("{name}{{reason=\"{reason}\"}}"));
    let denied = |reason: &str| metric("atoll_denied_requests_total", reason);
    let connect = || -> Result<TcpStream> {
        let stream = TcpStream::connect(&setup.daemon.sessions)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    };
    let answer = |bytes: &[u8]| -> Result<String> {
        let mut stream = connect()?;
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(text(&answer))
    };
    // Half an entry, half a greeting, and nothing, which the daemon closes later.
    let whole = entry(VERSION, &token);
    let silent = [&whole[..5], &whole[..whole.len() - 1], &[]].map(|part| -> Result<TcpStream> {
        let mut stream = connect()?;
        stream.write_all(part)?;
        Ok(stream)
    });
    let said = answer(&entry(99, &token))?;
    ensure!(said.contains(&format!("the client speaks version 99, the server {VERSION}")), "{said}");
    let said = answer(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    ensure!(said.contains("this is no client of sessions over the network"), "{said}");
    let long = [b"ATOLLNET".as_slice(), &VERSION.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
    ensure!(answer(&long)?.contains("the size of a token is 4294967295"));
    ensure!(denied("protocol")? == 3.0, "{}", log(&setup));
    ensure!(answer(&entry(VERSION, "x"))?.contains("the token is not valid"));
    ensure!(denied("bad_token")? == 1.0);
    // A session whose messages are none, and one whose client leaves in the middle of a message.
    for records in [&[0xff; 64][..], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7]] {
        let mut client = Raw::begin(&setup.daemon.sessions, &token).with_context(|| log(&setup))?;
        client.send(0, records)?;
        client.end(records.len() as u64)?;
    }
    all_gone(&setup)?;
    for says in ["the kind of a message is 4294967295", "the client left after 1 of 256 bytes of a message"] {
        ensure!(log(&setup).contains(says), "{}", log(&setup));
    }
    let options = ["--server", &setup.daemon.sessions];
    let mut command = program.command(&setup, &options, &["table"]);
    let output = command.env("ATOLL_TOKEN", &token).output()?;
    ensure!(text(&output.stdout).contains("30 60 90 120"), "{}\n{}", text(&output.stderr), log(&setup));
    // Both halves are closed for their slowness. The silent connection may stay for longer.
    wait_until("slow heads", || Ok(metric("atoll_connections_closed_total", "slow_head")? >= 2.0))?;
    for half in silent.into_iter().take(2) {
        ensure!(half?.read_to_end(&mut Vec::new()).is_ok_and(|count| count == 0));
    }
    all_gone(&setup)
}

#[test]
fn handshakes_that_do_not_end_are_closed() -> Result<()> {
    let network = Network::start()?;
    let program = session_program()?;
    let mut half = TcpStream::connect(&network.setup.daemon.sessions)?;
    half.set_read_timeout(Some(Duration::from_secs(60)))?;
    // The head of a record of TLS that announces more bytes.
    half.write_all(&[22, 3, 1, 2, 0, 1])?;
    network.works(&program)?;
    ensure!(half.read(&mut [0; 64]).is_ok_and(|count| count == 0), "the daemon has closed it");
    wait_until("a slow handshake", || Ok(network.closed("slow_handshake")? >= 1.0))?;
    network.works(&program)
}

#[test]
fn lost_clients_and_revoked_tokens_give_everything_back() -> Result<()> {
    let network = Network::start()?;
    let program = session_program()?;
    let flood = |tenant: &str| {
        let mut command = network.command(&program, &network.options(tenant), &["flood", "1000000"]);
        first_round(&network.setup, command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    // The program dies in a flush.
    kill(flood("team")?.0)?;
    all_gone(&network.setup)?;
    // The process that has the connection dies; the program gets an error, and ends by itself.
    let (mut run, mut output) = flood("team")?;
    run.kill()?;
    run.wait()?;
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    ensure!(rest.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{rest}");
    all_gone(&network.setup)?;
    // A token that is revoked ends the sessions that began with it, and no others.
    let (mut lost, mut output) = flood("slow")?;
    let (kept, _kept_output) = flood("team")?;
    network.revoke("slow")?;
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    ensure!(rest.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{rest}");
    ensure!(lost.wait()?.code() == Some(1));
    wait_until("one session", || Ok(metric(&network.setup.daemon, "atoll_cuda_sessions")? == 1.0))?;
    ensure!(network.denied("bad_token")? == 1.0);
    ensure!(log(&network.setup).contains("the token of a CUDA session was withdrawn"), "{}", log(&network.setup));
    kill(kept)?;
    all_gone(&network.setup)?;
    network.works(&program)
}

#[test]
fn beyond_loopback_sessions_need_tls_and_credentials() -> Result<()> {
    let refused = |options: &[&str], says: &[&str]| -> Result<()> {
        let error = Setup::start(options, "").err().context("the daemon started")?.to_string();
        ensure!(says.iter().all(|part| error.contains(part)), "{error}");
        Ok(())
    };
    let everywhere = ["--sessions", "0.0.0.0:0"];
    refused(&everywhere, &["0.0.0.0:0 would send tokens and data unencrypted", "--sessions-plain"])?;
    let plain = [&everywhere[..], &["--sessions-plain"]].concat();
    refused(&plain, &["cannot listen on 0.0.0.0 without authentication", "--auth-keys"])?;
    let setup = Setup::start(&[&plain[..], &["--allow-anonymous"]].concat(), "")?;
    let port = setup.daemon.sessions.rsplit_once(':').context("a port")?.1;
    let program = session_program()?;
    let address = format!("localhost:{port}");
    let output = program.command(&setup, &["--server", &address], &["table"]).env_remove("ATOLL_TOKEN").output()?;
    ensure!(text(&output.stdout).contains("30 60 90 120"), "{}\n{}", text(&output.stderr), log(&setup));
    all_gone(&setup)
}
