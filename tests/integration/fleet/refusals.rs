//! Requests that a daemon with several devices cannot serve: each is answered once, with its cause, and
//! nothing stays reserved.

use super::{ask_faulty, stand_in_options, two_gpus, two_hosts};
use crate::cancel::{HARMLESS, metric};
use crate::control::Setup;
use crate::executors::wait_until;
use crate::functions::pack_grind;
use crate::serve::Daemon;
use anyhow::{Result, ensure};
use atoll_client::{Call, Client, ClientError, Deploy, GraphCall, RefusalKind, Tensor};
use atoll_tests::http;
use std::time::Duration;

/// `y = 3 x + b`, and the same again if the first result is below 5.
const CASCADE: &str = r#"
name = "cascade"
deadline_ms = 20000
[inputs]
x = { datatype = "FP32", shape = [1] }
b = { datatype = "FP32", shape = [1] }
[[stage]]
name = "first"
function = "line"
inputs = { x = "x", b = "b" }
[[stage]]
name = "second"
function = "line"
inputs = { x = "first.y", b = "b" }
when = "first.y < 5"
otherwise = { y = "first.y" }
[outputs]
y = "second.y"
"#;

fn cascade(x: f32) -> GraphCall {
    GraphCall::of("cascade").input("x", Tensor::f32(&[1], &[x])).input("b", Tensor::f32(&[1], &[1.0]))
}

/// The kind and message of a refusal.
fn refusal<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> Result<(RefusalKind, String)> {
    match outcome {
        Err(ClientError::Refused(refusal)) => Ok((refusal.kind, refusal.message)),
        other => anyhow::bail!("not refused: {other:?}"),
    }
}

#[test]
fn a_condition_that_is_nan_and_deadlines_of_zero_are_refused_and_leave_nothing_reserved() -> Result<()> {
    let setup = Setup::start(&two_hosts()?.each_ref().map(String::as_str), "")?;
    let mut client = setup.client()?;
    client.deploy(&setup.path("affine.kg"), &Deploy { name: Some("line".into()), ..Deploy::default() })?;
    client.deploy_graph(CASCADE, None)?;
    let y = |client: &mut Client, x: f32| -> Result<Vec<f32>> {
        Ok(client.invoke_graph(&cascade(x))?.tensor("y")?.to_f32())
    };
    // Before and after its stages have been measured.
    for round in 0..2 {
        let (kind, message) = refusal(client.invoke_graph(&cascade(f32::NAN)))?;
        ensure!(kind == RefusalKind::BadRequest, "{message}");
        ensure!(message.contains("second") && message.contains("the value of its condition is NaN"), "{message}");
        let (kind, message) = refusal(client.invoke_graph(&cascade(1.0).deadline(Duration::ZERO)))?;
        ensure!(kind == RefusalKind::Deadline, "{message}");
        let one = || Tensor::f32(&[1], &[1.0]);
        let call = Call::of("line").input("x", one()).input("b", one()).deadline(Duration::ZERO);
        let (kind, message) = refusal(client.invoke(call))?;
        ensure!(kind == RefusalKind::Deadline, "{message}");
        ensure!(metric(&setup.daemon, "atoll_graph_running")? == 0.0, "round {round}");
        ensure!(metric(&setup.daemon, "atoll_pool_waiting")? == 0.0, "round {round}");
        ensure!(y(&mut client, 1.0)? == [13.0] && y(&mut client, 2.0)? == [7.0]);
        for _ in 0..100 {
            if round > 0 || client.graph("cascade")?.admission.is_some_and(|admission| admission.now.is_some()) {
                break;
            }
            y(&mut client, 1.0)?;
        }
    }
    ensure!(metric(&setup.daemon, "atoll_graph_admissions_total{outcome=\"admitted\"}")? >= 3.0, "it was measured");
    Ok(())
}

#[test]
fn a_function_that_is_larger_than_every_device_is_refused_with_the_sizes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("repository"))?;
    // Its constants have 64 KiB.
    let bundle = pack_grind(folder.path(), 1)?;
    let options = two_hosts()?.into_iter().chain(["--memory-limit".into(), "32K".into()]).collect::<Vec<_>>();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let daemon = Daemon::start_with(&folder.path().join("repository"), folder.path(), &options)?;
    let mut client = Client::connect(&folder.path().join("atoll.sock"))?;
    let (_, message) = refusal(client.deploy(&bundle, &Deploy { name: Some("large".into()), ..Deploy::default() }))?;
    ensure!(message.contains("needs 65536 bytes for its constants"), "{message}");
    ensure!(message.contains("of 32768 bytes on the device"), "{message}");
    let listed = refusal(client.invoke(Call::of("large")))?.1;
    ensure!(listed.contains("large"), "no device has it: {listed}");
    ensure!(metric(&daemon, "atoll_pool_waiting")? == 0.0);
    Ok(())
}

/// A graph of the model `first`.
const GRAPH: &str = r#"
name = "graph"
[inputs]
mode = { datatype = "UINT32", shape = [1] }
[[stage]]
name = "only"
function = "first"
inputs = { mode = "mode" }
[outputs]
out = "only.out"
"#;

