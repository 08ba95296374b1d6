//! Traces and `top`: what a daemon reports about its activity.

use crate::control::Setup;
use crate::functions::pack_grind;
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, DataType, Deploy, Tensor};
use atoll_core::Class;
use atoll_tests::chaos::grind;
use atoll_tests::{python, root, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A tenant `local` with a real-time `affine`, and a tenant `team` with `grind`.
fn start() -> Result<Setup> {
    let setup = Setup::start(&[], "")?;
    let urgent = Deploy { class: Some(Class::RealTime), ..Deploy::default() };
    setup.client()?.deploy(&setup.path("affine.kg"), &urgent)?;
    setup.client_of("team")?.deploy(&pack_grind(&setup.path(""), 1)?, &Deploy::default())?;
    Ok(setup)
}

fn call_affine(client: &mut Client) -> Result<()> {
    let tensor = || Tensor::f32(&[1000], &[1.0; 1000]);
    client.invoke(Call::of("affine").input("x", tensor()).input("b", tensor()))?;
    Ok(())
}

fn call_grind(client: &mut Client, times: u32) -> Result<()> {
    let vector = |values: &[u32]| Tensor {
        datatype: DataType::Uint32,
        shape: vec![values.len() as i64],
        bytes: grind::bytes(values),
    };
    client.invoke(Call::of("grind").input("x", vector(&[7; 4096])).input("times", vector(&[times])))?;
    Ok(())
}

/// Runs `act` while both functions are called continuously.
fn under_load<T>(setup: &Setup, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let (mut urgent, mut best_effort, over) = (setup.client()?, setup.client_of("team")?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let fast = scope.spawn(|| {
            while !over.load(Relaxed) {
                call_affine(&mut urgent)?;
                std::thread::sleep(Duration::from_millis(3));
            }
            anyhow::Ok(())
        });
        let slow = scope.spawn(|| {
            while !over.load(Relaxed) {
                call_grind(&mut best_effort, 100_000)?;
            }
            anyhow::Ok(())
        });
        let done = act();
        over.store(true, Relaxed);
        fast.join().expect("no panic")?;
        slow.join().expect("no panic")?;
        done
    })
}

/// The tracks of a file by group and name, read with Perfetto's definitions, and the number of
/// requests linked to launches.
fn read(file: &Path) -> Result<(BTreeMap<String, Value>, u64)> {
    let output = Command::new(python()).arg(root().join("tests/python/trace.py")).arg(file).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut answer: Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tracks = answer["tracks"].take().as_array().context("tracks")?.clone();
    let named = tracks.into_iter().map(|track| (format!("{}/{}", text(&track["group"]), text(&track["name"])), track));
    Ok((named.collect(), answer["joined"].as_u64().context("a number")?))
}

fn count(value: &Value) -> u64 {
    value.as_object().map_or(0, |counts| counts.values().filter_map(Value::as_u64).sum())
}

#[test]
fn a_trace_shows_activity_and_decisions() -> Result<()> {
    let setup = start()?;
    let summary = under_load(&setup, || setup.json(&["trace", "record", "--seconds", "1", "-o", "all.pftrace"]))?;
    let number = |name: &str| summary[name].as_u64().unwrap_or_default();
    ensure!(
        number("requests") > 10 && number("launches") >= number("requests") && number("chunks") >= number("launches"),
        "{summary}"
    );
    ensure!(number("lost_records") == 0 && number("lost_chunks") == 0 && number("preemptions") > 0, "{summary}");
    ensure!(summary["functions"] == serde_json::json!(["local/affine", "team/grind"]), "{summary}");

    let (tracks, joined) = read(&setup.path("all.pftrace"))?;
    let track = |name: &str| tracks.get(name).with_context(|| format!("no track `{name}` among {:?}", tracks.keys()));
    ensure!(joined > 10, "arrows lead from requests to launches: {joined}");
    let slices = |prefix: &str| {
        tracks
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, track)| count(&track["slices"]))
            .sum::<u64>()
    };
    ensure!(slices("compute units/compute unit ") == number("chunks"));
    ensure!(slices("device queues/queue ") == number("launches"));
    ensure!(track("scheduler/decisions")?["marks"]["preempt"].as_u64() == Some(number("preemptions")));
    ensure!(count(&track("scheduler/mode")?["slices"]) > 10, "real-time mode comes and goes");
    for name in
        ["device queues/queue 0 of local", "device queues/queue 1 of team", "requests/affine", "requests/team/grind"]
    {
        ensure!(count(&track(name)?["slices"]) > 0, "{name}");
    }
    ensure!(track("requests/affine")?["depth"].as_u64() == Some(2), "requests have phases");
    ensure!(slices("compute units/compute unit 0 of local") > 0 && slices("compute units/compute unit 0 of team") > 0);
    ensure!(track("device queues/launches in queue 1")?["counter"].as_u64() > Some(10));
    Ok(())
}

