//! Shares in a daemon: instances of functions, and tenants with quotas of time.

use crate::control::{Setup, refusal};
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Class, InstanceReport, InstanceResize, InstanceSpec, RefusalKind, Tensor};
use atoll_device::{Division, Guarantees};
use atoll_tests::http::ask;
use atoll_tests::root;
use serde_json::json;

const CONFIG: &str = "[tenant.vision]\nquota_request = 0.2\nquota_limit = 0.5\n";

fn spec(name: &str, quota_request: f64, quota_limit: f64) -> InstanceSpec {
    InstanceSpec {
        name: name.into(),
        function: "affine".into(),
        class: None,
        sm_partition: 100.0,
        quota_request,
        quota_limit,
        gpu_mem: None,
        latency_ms: None,
    }
}

fn call(instance: &str) -> Call {
    let vector = Tensor::f32(&[4], &[1.0, 2.0, 3.0, 4.0]);
    Call::of("affine").instance(instance).input("x", vector.clone()).input("b", vector)
}

/// The instance or the tenant's share with a name, from a list.
fn found<'a>(instances: &'a [InstanceReport], name: Option<&str>) -> Result<&'a InstanceReport> {
    instances.iter().find(|report| report.instance.as_deref() == name).context("it is not listed")
}

#[test]
fn instances_are_created_resized_and_removed_and_outlive_the_daemon() -> Result<()> {
    let mut setup = Setup::start(&["--compute-units", "1"], CONFIG)?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    let mut client = setup.client()?;
    let fast = InstanceSpec { gpu_mem: Some(1 << 20), latency_ms: Some(7), ..spec("fast", 0.5, 0.6) };
    let created = client.create_instance(fast)?;
    ensure!(created.devices.len() == 1 && created.devices[0].promised == 0.5, "{created:?}");
    ensure!(created.latency_ms == Some(7), "{created:?}");
    let hour = InstanceResize { instance: "fast".into(), latency_ms: Some(3_600_000), ..InstanceResize::default() };
    ensure!(client.resize_instance(hour)?.latency_ms == Some(3_600_000));
    client.invoke(call("fast"))?;
    let body = json!({
        "parameters": { "instance": "fast" },
        "inputs": [
            { "name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2] },
            { "name": "b", "datatype": "FP32", "shape": [2], "data": [1, 2] },
        ],
    });
    let (status, text) = ask(&setup.daemon.http, "POST", "/v2/models/affine/infer", &body.to_string())?;
    ensure!(status == 200, "{text}");
    let resize = InstanceResize { instance: "fast".into(), quota_limit: Some(0.8), ..InstanceResize::default() };
    let resized = client.resize_instance(resize)?;
    ensure!((resized.quota_request, resized.quota_limit, resized.gpu_mem) == (0.5, 0.8, Some(1 << 20)), "{resized:?}");
    let instances = client.instances()?;
    let (fast, tenant) = (found(&instances, Some("fast"))?, found(&instances, None)?);
    ensure!(fast.devices[0].received_s > 0.0 && fast.devices[0].tokens > 0, "requests ran under it: {fast:?}");
    ensure!((tenant.tenant.as_str(), tenant.quota_request, tenant.quota_limit) == ("vision", 0.2, 0.5), "{tenant:?}");
    let (_, metrics) = ask(&setup.daemon.metrics, "GET", "/metrics", "")?;
    ensure!((fast.ended, fast.late, fast.latency_ms) == (2, 0, Some(3_600_000)), "{fast:?}");
    let requests = "atoll_instance_requests_total{tenant=\"local\",instance=\"fast\"} 2";
    let late = "atoll_instance_late_requests_total{tenant=\"local\",instance=\"fast\"} 0";
    ensure!(metrics.contains(requests) && metrics.contains(late), "{metrics}");
    let line = "atoll_share_promised_ratio{tenant=\"local\",instance=\"fast\",device=\"host:0\"} 0.5";
    ensure!(metrics.contains(line), "{metrics}");

    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    let instances = client.instances()?;
    let fast = found(&instances, Some("fast"))?;
    ensure!((fast.quota_limit, fast.function.as_deref()) == (0.8, Some("affine")), "{fast:?}");
    ensure!(fast.latency_ms == Some(3_600_000), "{fast:?}");
    client.invoke(call("fast"))?;
    client.remove_instance("fast")?;
    let (kind, message) = refusal(client.invoke(call("fast")))?;
    ensure!(kind == RefusalKind::BadRequest && message.contains("function `affine` has no instances"), "{message}");
    ensure!(client.instances()?.len() == 1, "the share of the tenant is left");
    Ok(())
}

#[test]
fn instances_that_cannot_hold_are_refused_with_the_cause() -> Result<()> {
    let setup = Setup::start(&["--compute-units", "1"], CONFIG)?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    let mut client = setup.client()?;
    client.create_instance(spec("fast", 0.5, 0.6))?;
    for (instance, part) in [
        (spec("fast", 0.1, 0.1), "there is an instance `fast` already"),
        (spec("a b", 0.1, 0.1), "`a b` is not a valid"),
        (spec("b", 0.4, 1.0), "come to 110 % of the lane"),
        (spec("b", 0.5, 0.4), "the quota request 0.5 exceeds the quota limit 0.4"),
        (spec("b", 0.0, 0.4), "a quota request of 0;"),
        (spec("b", -0.1, 0.4), "a quota request of -0.1;"),
        (spec("b", 0.1, 1.5), "a quota limit of 1.5;"),
        (InstanceSpec { sm_partition: 130.0, ..spec("b", 0.1, 0.1) }, "a partition of 130 %"),
        (InstanceSpec { sm_partition: 0.0, ..spec("b", 0.1, 0.1) }, "a partition of 0 %"),
        (InstanceSpec { latency_ms: Some(0), ..spec("b", 0.1, 0.1) }, "a target latency_ms of 0; 1 to 86400000"),
        (InstanceSpec { function: "none".into(), ..spec("b", 0.1, 0.1) }, "there is no function `none`"),
    ] {
        let (kind, message) = refusal(client.create_instance(instance))?;
        ensure!(kind.is_clients() && message.contains(part), "{kind:?}: {message}");
    }
    let too_much = InstanceResize { instance: "fast".into(), quota_request: Some(0.9), ..InstanceResize::default() };
    ensure!(refusal(client.resize_instance(too_much))?.1.contains("the quota request 0.9 exceeds"));
    ensure!(refusal(client.remove_instance("other"))?.1.contains("there is no instance `other`"));
    let (kind, message) = refusal(client.invoke(call("other")))?;
    ensure!(kind == RefusalKind::BadRequest && message.contains("it has fast"), "{message}");
    let not_a_number = setup.command(&["instance", "resize", "fast", "--quota-request", "nan"]).output()?;
    ensure!(String::from_utf8_lossy(&not_a_number.stderr).contains("`nan` is not a finite number"));
    let instances = client.instances()?;
    ensure!(found(&instances, Some("fast"))?.quota_request == 0.5 && instances.len() == 2, "{instances:?}");

    let mut vision = setup.client_of("vision")?;
    let (kind, _) = refusal(vision.create_instance(spec("mine", 0.1, 0.1)))?;
    ensure!(kind == RefusalKind::Denied);
    let seen = vision.instances()?;
    ensure!(seen.len() == 1 && seen[0].instance.is_none(), "a tenant sees its own: {seen:?}");
    Ok(())
}

#[test]
fn an_instance_has_a_class_of_its_own() -> Result<()> {
    let setup = Setup::start(&["--compute-units", "1"], "[tenant.vision]\nclass = \"best-effort\"\n")?;
    let mut vision = setup.client_of("vision")?;
    let deploy = atoll_client::Deploy { private: true, ..atoll_client::Deploy::default() };
    vision.deploy(&setup.path("affine.kg"), &deploy)?;
    let instance =
        InstanceSpec { class: Some(Class::RealTime), function: "vision:affine".into(), ..spec("fast", 0.5, 1.0) };
    let created = setup.client()?.create_instance(instance)?;
    ensure!(created.instance.as_deref() == Some("vision:fast"), "{created:?}");
    let (kind, message) = refusal(vision.invoke(call("fast")))?;
    ensure!(kind == RefusalKind::Denied && message.contains("best-effort work only"), "{message}");
    vision.invoke(call("fast").class(Class::BestEffort))?;
    Ok(())
}

/// The table of the guide is that of the program.
#[test]
fn the_guide_says_what_each_division_guarantees() -> Result<()> {
    let guide = std::fs::read_to_string(root().join("docs/guide/shares.md"))?;
    let rows = guide.lines().skip_while(|line| !line.starts_with("| division |")).skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    let row = |division: Division| {
        let Guarantees { name, compute_units, memory_bandwidth, faults } = division.guarantees();
        format!("| {name} | {compute_units} | {memory_bandwidth} | {faults} |")
    };
    ensure!(rows == Division::ALL.map(row), "{rows:?}");
    Ok(())
}

#[test]
fn instances_are_bound_to_compute_units_and_serve_requests_that_name_none() -> Result<()> {
    let mut setup = Setup::start(&["--compute-units", "2"], "")?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    let mut client = setup.client()?;
    for name in ["left", "right"] {
        let created = client.create_instance(InstanceSpec { sm_partition: 24.0, ..spec(name, 0.6, 1.0) })?;
        let entry = &created.devices[0];
        let area = entry.area.context("it has a place")?;
        ensure!((area.units, entry.granted, entry.compute_units) == (1, 0.5, 2), "24 % is a unit of two: {created:?}");
        ensure!(entry.unbound.is_none() && created.refused.is_none(), "{created:?}");
    }
    let unit_of = |instances: &[InstanceReport], name: &str| -> Result<u32> {
        Ok(found(instances, Some(name))?.devices[0].area.context("it has a place")?.first_unit)
    };
    let instances = client.instances()?;
    let units = (unit_of(&instances, "left")?, unit_of(&instances, "right")?);
    ensure!(units.0 != units.1, "each has a unit of its own: {units:?}");

    // Requests that name no instance are routed to one, over HTTP and over the control socket.
    for _ in 0..4 {
        let vector = Tensor::f32(&[4], &[1.0, 2.0, 3.0, 4.0]);
        client.invoke(Call::of("affine").input("x", vector.clone()).input("b", vector))?;
    }
    let body = json!({
        "inputs": [
            { "name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2] },
            { "name": "b", "datatype": "FP32", "shape": [2], "data": [1, 2] },
        ],
    });
    let (status, text) = ask(&setup.daemon.http, "POST", "/v2/models/affine/infer", &body.to_string())?;
    ensure!(status == 200, "{text}");
    let instances = client.instances()?;
    let all = [found(&instances, Some("left"))?, found(&instances, Some("right"))?];
    ensure!(all.iter().all(|report| report.devices[0].tokens > 0), "both are measured: {all:?}");
    ensure!(all.iter().all(|report| report.requests == 0), "all requests have ended: {all:?}");
    ensure!(all.iter().all(|report| report.throughput.is_some_and(|rate| rate > 0.0)), "{all:?}");
    let charged = &all[0].devices[0];
    ensure!((charged.received_unit_s - charged.received_s).abs() < 1e-6, "one unit was granted: {charged:?}");

    // The map, and a request that exceeds the memory of its instance.
    let map = setup.command(&["instance", "map"]).output()?;
    let map = String::from_utf8_lossy(&map.stdout).into_owned();
    ensure!(map.contains("host:0, 2 compute units") && map.contains("left: units "), "{map}");
    let limit = |bytes| InstanceResize { instance: "left".into(), gpu_mem: Some(bytes), ..InstanceResize::default() };
    client.resize_instance(limit(1))?;
    let (kind, message) = refusal(client.invoke(call("left")))?;
    ensure!(kind == RefusalKind::Quota && message.contains("instance `left` has a gpu_mem of 1 bytes"), "{message}");
    client.invoke(call("right"))?;
    client.resize_instance(limit(1 << 20))?;
    client.invoke(call("left"))?;

    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    let instances = client.instances()?;
    ensure!(unit_of(&instances, "left")? != unit_of(&instances, "right")?, "{instances:?}");
    client.invoke(call("left"))?;
    // A resize to the whole device moves it to all units.
    let whole = InstanceResize { instance: "left".into(), sm_partition: Some(100.0), ..InstanceResize::default() };
    let (kind, message) = refusal(client.resize_instance(whole.clone()))?;
    ensure!(kind.is_clients() && message.contains("of the lane"), "0.6 of all and 0.6 of a half: {message}");
    client.remove_instance("right")?;
    let resized = client.resize_instance(whole)?;
    ensure!(resized.devices[0].granted == 1.0 && resized.devices[0].unbound.is_none(), "{resized:?}");
    client.invoke(call("left"))?;
    Ok(())
}
