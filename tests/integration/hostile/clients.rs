//! Clients that hold connections and memory, flood queues, and send what servers read differently.

use super::{AFFINE, URGENT, beside, post, start};
use crate::cancel::metric;
use crate::control::Setup;
use crate::executors::wait_until;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::Deploy;
use atoll_hostile_client::hold::{HALF_A_HEAD, HEALTH, body_that_does_not_end, keep_alive, open, trickle};
use atoll_hostile_client::http1::{answers, half_closed, smuggled};
use atoll_hostile_client::http2::{Flood, Held, Lasting, is_live};
use atoll_tests::http::ask;
use atoll_tests::{full, measured};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Connections that were closed, by reason.
fn closed(setup: &Setup, reason: &str) -> Result<f64> {
    metric(&setup.daemon, &format!("atoll_connections_closed_total{{reason=\"{reason}\"}}"))
}

/// Descriptors and resident bytes of the daemon.
fn held(setup: &Setup) -> Result<(usize, u64)> {
    let process = format!("/proc/{}", setup.daemon.process().id());
    let status = std::fs::read_to_string(format!("{process}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("its resident memory")?;
    let resident: u64 = resident.trim().trim_end_matches("kB").trim().parse()?;
    Ok((std::fs::read_dir(format!("{process}/fd"))?.count(), resident << 10))
}

/// If the daemon reserved the declared lengths, the bodies would take all its memory for bodies.
#[test]
fn declared_bodies_and_silent_connections_take_nothing_from_others() -> Result<()> {
    let setup = start(&[], "")?;
    let before = held(&setup)?.1;
    beside("silent connections", &setup, |others| {
        let (bodies, rest) = if full() { (1_000, 3_000) } else { (64, 300) };
        let mut bodies = open(&setup.daemon.http, bodies, &body_that_does_not_end(AFFINE, 128 << 20))?;
        let idle = open(&setup.daemon.http, rest, b"")?;
        let slow = open(&setup.daemon.http, rest, HALF_A_HEAD)?;
        others.go_on(10)?;
        // The control socket also answers.
        setup.client_of("other")?.deploy(&setup.path("affine.kg"), &Deploy::default())?;
        let (descriptors, resident) = held(&setup)?;
        measured(&format!("silent connections: {descriptors} descriptors, {} MiB more", (resident - before) >> 20));
        ensure!(resident < before + (512 << 20), "{resident} bytes are resident, {before} before");
        // Connections with slow heads are closed, and counted under that reason.
        wait_until("slow heads are cut off", || Ok(closed(&setup, "slow_head")? >= slow.len() as f64))?;
        // In short runs `a_body_that_pauses_is_refused` checks the answer, with a shorter pause.
        for body in bodies.iter_mut().filter(|_| full()) {
            let mut answer = String::new();
            body.read_to_string(&mut answer).ok();
            ensure!(answer.starts_with("HTTP/1.1 408") && answer.contains("paused for 10 seconds"), "{answer}");
        }
        drop(idle);
        Ok(())
    })
}

/// A daemon with few places for connections on each port, and their number.
fn start_with_few_places() -> Result<(Setup, usize)> {
    let mut setup = start(&[], "")?;
    setup.daemon.signal(Signal::KILL)?;
    let (options, files) = (["--memory-limit", "256M"], 512);
    setup.daemon = Daemon::start_with_files(&setup.path("repository"), &setup.path(""), &options, files)?;
    // A quarter of its descriptors are places for connections.
    Ok((setup, files as usize / 4))
}

/// All places of the port are taken by requests whose bodies arrive byte by byte. They make room.
#[test]
fn requests_whose_bodies_hardly_arrive_give_their_places_to_others() -> Result<()> {
    let (setup, places) = start_with_few_places()?;
    beside("bodies that arrive byte by byte", &setup, |others| {
        let over = AtomicBool::new(false);
        let mut bodies = open(&setup.daemon.http, places + 50, &body_that_does_not_end(AFFINE, 1 << 20))?;
        std::thread::scope(|scope| -> Result<()> {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    trickle(&mut bodies);
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
            let done = others.go_on(10);
            over.store(true, Relaxed);
            done
        })?;
        ensure!(closed(&setup, "made_room")? >= 50.0);
        Ok(())
    })
}

/// All places of the gRPC port are taken by requests that their clients keep from ending.
#[test]
fn requests_over_grpc_that_hardly_move_give_their_places_to_others() -> Result<()> {
    let (setup, places) = start_with_few_places()?;
    // Each connection beyond the places takes up to a second, until another one makes room for it.
    let beyond = if full() { 50 } else { 8 };
    beside("gRPC requests that hardly move", &setup, |others| {
        for kind in Lasting::ALL {
            let made_room = closed(&setup, "made_room")?;
            let over = AtomicBool::new(false);
            let held: Result<Vec<_>, _> = (0..places + beyond).map(|_| kind.open(&setup.daemon.grpc, 1)).collect();
            let mut held = held?;
            std::thread::scope(|scope| -> Result<()> {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        held.retain_mut(Held::trickle);
                        std::thread::sleep(Duration::from_millis(500));
                    }
                });
                let asked = (0..5).try_for_each(|_| is_live(&setup.daemon.grpc).with_context(|| format!("{kind:?}")));
                let done = asked.and_then(|()| others.go_on(3));
                over.store(true, Relaxed);
                done
            })?;
            let made_room = closed(&setup, "made_room")? - made_room;
            measured(&format!("{kind:?}: {made_room} connections made room"));
            ensure!(made_room >= beyond as f64, "{kind:?}: {made_room} connections made room");
        }
        Ok(())
    })
}

