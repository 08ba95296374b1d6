//! Admission of graphs in a daemon: prices, measured costs, decisions with reasons, and bills.

use crate::cancel::metric;
use crate::control::Setup;
use anyhow::{Context, Result, ensure};
use atoll_client::{Client, ClientError, Deploy, GraphCall, GraphReport, RefusalKind, Tensor};
use atoll_device::cpus;
use std::time::Duration;

const PRICES: &str = "[prices]\n\"host:0\" = 0.00001\n\"host:1\" = 0.0001\n";

/// `y = 3 x + b`, twice, and the largest element.
const GRAPH: &str = r#"
name = "twice"
deadline_ms = 20000
[inputs]
x = { datatype = "FP32", shape = [-1] }
b = { datatype = "FP32", shape = [-1] }
[[stage]]
name = "first"
function = "line"
inputs = { x = "x", b = "b" }
[[stage]]
name = "second"
function = "line"
inputs = { x = "first.y", b = "b" }
[[stage]]
name = "most"
builtin = "max"
inputs = { x = "second.y" }
[outputs]
y = "second.y"
most = "most.y"
"#;

/// A daemon with two host devices of one core each, which have different prices.
fn start() -> Result<Setup> {
    let allowed = cpus::allowed();
    let [first, second, ..] = allowed[..] else {
        anyhow::bail!("two host devices take two CPUs, here are {allowed:?}")
    };
    let devices = [format!("host:0@{first}"), format!("host:1@{second}")];
    let setup = Setup::start(&["--device", &devices[0], "--device", &devices[1]], PRICES)?;
    let how = Deploy { name: Some("line".into()), ..Deploy::default() };
    setup.client()?.deploy(&setup.path("affine.kg"), &how)?;
    Ok(setup)
}