/// In the daemon's own process, a GPU whose context failed is not replaced.
#[test]
fn requests_end_with_the_cause_when_all_gpus_are_lost() -> Result<()> {
    const TRAP: u32 = 4;
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    let devices = ["--device", "cuda:0", "--device", "cuda:1", "--isolation", "none"];
    let daemon = Daemon::start_in(&repository, folder.path(), &devices, &stand_in_options(folder.path(), "devices=2"))?;
    Client::connect(&folder.path().join("atoll.sock"))?.deploy_graph(GRAPH, None)?;
    // Calls a model until it fails. Returns the number of answers, and the last one.
    let until_failure = |model: &str| -> Result<(u32, u16, String)> {
        for calls in 1.. {
            let (status, body) = ask_faulty(&daemon, model, HARMLESS)?;
            if status != 200 {
                return Ok((calls, status, body));
            }
        }
        unreachable!("it calls until it returns")
    };
    let ended = std::thread::scope(|scope| -> Result<Vec<(u32, u16, String)>> {
        let models = ["first", "graph", "first", "graph"];
        let callers: Vec<_> = models.map(|model| scope.spawn(move || until_failure(model))).into_iter().collect();
        let trap = || -> Result<()> {
            std::thread::sleep(Duration::from_millis(200));
            // `second` is on one GPU, `first` then only on the other.
            for (model, device) in [("second", "cuda:1"), ("first", "cuda:0")] {
                let (status, body) = ask_faulty(&daemon, model, TRAP)?;
                ensure!(status >= 500, "{model}: {status}: {body}");
                let sample = format!("atoll_device_lost{{device=\"{device}\"}}");
                wait_until("the GPU is lost", || Ok(metric(&daemon, &sample)? == 1.0))?;
            }
            Ok(())
        };
        let trapped = trap();
        let ended = callers.into_iter().map(|caller| caller.join().expect("no panic")).collect::<Result<Vec<_>>>();
        trapped.and(ended)
    })?;
    for (calls, status, body) in ended {
        ensure!(calls > 1, "it was answered before: {body}");
        ensure!(status >= 500 && !body.is_empty(), "after {calls} calls: {status}: {body}");
    }
    for model in ["first", "graph"] {
        let (status, body) = ask_faulty(&daemon, model, HARMLESS)?;
        ensure!(status >= 500 && body.contains("lost"), "{model}: {status}: {body}");
    }
    for gauge in ["atoll_pool_waiting", "atoll_graph_running"] {
        ensure!(metric(&daemon, gauge)? == 0.0, "{gauge}");
    }
    let (status, _) = http::ask(&daemon.http, "GET", "/v2/health/live", "")?;
    ensure!(status == 200, "the daemon lives: {status}");
    Ok(())
}

/// The cheap GPU is lost with a request that was planned on it, and the other one is too dear.
#[test]
fn a_request_whose_gpu_is_lost_does_not_go_on_beyond_its_price_limit() -> Result<()> {
    const TRAP: u32 = 4;
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    let config = folder.path().join("atoll.toml").display().to_string();
    std::fs::write(&config, "[prices]\n\"cuda:0\" = 0.00001\n\"cuda:1\" = 10.0\n")?;
    let devices = ["--device", "cuda:0", "--device", "cuda:1", "--isolation", "none", "--config", &config];
    let daemon = Daemon::start_in(&repository, folder.path(), &devices, &stand_in_options(folder.path(), "devices=2"))?;
    let mut client = Client::connect(&folder.path().join("atoll.sock"))?;
    client.deploy_graph(GRAPH, None)?;
    let ask = |mode: u32, price_max: f64| -> Result<(u16, String)> {
        let input = format!(r#"{{"name": "mode", "shape": [1], "datatype": "UINT32", "data": [{mode}]}}"#);
        let request = format!(r#"{{"inputs": [{input}], "parameters": {{"price_max": {price_max}}}}}"#);
        Ok(http::ask(&daemon.http, "POST", "/v2/models/graph/infer", &request)?)
    };
    wait_until("its stage was measured on both GPUs", || {
        let (status, body) = ask(HARMLESS, 1000.0)?;
        ensure!(status == 200, "{status}: {body}");
        Ok(client.graph("graph")?.admission.is_some_and(|admission| admission.now.is_some()))
    })?;
    // Enough for the first GPU; the second one reaches it within 10 µs.
    let low = 0.0001;
    let (status, body) = ask(HARMLESS, low)?;
    ensure!(status == 200, "{status}: {body}");
    let (status, body) = ask(TRAP, low)?;
    ensure!(status == 503, "{status}: {body}");
    let cause = "the device is lost: stage `only` of graph `graph` cannot run on another one: the price limit of";
    ensure!(body.contains(cause) && body.contains("0.000100000 units is too low"), "{body}");
    ensure!(metric(&daemon, "atoll_device_lost{device=\"cuda:0\"}")? == 1.0);
    ensure!(metric(&daemon, "atoll_device_lost{device=\"cuda:1\"}")? == 0.0, "it did not run there");
    ensure!(metric(&daemon, "atoll_graph_running")? == 0.0);
    let (status, body) = ask(HARMLESS, low)?;
    ensure!(status == 400 && body.contains("state a higher price limit"), "{status}: {body}");
    let (status, body) = ask(HARMLESS, 1000.0)?;
    ensure!(status == 200, "the other GPU serves it: {status}: {body}");
    Ok(())
}
