//! Calls over the control socket that name outputs of calls that have not ended.

use crate::control::Setup;
use crate::functions::{manifest, pack_grind, packed};
use crate::graphs::{deploy, succeed, twice};
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, Content, Deploy, GraphCall, Tensor};
use serde_json::Value;

/// The output `y` of a future.
fn of(future: &str) -> Content {
    Content::Future(future.into(), "y".into())
}

/// `y = 3 x + b` of two elements.
fn affine(x: Content) -> Call {
    Call::of("line").input("x", x).input("b", Tensor::f32(&[2], &[1.0, 0.0]))
}

#[test]
fn a_call_takes_the_outputs_of_calls_that_have_not_ended() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let repository = at.join("repository");
    std::fs::create_dir(&repository)?;
    packed(&manifest("affine"), &at.join("affine.kg"))?;
    let _daemon = Daemon::start_with(&repository, at, &[])?;
    succeed(at, &["fn", "deploy", "affine.kg", "--name", "line"])?;
    ensure!(deploy(at, &twice("line"))?.status.success());
    let connect = || Client::connect(&at.join("atoll.sock"));
    let mut client = connect()?;
    let y = |future: &str, client: &mut Client| -> Result<Vec<f32>> {
        Ok(client.await_future(future)?.tensor("y")?.to_f32())
    };
    // None of these requests waits until the call that it names has ended.
    client.defer("a", affine(Tensor::f32(&[2], &[1.0, 2.0]).into()))?;
    client.defer("b", affine(of("a")))?;
    let b = Tensor::f32(&[2], &[1.0, 0.0]);
    client.defer_graph("c", &GraphCall::of("twice").input("x", of("b")).input("b", b))?;
    drop(client);
    // Another connection of the tenant can name them, even after the first one was closed.
    let mut client = connect()?;
    let whole = client.invoke(affine(of("c")))?;
    // 3 x + 1 and 3 x, five times from 1 and 2.
    ensure!(whole.tensor("y")?.to_f32() == [364.0, 486.0], "{whole:?}");
    ensure!(y("a", &mut client)? == [4.0, 6.0] && y("b", &mut client)? == [13.0, 18.0]);
    ensure!(y("c", &mut client)? == [121.0, 162.0]);

    let refused = |result: Result<(), String>, expected: &str| -> Result<()> {
        let error = result.err().unwrap_or_default();
        ensure!(error.contains(expected), "{expected}: {error}");
        Ok(())
    };
    let text = |error: atoll_client::ClientError| error.to_string();
    refused(client.defer("a", affine(of("b"))).map_err(text), "there is a future `a`")?;
    refused(client.invoke(affine(of("d"))).map(drop).map_err(text), "there is no future `d`")?;
    let other = Content::Future("a".into(), "z".into());
    refused(client.invoke(affine(other)).map(drop).map_err(text), "future `a` has no output `z`; it has y")?;
    // If a future fails, the futures that name it fail too, each with the cause.
    client.defer("bad", affine(Tensor::f32(&[3], &[1.0; 3]).into()))?;
    client.defer("worse", affine(of("bad")))?;
    let cause = client.await_future("bad").err().map(text).unwrap_or_default();
    ensure!(!cause.is_empty());
    refused(client.await_future("worse").map(drop).map_err(text), &format!("future `bad` failed: {cause}"))?;
    client.forget_future("a")?;
    refused(client.await_future("a").map(drop).map_err(text), "there is no future `a`")?;
    client.defer("a", affine(Tensor::f32(&[2], &[0.0, 0.0]).into()))?;
    ensure!(y("a", &mut client)? == [1.0, 0.0], "a new one of the same name");
    Ok(())
}

/// The message of a command that fails because of what the user asked for.
fn mistake(setup: &Setup, arguments: &[&str]) -> Result<String> {
    let output = setup.command(arguments).output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(2), "{arguments:?}: {:?}, {message}", output.status);
    Ok(message)
}

/// The states of futures in a report.
fn states(report: &Value) -> Vec<(&str, &str)> {
    let entries = report.as_array().map(Vec::as_slice).unwrap_or_default();
    entries
        .iter()
        .map(|entry| (entry["future"].as_str().unwrap_or_default(), entry["state"].as_str().unwrap_or_default()))
        .collect()
}

