//! Peers of the control socket that hold descriptors and places, and bundles of zeros.

use super::{beside, start};
use crate::cancel::metric;
use crate::control::{Setup, refusal};
use anyhow::{Context, Result, ensure};
use atoll_client::{Deploy, RefusalKind};
use atoll_tests::{full, program, skip};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A user without rights. The daemon identifies it by the peer credentials of its connection.
const OTHER_USER: u32 = 65534;

/// Most descriptors in frames of one user: `CONTROL_FILES_PER_USER_MAX`.
const FILES_OF_USER: usize = 1024;

/// Most connections of one user: `CONTROL_CONNECTIONS_PER_USER_MAX`.
const CONNECTIONS_OF_USER: usize = 256;

fn denied(setup: &Setup, reason: &str) -> Result<f64> {
    metric(&setup.daemon, &format!("atoll_denied_requests_total{{reason=\"{reason}\"}}"))
}

fn descriptors(setup: &Setup) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", setup.daemon.process().id()))?.count())
}

/// A process of another user that holds half-sent frames, or silent connections. Returns how many
/// connections the daemon kept, and what it said about the others.
fn hold(setup: &Setup, connections: usize, files: usize) -> Result<(Holder, usize, Vec<String>)> {
    hold_as(OTHER_USER, setup, connections, files)
}

fn hold_as(uid: u32, setup: &Setup, connections: usize, files: usize) -> Result<(Holder, usize, Vec<String>)> {
    let mut child = Command::new(program("hostile_client"))
        .arg(setup.path("atoll.sock"))
        .args([connections.to_string(), files.to_string()])
        .uid(uid)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("hostile_client, in a folder that other users can enter")?;
    let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    let told: Vec<String> =
        lines.take_while(|line| !line.as_ref().is_ok_and(|line| line == "end")).collect::<Result<_, _>>()?;
    let (kept, refusals) = told.split_first().context("a number")?;
    Ok((Holder(child), kept.parse()?, refusals.to_vec()))
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn half_sent_frames_hold_few_descriptors_and_places_of_one_user_only() -> Result<()> {
    if !rustix::process::getuid().is_root() {
        skip("only root can become another user");
        return Ok(());
    }
    let setup = start(&[], "socket_mode = 0o666\n[tenant.other]\nuids = [65534]\n")?;
    beside("half-sent frames", &setup, |others| {
        let before = descriptors(&setup)?;
        let (holder, kept, refusals) = hold(&setup, 100, 128)?;
        let held = descriptors(&setup)?;
        ensure!(kept <= FILES_OF_USER / 128 && kept + refusals.len() == 100, "{kept} were kept: {refusals:?}");
        ensure!(held < before + FILES_OF_USER + 150, "{held} descriptors, {before} before");
        let says = "the requests of this user have";
        ensure!(refusals.iter().all(|text| text.contains(says) && text.contains("the limit is 1024")), "{refusals:?}");
        ensure!(denied(&setup, "files")? == refusals.len() as f64);
        others.go_on(5)?;
        drop(holder);
        // More connections of the same user than one user may have.
        let (_holder, kept, refusals) = hold(&setup, CONNECTIONS_OF_USER + 10, 1)?;
        ensure!(kept <= CONNECTIONS_OF_USER && refusals.len() >= 10, "{kept} were kept");
        ensure!(refusals.iter().all(|text| text.contains("already has 256 open control connections")), "{refusals:?}");
        ensure!(denied(&setup, "connections")? == refusals.len() as f64);
        others.go_on(5)
    })
}

/// Users hold all places of the control socket with connections on which they send nothing. Others
/// still get one, and so does root.
#[test]
fn connections_that_hold_all_places_of_the_control_socket_make_room() -> Result<()> {
    if !rustix::process::getuid().is_root() {
        skip("only root can become another user");
        return Ok(());
    }
    let setup = start(&[], "socket_mode = 0o666\nallow_unknown = true\n")?;
    let made_room = || metric(&setup.daemon, "atoll_connections_closed_total{reason=\"made_room\"}");
    beside("a full control socket", &setup, |others| {
        let mut holders = Vec::new();
        for user in 0..4 {
            let (holder, kept, refusals) = hold_as(OTHER_USER - user, &setup, CONNECTIONS_OF_USER, 0)?;
            ensure!(kept + refusals.len() == CONNECTIONS_OF_USER, "{kept} were kept: {refusals:?}");
            let says = "closed since it waited longest";
            ensure!(refusals.iter().all(|text| text.contains(says)), "{refusals:?}");
            holders.push(holder);
        }
        // Their places are 992, which is 32 less than all, and the first holders have some more.
        let before = made_room()?;
        ensure!(before >= 32.0, "{before} connections made room");
        let (_late, kept, refusals) = hold_as(OTHER_USER - 4, &setup, 5, 0)?;
        ensure!(kept == 5, "{refusals:?}");
        ensure!(made_room()? >= before + 5.0);
        // The test's own user operates the daemon.
        setup.json(&["ps"])?;
        others.go_on(5)
    })
}

#[test]
fn a_bundle_of_zeros_is_refused_before_anything_is_written() -> Result<()> {
    let setup = start(&[], "")?;
    let bytes = if full() { 3 << 30 } else { 64 << 20 };
    let zeros = setup.path("zeros.kg");
    std::fs::File::create(&zeros)?.set_len(bytes)?;
    beside("a bundle of zeros", &setup, |others| {
        let state = setup.path("atoll");
        let before = crate::quotas::files(&state)?;
        for _ in 0..3 {
            let (kind, message) = refusal(setup.client_of("zero")?.deploy(&zeros, &Deploy::default()))?;
            ensure!(kind == RefusalKind::BadRequest && message.contains("not a usable bundle"), "{kind:?}: {message}");
            ensure!(crate::quotas::files(&state)? == before, "nothing is written");
        }
        others.go_on(3)
    })
}
