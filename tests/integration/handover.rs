//! Intermediate results of graphs that stay on the device of the functions.

use crate::cancel::metric;
use crate::control::Setup;
use crate::executors::{children, wait_until};
use crate::fleet::two_hosts;
use crate::functions::{manifest, pack_grind, packed};
use crate::graphs::{succeed, twice};
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Answer, Client, ClientError, DataType, Deploy, GraphCall, Tensor};
use atoll_tests::chaos::grind;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;

const BYTES: &str = "atoll_graph_intermediate_bytes_total";

/// The second function runs only if the first result is small.
const CASCADE: &str = r#"
name = "cascade"
[inputs]
x = { datatype = "FP32", shape = [-1] }
b = { datatype = "FP32", shape = [-1] }
[[stage]]
name = "first"
function = "line"
inputs = { x = "x", b = "b" }
[[stage]]
name = "largest"
builtin = "max"
inputs = { x = "first.y" }
[[stage]]
name = "second"
function = "line"
inputs = { x = "first.y", b = "b" }
when = "largest.y < 100"
otherwise = { y = "first.y" }
[outputs]
between = "first.y"
y = "second.y"
"#;

fn start(folder: &Path) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    Daemon::start_with(&repository, folder, &[])
}

/// The inputs of graphs of `3 x + b` with two elements.
fn pair(graph: &str, x: [f32; 2]) -> GraphCall {
    GraphCall::of(graph).input("x", Tensor::f32(&[2], &x)).input("b", Tensor::f32(&[2], &[1.0, 0.0]))
}

/// Bytes from function to function of a graph: those that stayed on a device, and the others.
fn moved(client: &mut Client, graph: &str) -> Result<(u64, u64)> {
    let report = client.graph(graph)?;
    Ok((report.handed_over_bytes, report.copied_bytes))
}

#[test]
fn what_a_function_takes_from_another_one_stays_on_the_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let daemon = start(at)?;
    packed(&manifest("affine"), &at.join("affine.kg"))?;
    succeed(at, &["fn", "deploy", "affine.kg", "--name", "line"])?;
    let mut client = Client::connect(&at.join("atoll.sock"))?;
    client.deploy_graph(&twice("line"), None)?;
    let y = |answer: &Answer, output: &str| -> Result<Vec<f32>> { Ok(answer.tensor(output)?.to_f32()) };
    for call in 1..=3 {
        let answer = client.invoke_graph(&pair("twice", [1.0, 2.0]))?;
        ensure!(y(&answer, "y")? == [13.0, 18.0], "{answer:?}");
        ensure!(moved(&mut client, "twice")? == (8 * call, 0), "{:?}", moved(&mut client, "twice"));
    }
    let explained: Value = serde_json::from_str(&succeed(at, &["graph", "explain", "twice", "--json"])?)?;
    ensure!(explained["handed_over_bytes"] == 24 && explained["copied_bytes"] == 0, "{explained}");
    let text = succeed(at, &["graph", "explain", "twice"])?;
    ensure!(text.contains("24 bytes from function to function stayed on a device, 0 went through"), "{text}");
    ensure!(metric(&daemon, &format!("{BYTES}{{way=\"device\"}}"))? == 24.0);
    ensure!(metric(&daemon, &format!("{BYTES}{{way=\"host\"}}"))? == 0.0);

    // The daemon needs the first result for the condition, as a substitute and for the client.
    client.deploy_graph(CASCADE, None)?;
    let small = client.invoke_graph(&pair("cascade", [1.0, 2.0]))?;
    ensure!(y(&small, "between")? == [4.0, 6.0] && y(&small, "y")? == [13.0, 18.0], "{small:?}");
    ensure!(moved(&mut client, "cascade")? == (8, 0));
    let large = client.invoke_graph(&pair("cascade", [100.0, 2.0]))?;
    ensure!(y(&large, "between")? == [301.0, 6.0] && y(&large, "y")? == [301.0, 6.0], "{large:?}");
    ensure!(moved(&mut client, "cascade")? == (8, 0), "the second function did not run");
    Ok(())
}

/// Three functions one after the other, each long enough for the executor to be killed meanwhile.
const GRINDS: &str = r#"
name = "grinds"
[inputs]
x = { datatype = "UINT32", shape = [-1] }
times = { datatype = "UINT32", shape = [1] }
[[stage]]
name = "first"
function = "grind"
inputs = { x = "x", times = "times" }
[[stage]]
name = "second"
function = "grind"
inputs = { x = "first.y", times = "times" }
[[stage]]
name = "third"
function = "grind"
inputs = { x = "second.y", times = "times" }
[outputs]
y = "third.y"
"#;

