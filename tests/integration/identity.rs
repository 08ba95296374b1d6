//! Tokens and certificates from a user's view: a real daemon, the command line, and signals.

use crate::control::Setup;
use crate::serve::atoll;
use anyhow::{Context, Result, bail, ensure};
use atoll_tests::http::ask;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the command line, which must succeed.
fn run(arguments: &[&str]) -> Result<String> {
    let output = Command::new(atoll()).args(arguments).env_remove("ATOLL_LOG").output()?;
    ensure!(output.status.success(), "{arguments:?}: {}", text(&output));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Creates a key that is valid for 30 days, and returns its token.
pub(crate) fn create_token(keys: &str, tenant: &str) -> Result<String> {
    run(&["auth", "create", "--auth-keys", keys, "--tenant", tenant, "--expires", "30d"])
}

/// Waits until a condition holds that a signal causes.
fn eventually(what: impl Fn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !what()? {
        ensure!(start.elapsed() < Duration::from_secs(60), "the condition did not become true in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn beyond_loopback_the_daemon_starts_only_if_it_is_said_who_may_use_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(atoll())
        .args([
            "serve",
            "--host",
            "0.0.0.0",
            "--http-port",
            "0",
            "--grpc-port",
            "0",
            "--metrics-port",
            "0",
            "--no-control",
        ])
        .arg("--model-repository")
        .arg(folder.path())
        .output()?;
    let message = text(&output);
    ensure!(output.status.code() == Some(2), "{message}");
    for says in ["0.0.0.0 without authentication", "--auth-keys", "--tls-client-ca", "--allow-anonymous"] {
        ensure!(message.contains(says), "{message}");
    }
    let setup = Setup::start(&["--host", "0.0.0.0", "--allow-anonymous"], "")?;
    let (status, answer) = ask(&setup.daemon.http, "GET", "/v2", "")?;
    ensure!(status == 200, "{answer}");
    Ok(())
}

/// Whether the daemon accepts a token.
fn takes(setup: &Setup, token: &str) -> Result<bool> {
    let output = setup.command(&["models", "--url", &setup.daemon.http]).env("ATOLL_TOKEN", token).output()?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(2) if text(&output).contains("the token is not valid") => Ok(false),
        _ => bail!("{}", text(&output)),
    }
}

#[test]
fn tokens_are_created_used_revoked_and_read_again() -> Result<()> {
    let keys = tempfile::tempdir()?;
    let path = keys.path().join("keys.json").display().to_string();
    let create = |tenant: &str| create_token(&path, tenant);
    let local = create("local")?;
    let config = format!(
        "socket_mode = 0o666\nauth_keys = \"{path}\"\n[tenant.vision]\nuids = [21001]\nmodels = []\nclass = \
        \"best-effort\""
    );
    let setup = Setup::start(&[], &config)?;
    let output = setup.command(&["models", "--url", &setup.daemon.http]).env_remove("ATOLL_TOKEN").output()?;
    ensure!(output.status.code() == Some(2) && text(&output).contains("--token-file"), "{}", text(&output));
    ensure!(takes(&setup, &local)?);
    // A new key works after a reload over the control socket; its token comes from a file.
    let vision = create("vision")?;
    ensure!(!takes(&setup, &vision)?, "the file was not read again yet");
    let output = setup.command(&["auth", "reload"]).output()?;
    ensure!(text(&output) == "2 keys can be used\n", "{}", text(&output));
    std::fs::write(setup.path("token"), format!("{vision}\n"))?;
    let from_file = ["infer", "--url", &setup.daemon.http, "--token-file", "token", "--model", "affine"];
    let output = setup.command(&from_file).env("ATOLL_TOKEN", "wrong").output()?;
    ensure!(text(&output).contains("there is no model `affine`"), "{}", text(&output));
    // `local` can call the same function, and refusals are in the account of `vision`.
    setup.client()?.deploy(&setup.path("affine.kg"), &Default::default())?;
    let invoke = ["infer", "--url", &setup.daemon.http, "--model", "affine", "--shape", "x=8", "--shape", "b=8"];
    let as_tenant = |token: &str| setup.command(&invoke).env("ATOLL_TOKEN", token).output();
    ensure!(as_tenant(&local)?.status.success(), "{}", text(&as_tenant(&local)?));
    ensure!(text(&as_tenant(&vision)?).contains("there is no model `affine`"));
    let usage = setup.json(&["usage", "--tenant", "vision"])?;
    let refused: u64 =
        usage["rows"].as_array().context("rows")?.iter().filter_map(|row| row["invocations"]["refused"].as_u64()).sum();
    ensure!(refused == 2, "{usage}");
    // An invalid file changes nothing, neither by the control socket nor by a signal.
    let good = std::fs::read(&path)?;
    std::fs::write(&path, "{}")?;
    let output = setup.command(&["auth", "reload"]).output()?;
    ensure!(output.status.code() == Some(2) && text(&output).contains("stay in force"), "{}", text(&output));
    hang_up(&setup)?;
    eventually(|| {
        let log = std::fs::read_to_string(setup.path(crate::serve::LOG))?;
        Ok(log.matches("is not a valid keys file").count() >= 2)
    })?;
    ensure!(takes(&setup, &vision)?);
    // A revocation takes effect by a signal.
    std::fs::write(&path, good)?;
    let id = vision.split('_').nth(1).context("an id")?;
    run(&["auth", "revoke", "--auth-keys", &path, id])?;
    let list = run(&["auth", "list", "--auth-keys", &path])?;
    let is_limited = ["in 29 d", "in 30 d"].iter().any(|expiry| list.contains(expiry));
    ensure!(list.contains("revoked") && is_limited && !list.contains(&vision[24..]), "{list}");
    hang_up(&setup)?;
    eventually(|| Ok(!takes(&setup, &vision)?))?;
    ensure!(takes(&setup, &local)?);
    tenants_do_not_operate(&setup)
}

fn hang_up(setup: &Setup) -> Result<()> {
    Ok(kill_process(Pid::from_child(setup.daemon.process()), Signal::HUP)?)
}

/// Only root and the daemon's own user may reload the keys.
fn tenants_do_not_operate(setup: &Setup) -> Result<()> {
    let output = setup.command(&["auth", "reload", "--tenant", "vision"]).output()?;
    ensure!(text(&output).contains("only root and the daemon's own user"), "{}", text(&output));
    if rustix::process::getuid().is_root() {
        let output = setup.command(&["auth", "reload"]).uid(21001).gid(21001).current_dir("/").output()?;
        ensure!(text(&output).contains("only root and the daemon's own user"), "{}", text(&output));
    }
    let metrics = ask(&setup.daemon.metrics, "GET", "/metrics", "")?.1;
    ensure!(!metrics.contains("atoll_denied_requests_total{reason=\"operator\"} 0\n"), "{metrics}");
    Ok(())
}

/// A certificate authority with a folder of certificates.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Result<Authority> {
        let folder = tempfile::tempdir()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key)?.pem())?;
        Ok(Authority { folder, issuer: Issuer::new(params, key) })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Result<()> {
        let mut params = CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())?;
        change(&mut params);
        let key = KeyPair::generate()?;
        std::fs::write(self.path(&format!("{name}.pem")), params.signed_by(&key, &self.issuer)?.pem())?;
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem())?;
        Ok(())
    }
}

pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_client_checks_the_daemon_and_the_daemon_the_client() -> Result<()> {
    let authority = Authority::new()?;
    authority.issue("good", &["localhost", "127.0.0.1"], |_| ())?;
    authority.issue("host", &["elsewhere.example"], |_| ())?;
    authority.issue("expired", &["127.0.0.1"], |params| params.not_after = date_time_ymd(2020, 1, 1))?;
    authority.issue("early", &["127.0.0.1"], |params| params.not_before = date_time_ymd(2900, 1, 1))?;
    authority.issue("client", &["client.example"], |_| ())?;
    let file = |name: &str| shown(&authority.path(name));
    for name in ["good", "host", "expired", "early"] {
        std::fs::copy(authority.path(&format!("{name}.pem")), authority.path("current.pem"))?;
        std::fs::copy(authority.path(&format!("{name}.key")), authority.path("current.key"))?;
        let (certificate, key, ca) = (file("current.pem"), file("current.key"), file("ca.pem"));
        let config = "[tenant.vision]\ncertificates = [\"dns:client.example\"]";
        let options = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &ca];
        let setup = Setup::start(&options, config)?;
        let url = format!("https://{}", setup.daemon.http);
        let models = |more: &[&str]| setup.command(&[&["models", "--url", &url][..], more].concat()).output();
        let (client_certificate, client_key) = (file("client.pem"), file("client.key"));
        let client = ["--tls-cert", &*client_certificate, "--tls-key", &*client_key];
        let output = models(&[&["--tls-ca", &ca][..], &client].concat())?;
        ensure!(output.status.success() == (name == "good"), "{name}: {}", text(&output));
        if name == "good" {
            ensure!(!models(&["--tls-ca", &ca])?.status.success(), "no certificate was asked for");
            ensure!(!models(&client)?.status.success(), "the system knows the authority of a test");
        }
    }
    Ok(())
}