/// A full run has 2,000 clients that keep their connections, 1,000 idle ones and 100 slow ones.
#[test]
fn every_request_of_well_behaved_clients_is_answered_beside_idle_and_slow_ones() -> Result<()> {
    let setup = start(&[], "")?;
    let (clients, idle, slow, rounds) = if full() { (2_000, 1_000, 100, 5) } else { (200, 200, 50, 2) };
    let (descriptors_before, resident_before) = held(&setup)?;
    beside("many clients", &setup, |_| {
        let idle = open(&setup.daemon.http, idle, b"")?;
        let slow = open(&setup.daemon.http, slow, HALF_A_HEAD)?;
        let request = post(AFFINE, URGENT);
        let totals = std::thread::scope(|scope| {
            let address = &setup.daemon.http;
            let parts: Vec<_> = [HEALTH, &request, HEALTH, HEALTH]
                .into_iter()
                .map(|request| scope.spawn(move || keep_alive(address, clients / 4, rounds, request)))
                .collect();
            parts.into_iter().map(|part| part.join().expect("no panic")).collect::<Vec<_>>()
        });
        let failures: Vec<&String> = totals.iter().flat_map(|part| &part.failures).collect();
        let answered: usize = totals.iter().map(|part| part.answered).sum();
        ensure!(failures.is_empty() && answered == clients * rounds, "{answered} were answered: {failures:?}");
        let longest = totals.iter().flat_map(|part| &part.times).max().context("a time")?;
        let (descriptors, resident) = held(&setup)?;
        measured(&format!(
            "{answered} requests of {clients} clients, the longest {longest:?}; {descriptors} descriptors"
        ));
        // The clients of this test, and 100 more for those of `beside` and for what the daemon
        // opens for itself.
        let most = descriptors_before + clients + idle.len() + slow.len() + 100;
        ensure!(descriptors <= most, "{descriptors} descriptors, at most {most}");
        ensure!(resident < resident_before + (256 << 20), "{resident} bytes are resident, {resident_before} before");
        Ok(())
    })
}

#[test]
fn ambiguous_requests_are_refused_and_what_they_hide_is_not_answered() -> Result<()> {
    let setup = start(&[], "")?;
    beside("ambiguous requests", &setup, |others| {
        let requests = smuggled("/v2/repository/index", "/v2/health/live");
        std::thread::scope(|scope| -> Result<()> {
            let asked: Vec<_> = requests
                .iter()
                .map(|request| (request.name, scope.spawn(|| answers(&setup.daemon.http, &request.bytes))))
                .collect();
            for (name, answered) in asked {
                let statuses = answered.join().expect("no panic").with_context(|| name)?;
                ensure!(statuses.len() == 1, "{name}: {statuses:?}");
            }
            Ok(())
        })?;
        // A client that closes its half of the connection cancels its request, unless it was
        // already answered.
        if let Ok(status) = half_closed(&setup.daemon.http, HEALTH) {
            ensure!(status == 200, "{status}");
        }
        others.go_on(3)
    })
}