#[test]
fn results_that_are_lost_with_their_executor_are_computed_again_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = start(folder.path())?;
    let pid = daemon.process().id() as i32;
    let connect =
        || Client::connect_as(&folder.path().join("atoll.sock"), Some("a".parse()?)).context("the control socket");
    connect()?.deploy(&pack_grind(folder.path(), 1)?, &Deploy { name: Some("grind".into()), ..Deploy::default() })?;
    connect()?.deploy_graph(GRINDS, None)?;
    let (x, table, times) = ([1, 2, 3, 4], grind::table(1), 80_000_000);
    let vector = |values: &[u32]| Tensor {
        datatype: DataType::Uint32,
        shape: vec![values.len() as i64],
        bytes: grind::bytes(values),
    };
    let call = || GraphCall::of("grinds").input("x", vector(&x)).input("times", vector(&[times]));
    let expected = (0..3).fold(x.to_vec(), |x, _| grind::grind(&x, &table, times));
    // Each function has one launch, so the second launch is that of the second function.
    let kill_during_the_second = || -> Result<()> {
        let issued = metric(&daemon, "atoll_issued_launches_total")?;
        wait_until("the second function", || Ok(metric(&daemon, "atoll_issued_launches_total")? >= issued + 2.0))?;
        // The executor started last is the tenant's; the daemon's own one is idle.
        let executor = children(pid)?.into_iter().max().context("an executor")?;
        Ok(kill_process(Pid::from_raw(executor).context("a number")?, Signal::KILL)?)
    };
    for kills in 1..=2 {
        let answer = std::thread::scope(|scope| -> Result<_> {
            let answer =
                scope.spawn(|| -> Result<Result<Answer, ClientError>> { Ok(connect()?.invoke_graph(&call())) });
            let killed = (0..kills).try_for_each(|_| kill_during_the_second());
            let answer = answer.join().expect("no panic")?;
            killed.map(|()| answer)
        })?;
        match answer {
            Ok(answer) if kills == 1 => ensure!(answer.tensor("y")?.bytes == grind::bytes(&expected)),
            Err(ClientError::Refused(refusal)) if kills == 2 => {
                let cause = "the inputs of stage `second` were lost twice";
                ensure!(refusal.message.contains(cause), "{}", refusal.message);
            }
            other => anyhow::bail!("after {kills} losses: {other:?}"),
        }
        // The second and the third stage took 16 bytes each; a late kill makes them take more.
        let (handed_over, copied) = moved(&mut connect()?, "grinds")?;
        ensure!(handed_over >= 32 && copied == 0, "{handed_over} bytes handed over, {copied} copied");
        let usage = connect()?.usage()?;
        ensure!(usage.rows.iter().all(|row| row.memory["invocations"].bytes == 0), "{usage:?}");
    }
    Ok(())
}

#[test]
fn stages_follow_their_inputs_unless_their_function_is_elsewhere() -> Result<()> {
    let options = two_hosts()?;
    let setup = Setup::start(&options.each_ref().map(String::as_str), "")?;
    let mut client = setup.client()?;
    for (name, device) in [("line", None), ("left", Some("host:0")), ("right", Some("host:1"))] {
        let how = Deploy { name: Some(name.into()), device: device.map(Into::into), ..Deploy::default() };
        client.deploy(&setup.path("affine.kg"), &how)?;
    }
    let apart = twice("left").replacen("name = \"twice\"", "name = \"apart\"", 1);
    let (first, second) = apart.split_once("name = \"second\"").context("two stages")?;
    let apart = format!("{first}name = \"second\"{}", second.replacen("\"left\"", "\"right\"", 1));
    client.deploy_graph(&twice("line"), None)?;
    client.deploy_graph(&apart, None)?;
    for _ in 0..6 {
        for graph in ["twice", "apart"] {
            let answer = client.invoke_graph(&pair(graph, [1.0, 2.0]))?;
            ensure!(answer.tensor("y")?.to_f32() == [13.0, 18.0], "{graph}: {answer:?}");
        }
    }
    ensure!(moved(&mut client, "twice")? == (48, 0), "{:?}", moved(&mut client, "twice"));
    ensure!(moved(&mut client, "apart")? == (0, 48), "{:?}", moved(&mut client, "apart"));
    ensure!(
        metric(&setup.daemon, "atoll_pool_placements_total{why=\"input\"}")? == 6.0,
        "the second stages of `twice`"
    );
    Ok(())
}