/// Calls the graph and checks its outputs.
fn call(client: &mut Client, deadline: Option<Duration>, price_max: Option<f64>) -> Result<Result<(), ClientError>> {
    let mut call = GraphCall::of("twice").input("x", Tensor::f32(&[2], &[1.0, 2.0]));
    call = call.input("b", Tensor::f32(&[2], &[1.0, 0.0]));
    if let Some(within) = deadline {
        call = call.deadline(within);
    }
    if let Some(units) = price_max {
        call = call.price_max(units);
    }
    match client.invoke_graph(&call) {
        Ok(answer) => {
            ensure!(answer.tensor("y")? == &Tensor::f32(&[2], &[13.0, 18.0]), "{answer:?}");
            ensure!(answer.tensor("most")? == &Tensor::f32(&[], &[18.0]), "{answer:?}");
            Ok(Ok(()))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// Calls the graph until all its stages have been measured on both devices.
fn measure(client: &mut Client) -> Result<GraphReport> {
    for _ in 0..100 {
        call(client, None, None)??;
        let graph = client.graph("twice")?;
        if graph.admission.as_ref().is_some_and(|admission| admission.now.is_some()) {
            return Ok(graph);
        }
    }
    anyhow::bail!("not measured after 100 calls: {:?}", client.graph("twice")?)
}

/// The kind and message of a refusal.
fn refusal(outcome: Result<(), ClientError>) -> Result<(RefusalKind, String)> {
    match outcome {
        Err(ClientError::Refused(refusal)) => Ok((refusal.kind, refusal.message)),
        other => anyhow::bail!("not refused: {other:?}"),
    }
}

#[test]
fn requests_are_admitted_by_measured_costs_and_prices_or_rejected_with_the_reason() -> Result<()> {
    let setup = start()?;
    let mut client = setup.client()?;
    let deployed = client.deploy_graph(GRAPH, None)?;
    ensure!(deployed.admission.is_none(), "only `explain` has it: {deployed:?}");
    let fresh = client.graph("twice")?.admission.context("an admission")?;
    ensure!(fresh.costs.is_empty() && fresh.optimal.is_empty() && fresh.now.is_none(), "nothing is made up: {fresh:?}");
    ensure!(fresh.missing.len() == 3, "each stage is to be measured: {fresh:?}");
    ensure!(fresh.kinds.iter().map(|kind| kind.price_per_s).eq([0.00001, 0.0001, 0.0]), "{fresh:?}");

    let measured = measure(&mut client)?.admission.context("an admission")?;
    ensure!(measured.costs.len() == 5, "two functions on two devices, and a built-in stage: {measured:?}");
    ensure!(measured.assignments == 4 && !measured.optimal.is_empty(), "{measured:?}");
    let now = measured.now.context("a decision")?;
    ensure!(now.admitted && now.stages.len() == 3 && now.stages[2].device == "daemon", "{now:?}");
    ensure!(now.stages[..2].iter().all(|stage| stage.device == "host:0"), "the cheap one has time: {now:?}");

    call(&mut client, None, None)??;
    ensure!(metric(&setup.daemon, "atoll_graph_admissions_total{outcome=\"admitted\"}")? >= 1.0);
    ensure!(metric(&setup.daemon, "atoll_graph_admissions_total{outcome=\"measured\"}")? >= 6.0);
    let last = client.graph("twice")?.admission.and_then(|admission| admission.last).context("a decision")?;
    ensure!(last.admitted && !last.tried.is_empty(), "{last:?}");
    ensure!(metric(&setup.daemon, "atoll_graph_running")? == 0.0);

    let asked = client.explain_graph("twice", Some(Duration::from_nanos(1_000)), None)?;
    let asked = asked.admission.and_then(|admission| admission.now).context("a decision")?;
    ensure!(asked.reason.as_deref() == Some("too_slow"), "a question: {asked:?}");
    let (kind, message) = refusal(call(&mut client, Some(Duration::from_micros(1)), None)?)?;
    ensure!(kind == RefusalKind::Deadline && message.contains("state a later deadline"), "{message}");
    let (kind, message) = refusal(call(&mut client, None, Some(0.0))?)?;
    ensure!(kind == RefusalKind::BadRequest && message.contains("state a higher price limit"), "{message}");
    for reason in ["too_slow", "too_dear"] {
        let sample = format!("atoll_graph_rejections_total{{reason=\"{reason}\"}}");
        ensure!(metric(&setup.daemon, &sample)? == 1.0, "{reason}");
    }
    ensure!(refusal(call(&mut client, None, Some(-1.0))?)?.1.contains("not a price"));
    let Err(nan) = call(&mut client, None, Some(f64::NAN))? else { anyhow::bail!("it ran without a price limit") };
    ensure!(nan.to_string().contains("the price limit is NaN"), "{nan}");

    let usage = client.usage()?;
    ensure!(usage.devices.iter().map(|device| device.price_per_s).eq([Some(0.00001), Some(0.0001)]), "{usage:?}");
    for row in &usage.rows {
        let per_s = if row.device == "host:0" { 0.00001 } else { 0.0001 };
        ensure!(row.price.is_some_and(|price| (price - per_s * row.billed_s).abs() < 1e-12), "{row:?}");
    }
    ensure!(
        metric(
            &setup.daemon,
            "atoll_usage_price_units_total{tenant=\"local\",function=\"line\",class=\"best_effort\"}"
        )? > 0.0
    );
    Ok(())
}

#[test]
fn many_admitted_requests_at_once_all_end_and_leave_nothing_reserved() -> Result<()> {
    let setup = start()?;
    let mut client = setup.client()?;
    client.deploy_graph(GRAPH, None)?;
    measure(&mut client)?;
    std::thread::scope(|scope| {
        let run = |_| {
            scope.spawn(|| -> Result<()> {
                let mut client = setup.client()?;
                for _ in 0..20 {
                    call(&mut client, None, None)??;
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (0..4).map(run).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    ensure!(metric(&setup.daemon, "atoll_graph_running")? == 0.0);
    // A function is deployed again.
    let how = Deploy { name: Some("line".into()), ..Deploy::default() };
    client.deploy(&setup.path("affine.kg"), &how)?;
    call(&mut client, None, None)??;
    // A lost or drained device does not make requests fail.
    client.drain("host:0", true)?;
    call(&mut client, None, None)??;
    let recorded = setup.json(&["trace", "record", "--past", "--seconds", "0", "-o", "placed.pftrace"])?;
    ensure!(recorded["devices"][2]["device"] == "pool", "{recorded}");
    ensure!(recorded["devices"][2]["records"].as_u64() > Some(80), "each stage has a placement: {recorded}");
    let file = std::fs::read(setup.path("placed.pftrace"))?;
    for text in ["pool placement", "to host:0", "to host:1", "reserved by the admission of a graph"] {
        ensure!(file.windows(text.len()).any(|window| window == text.as_bytes()), "{text}");
    }
    Ok(())
}

#[test]
fn requests_are_divided_among_versions_by_their_ids() -> Result<()> {
    let setup = start()?;
    let mut client = setup.client()?;
    for version in ["line-v1", "line-v2"] {
        let how = Deploy { name: Some(version.into()), ..Deploy::default() };
        client.deploy(&setup.path("affine.kg"), &how)?;
    }
    let alias = setup.json(&["fn", "alias", "either", "line-v1=50", "line-v2=50"])?;
    ensure!(alias["versions"]["line-v2"] == 50 && alias["model"] == "either", "{alias}");
    let counts = |client: &mut Client| -> Result<Vec<u64>> {
        let graph = client.graph("either")?;
        Ok(graph.stages[0].versions.iter().map(|version| version.success).collect())
    };
    let call = |client: &mut Client, id: Option<&str>| -> Result<()> {
        let one = || Tensor::f32(&[1], &[1.0]);
        let call = GraphCall::of("either").input("x", one()).input("b", one());
        let answer = client.invoke_graph(&id.iter().fold(call, |call, id| call.id(*id)))?;
        ensure!(answer.tensor("y")? == &Tensor::f32(&[1], &[4.0]), "{answer:?}");
        Ok(())
    };
    ensure!(counts(&mut client)? == [0, 0]);
    for _ in 0..10 {
        call(&mut client, Some("customer-7"))?;
    }
    let one = counts(&mut client)?;
    ensure!(one == [10, 0] || one == [0, 10], "one id, one version: {one:?}");
    for id in 0..100 {
        call(&mut client, Some(&format!("customer-{id}")))?;
    }
    let divided = counts(&mut client)?;
    ensure!(divided.iter().sum::<u64>() == 110 && divided.iter().all(|count| *count > 30), "{divided:?}");
    setup.json(&["fn", "alias", "either", "line-v1=1", "line-v2=0"])?;
    for _ in 0..10 {
        call(&mut client, None)?;
    }
    ensure!(counts(&mut client)? == [10, 0], "all to the first version, and counted anew");
    Ok(())
}

#[test]
fn a_price_of_no_device_is_refused_at_the_start() -> Result<()> {
    let failed = Setup::start(&[], "[prices]\n\"cuda:7\" = 1\n");
    ensure!(failed.is_err(), "it started");
    Ok(())
}

/// A chain of this many stages that call `line`, with a line for its limits.
fn long_chain(stages: usize, limits: &str) -> String {
    let tensor = "{ datatype = \"FP32\", shape = [-1] }";
    let mut text = format!("name = \"long\"\n{limits}\n[inputs]\nx = {tensor}\nb = {tensor}\n");
    for stage in 0..stages {
        let from = stage.checked_sub(1).map_or("x".into(), |before| format!("s{before}.y"));
        text += &format!("[[stage]]\nname = \"s{stage}\"\nfunction = \"line\"\n");
        text += &format!("inputs = {{ x = \"{from}\", b = \"b\" }}\n");
    }
    text + &format!("[outputs]\ny = \"s{}.y\"\n", stages - 1)
}

#[test]
fn a_graph_with_limits_and_too_many_assignments_is_refused_at_its_deployment() -> Result<()> {
    let setup = start()?;
    let mut client = setup.client()?;
    for limits in ["deadline_ms = 1000", "price_max = 1"] {
        let (kind, message) = refusal(client.deploy_graph(&long_chain(25, limits), None).map(drop))?;
        ensure!(kind == RefusalKind::BadRequest, "{message}");
        ensure!(message.contains("25 stages on 2 kinds of devices have more than 16777216 assignments"), "{message}");
    }
    client.deploy_graph(&long_chain(24, "deadline_ms = 1000"), None)?;
    client.deploy_graph(&long_chain(25, ""), None)?;
    Ok(())
}