#[test]
fn floods_of_frames_end_their_connection() -> Result<()> {
    let setup = start(&[], "")?;
    // More than the buffers of a connection hold.
    let frames = if full() { 1_000_000 } else { 200_000 };
    let before = held(&setup)?.1;
    beside("floods of HTTP/2 frames", &setup, |others| {
        for flood in Flood::ALL {
            let end = flood.run(&setup.daemon.grpc, frames)?;
            measured(&format!("{flood:?}: {end:?}"));
            if flood.is_ended() {
                // The server may close before its last frame is read.
                ensure!(end.sent < frames || end.goaway.is_some_and(|code| code != 0), "{flood:?}: {end:?}");
            }
            is_live(&setup.daemon.grpc)?;
            others.go_on(3)?;
        }
        let resident = held(&setup)?.1;
        ensure!(resident < before + (256 << 20), "{resident} bytes are resident, {before} before");
        Ok(())
    })
}

/// Each connection has as many silent streams as it may have. Beyond the number that the port may
/// have, connections get only a few, and others are served.
#[test]
fn silent_streams_of_many_connections_leave_streams_for_others() -> Result<()> {
    let setup = start(&[], "")?;
    let before = held(&setup)?.1;
    let denied = || metric(&setup.daemon, "atoll_denied_requests_total{reason=\"streams\"}");
    beside("silent streams", &setup, |others| {
        // 16 connections have all streams of the port.
        let held_open: Result<Vec<_>, _> =
            (0..17).map(|_| Lasting::SilentStream.open(&setup.daemon.grpc, 1024)).collect();
        let mut held_open = held_open?;
        wait_until("streams are refused", || Ok(denied()? >= 1.0))?;
        for _ in 0..5 {
            is_live(&setup.daemon.grpc)?;
        }
        others.go_on(3)?;
        let resident = held(&setup)?.1;
        measured(&format!("{} MiB for the streams", resident.saturating_sub(before) >> 20));
        ensure!(resident < before + (1 << 30), "{resident} bytes are resident, {before} before");
        held_open.retain_mut(Held::trickle);
        Ok(())
    })
}

#[test]
fn best_effort_requests_leave_places_for_real_time_requests_of_their_model() -> Result<()> {
    let setup = start(&["--queue-capacity", "4"], "")?;
    let body = URGENT.replace("\"priority\": 1", "\"priority\": 2");
    let stop = AtomicBool::new(false);
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let floods: Vec<_> = (0..if full() { 64 } else { 16 })
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while !stop.load(Relaxed) {
                        let (status, answer) = ask(&setup.daemon.http, "POST", AFFINE, &body)?;
                        ensure!(status == 200 || (status == 503 && answer.contains("queue")), "{status}: {answer}");
                        refused.fetch_add(usize::from(status == 503), Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        // The work of `beside` includes real-time requests to the same model.
        let done = beside("a queue of best-effort requests", &setup, |others| {
            wait_until("the queue is full", || Ok(refused.load(Relaxed) > 0))?;
            others.go_on(20)
        });
        stop.store(true, Relaxed);
        floods.into_iter().try_for_each(|flood| flood.join().expect("no panic"))?;
        done
    })?;
    let rejected = metric(&setup.daemon, "atoll_rejected_requests_total{model=\"affine\",version=\"1\"}")?;
    ensure!(rejected >= 1.0, "{rejected}");
    Ok(())
}

/// Requests as a browser sends them for a page of another site, or for a site whose name resolves
/// to this address (DNS rebinding).
#[test]
fn web_pages_of_other_sites_drive_nothing() -> Result<()> {
    let setup = start(&[], "")?;
    let denied = |reason: &str| metric(&setup.daemon, &format!("atoll_denied_requests_total{{reason=\"{reason}\"}}"));
    let unload = "POST /v2/repository/models/affine/unload HTTP/1.1\r\nContent-Length: 0\r\n";
    for (reason, headers, says) in [
        ("origin", "Host: localhost\r\nOrigin: https://evil.example", "--allow-origin"),
        ("host", "Host: evil.example", "--allow-host"),
    ] {
        let before = denied(reason)?;
        let mut stream = atoll_hostile_client::connect(&setup.daemon.http)?;
        write!(stream, "{unload}{headers}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 403") && answer.contains(says), "{answer}");
        ensure!(denied(reason)? == before + 1.0, "{reason}");
    }
    super::ask(&setup.daemon.http, &post(AFFINE, URGENT))
}