#[test]
fn a_tenant_sees_its_own_work_only() -> Result<()> {
    let setup = start()?;
    let summary = under_load(&setup, || {
        setup.json(&["trace", "record", "--seconds", "0.5", "-o", "own.pftrace", "--tenant", "team"])
    })?;
    ensure!(summary["functions"] == serde_json::json!(["team/grind"]), "{summary}");
    ensure!(summary["requests"].as_u64() > Some(0) && summary["preemptions"].as_u64() > Some(0), "{summary}");
    let file = std::fs::read(setup.path("own.pftrace"))?;
    ensure!(!file.windows(6).any(|bytes| bytes == b"affine"), "the name of another tenant's function");
    let (tracks, _) = read(&setup.path("own.pftrace"))?;
    ensure!(tracks.keys().all(|name| !name.ends_with("of local") && name != "requests/affine"), "{:?}", tracks.keys());
    Ok(())
}

#[test]
fn past_records_are_available_and_errors_are_helpful() -> Result<()> {
    let setup = start()?;
    call_affine(&mut setup.client()?)?;
    let summary = setup.json(&["trace", "record", "--past", "--seconds", "0", "-o", "past.pftrace"])?;
    ensure!(summary["requests"] == 1 && summary["functions"] == serde_json::json!(["local/affine"]), "{summary}");
    let (tracks, _) = read(&setup.path("past.pftrace"))?;
    ensure!(count(&tracks["requests/affine"]["slices"]) > 1);

    let fails = |arguments: &[&str], says: &str| -> Result<()> {
        let output = setup.command(arguments).output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && told.contains(says), "{arguments:?}: {told}");
        Ok(())
    };
    fails(
        &["trace", "record", "--seconds", "0", "--control-socket", "nowhere.sock"],
        "is `atoll serve` running with this control socket?",
    )?;
    fails(&["trace", "record", "--seconds", "0", "-o", "no/such/folder/x"], "cannot write no/such/folder/x")?;
    fails(&["trace", "record", "--seconds=-1"], "at least 0")?;
    Ok(())
}

#[test]
fn top_shows_activity_once_or_on_a_terminal() -> Result<()> {
    let setup = start()?;
    let (snapshot, text) = under_load(&setup, || {
        let snapshot = setup.json(&["top", "--once", "--interval", "0.5"])?;
        let text = setup.command(&["top", "--once", "--interval", "0.1", "--tenant", "team"]).output()?.stdout;
        Ok((snapshot, String::from_utf8(text)?))
    })?;
    let (whole, functions) = (&snapshot["whole"], snapshot["functions"].as_array().context("functions")?);
    ensure!(
        whole["preemptions_per_s"].as_f64() > Some(0.0) && whole["real_time_share"].as_f64() > Some(0.0),
        "{snapshot}"
    );
    ensure!(
        whole["units"].as_array().is_some_and(|units| units.iter().any(|unit| unit["used"].as_f64() > Some(0.1))),
        "{snapshot}"
    );
    ensure!(whole["queue_depths"].as_array().map(Vec::len) == Some(2), "{snapshot}");
    let row = |name: &str| {
        functions.iter().find(|row| row["function"] == name).with_context(|| format!("{name} in {snapshot}"))
    };
    ensure!(
        row("affine")?["requests_per_s"].as_f64() > Some(1.0)
            && row("affine")?["latency_ms"]["p99"].as_f64() > Some(0.0),
        "{snapshot}"
    );
    ensure!(row("grind")?["tenant"] == "team" && row("affine")?["class"] == "real-time", "{snapshot}");
    ensure!(text.contains("grind") && !text.contains("affine") && !text.contains("preemptions:"), "{text}");

    let output = setup.command(&["top"]).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2) && told.contains("not a terminal") && told.contains("--once"), "{told}");
    Ok(())
}

#[test]
fn progress_is_shown_in_the_foreground_of_a_terminal_only() -> Result<()> {
    if Command::new("script").arg("--version").output().is_err() {
        skip("`script` of util-linux, which runs a command on a terminal, is not installed");
        return Ok(());
    }
    let setup = Setup::start(&[], "")?;
    let shown = |line: &str| -> Result<String> {
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", line, "/dev/null"]).stdin(Stdio::null());
        let recorder = setup.command(&[]);
        command.envs(recorder.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.env("TERM", "xterm").current_dir(setup.path("")).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let record = format!("'{}' trace record --seconds 0.3 -o t.pftrace", atoll().display());
    let foreground = shown(&record)?;
    ensure!(foreground.contains("stop with Ctrl-C") && foreground.contains("requests"), "{foreground:?}");
    let background = shown(&format!("bash -c \"set -m; {record} & wait \\$!\""))?;
    ensure!(!background.contains("Ctrl-C") && background.contains("requests"), "{background:?}");
    Ok(())
}