#[test]
fn the_command_line_begins_calls_that_name_each_other_and_prints_their_outputs() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    setup.json(&["fn", "deploy", "affine.kg", "--name", "line"])?;
    std::fs::write(setup.path("twice.toml"), twice("line"))?;
    setup.json(&["graph", "deploy", "twice.toml"])?;
    let line = ["fn", "invoke", "line", "b=0", "--shape", "b=2"];
    let with = |more: &[&'static str]| [&line[..], more].concat();
    let begun = setup.json(&with(&["x=1", "--shape", "x=2", "--async=a"]))?;
    ensure!(begun["future"] == "a", "{begun}");
    let named = setup.json(&with(&["x=future:a/y", "--async"]))?;
    let id = named["future"].as_str().context("an id")?;
    ensure!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{named}");
    let of_graph = ["graph", "invoke", "twice", &format!("x=future:{id}/y"), "b=0", "--shape", "b=2", "--async=c"];
    ensure!(setup.json(&of_graph)?["future"] == "c");
    let ended = setup.json(&["future", "wait", "a", id, "c", "--timeout", "60"])?;
    ensure!(states(&ended) == [("a", "done"), (id, "done"), ("c", "done")], "{ended}");
    ensure!(ended[0]["functions"][0] == "line" && ended[2]["graph"] == "twice", "{ended}");
    ensure!(ended[0]["outputs"][0]["form"]["shape"] == serde_json::json!([2]) && ended[0]["bytes"] == 8, "{ended}");
    let result = setup.json(&["future", "result", "c", "--save", "out"])?;
    // Three times as much with each of the four calls.
    ensure!(result["outputs"][0]["max"] == 81.0 && setup.path("out/y.npy").exists(), "{result}");
    // A call that is waited for names them, too.
    let direct = setup.json(&with(&["x=future:c/y"]))?;
    ensure!(direct["outputs"][0]["max"] == 243.0, "{direct}");

    let shown = setup.command(&["future", "show", "a"]).output()?;
    let text = String::from_utf8(shown.stdout)?;
    ensure!(text.starts_with("future `a`: done, calls line\n  y: FP32[2]\nbegun "), "{text}");
    let removed = setup.json(&["future", "rm", "a"])?;
    ensure!(removed["removed"][0] == "a", "{removed}");
    let listed = setup.json(&["future", "ls"])?;
    ensure!(states(&listed).len() == 2, "{listed}");
    for arguments in [&["future", "show", "a"][..], &["future", "result", "a"], &["future", "rm", "a"]] {
        let message = mistake(&setup, arguments)?;
        ensure!(message.contains("there is no future `a` any more; it was forgotten by request"), "{message}");
    }
    let message = mistake(&setup, &["future", "wait", "c", "--tenant", "other"])?;
    ensure!(message.contains("there is no future `c`; outputs are kept"), "another tenant's: {message}");
    for (input, expected) in [("x=future:c", "expected future:ID/OUTPUT"), ("x=future:c/z", "has no output `z`")] {
        let message = mistake(&setup, &with(&[input]))?;
        ensure!(message.contains(expected), "{message}");
    }
    Ok(())
}

#[test]
fn a_call_in_the_background_is_cancelled_with_those_that_name_it() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let grind = pack_grind(&setup.path(""), 1)?;
    setup.client()?.deploy(&grind, &Deploy { name: Some("grind".into()), ..Deploy::default() })?;
    let times = Tensor { datatype: atoll_client::DataType::Uint32, shape: vec![1], bytes: vec![255; 4] };
    let x = Tensor { datatype: atoll_client::DataType::Uint32, shape: vec![128], bytes: vec![1; 512] };
    let mut client = setup.client()?;
    client.defer("long", Call::of("grind").input("x", x).input("times", times.clone()))?;
    let after = Content::Future("long".into(), "y".into());
    client.defer("after", Call::of("grind").input("x", after).input("times", times))?;
    let running = setup.json(&["future", "ls"])?;
    ensure!(states(&running) == [("after", "running"), ("long", "running")], "{running}");
    let waited = setup.command(&["future", "wait", "long", "--timeout", "0.1"]).output()?;
    let message = String::from_utf8_lossy(&waited.stderr).into_owned();
    ensure!(waited.status.code() == Some(1) && message.contains("future `long` has not ended yet"), "{message}");
    let cancelled = setup.json(&["future", "cancel", "long"])?;
    ensure!(cancelled["cancelled"][0] == "long", "{cancelled}");
    let failed = setup.command(&["future", "wait", "long", "after"]).output()?;
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    ensure!(failed.status.code() == Some(1), "{message}");
    let expected = "the call of future `after` failed: future `long` failed: the call of the future was cancelled";
    ensure!(message.contains(expected), "{message}");
    let ended = setup.json(&["future", "ls"])?;
    ensure!(states(&ended) == [("after", "failed"), ("long", "failed")], "{ended}");
    let message = mistake(&setup, &["future", "cancel", "long"])?;
    ensure!(message.contains("the call of future `long` has already ended"), "{message}");
    Ok(())
}
