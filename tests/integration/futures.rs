//! Calls over the control socket that name outputs of calls that have not ended.

use crate::functions::{manifest, packed};
use crate::graphs::{deploy, succeed, twice};
use crate::serve::Daemon;
use anyhow::{Result, ensure};
use atoll_client::{Call, Client, Content, GraphCall, Tensor};

/// The name of the future `a`, and its output `y`.
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
    // None of these waits for the one before it.
    client.defer("a", affine(Tensor::f32(&[2], &[1.0, 2.0]).into()))?;
    client.defer("b", affine(of("a")))?;
    let b = Tensor::f32(&[2], &[1.0, 0.0]);
    client.defer_graph("c", &GraphCall::of("twice").input("x", of("b")).input("b", b))?;
    drop(client);
    // Another connection of the tenant sees them, also after the first one was closed.
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
    // A future that fails takes those that name it with it, each with the cause.
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
