//! Leases of a daemon: granted once, renewed, fenced by epochs, ended, and kept over a restart.

use crate::control::{Setup, refusal};
use crate::executors::wait_until;
use crate::serve::atoll;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Call, Class, ClientError, LeaseHold, LeaseReport, LeaseSpec, RefusalKind, Tensor};
use atoll_tests::http::ask;
use serde_json::{Value, json};
use std::fs::File;
use std::process::Command;

fn spec(request_id: &str) -> LeaseSpec {
    LeaseSpec {
        request_id: request_id.into(),
        holder: format!("holder-of-{request_id}"),
        function: "affine".into(),
        class: None,
        sm_partition: 30.0,
        quota_request: 0.4,
        quota_limit: 0.8,
        gpu_mem: 1 << 20,
        real_time_slots: None,
        ttl_s: 600,
    }
}

fn hold(lease: &LeaseReport) -> LeaseHold {
    LeaseHold { lease: lease.lease, epoch: lease.epoch, holder: lease.holder.clone() }
}

fn call(instance: &str) -> Call {
    let vector = Tensor::f32(&[2], &[1.0, 2.0]);
    Call::of("affine").instance(instance).input("x", vector.clone()).input("b", vector)
}

/// Sends JSON to the inference port.
fn post(setup: &Setup, path: &str, body: &Value) -> Result<(u16, Value)> {
    let (status, text) = ask(&setup.daemon.http, "POST", path, &body.to_string())?;
    Ok((status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? }))
}

fn infer(setup: &Setup, instance: &str, priority: u32) -> Result<(u16, Value)> {
    let body = json!({
        "parameters": { "instance": instance, "priority": priority },
        "inputs": [
            { "name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2] },
            { "name": "b", "datatype": "FP32", "shape": [2], "data": [1, 2] },
        ],
    });
    post(setup, "/v2/models/affine/infer", &body)
}

fn get(setup: &Setup, path: &str) -> Result<Value> {
    let (status, text) = ask(&setup.daemon.http, "GET", path, "")?;
    ensure!(status == 200, "{path}: {status} {text}");
    Ok(serde_json::from_str(&text)?)
}

#[test]
fn a_lease_is_granted_once_and_its_instance_lives_as_long_as_it() -> Result<()> {
    let setup = Setup::start(&["--compute-units", "2"], "")?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    ensure!(get(&setup, "/v2/models/affine/profile")? == json!({ "points": [] }), "it has no profile");
    let before = get(&setup, "/v2/capacity")?;
    ensure!(before["devices"][0]["free"][0] == json!({ "sm_partition": 100.0, "quota": 1.0 }), "{before}");
    let grant =
        ["lease", "grant", "--request-id", "r1", "--holder", "a", "--function", "affine", "--sm-partition", "50"];
    let figures = ["--quota-request", "0.4", "--quota-limit", "0.8", "--gpu-mem", "1M", "--ttl", "600"];
    let granted = setup.json(&[grant.as_slice(), &figures].concat())?;
    let again = setup.json(&[grant.as_slice(), &figures].concat())?;
    ensure!(granted["lease"] == again["lease"] && granted["epoch"] == again["epoch"], "{granted} {again}");
    let (lease, epoch) = (granted["lease"].as_u64().context("a lease")?, granted["epoch"].clone());
    let instance = granted["instance"].as_str().context("an instance")?;
    ensure!(instance == format!("lease-{lease}") && granted["device"] == "host:0", "{granted}");
    // The same id is known over HTTP, too; with other values it is refused.
    let body = json!({ "request_id": "r1", "holder": "a", "function": "affine", "sm_partition": 50,
        "quota_request": 0.4, "quota_limit": 0.8, "gpu_mem": 1 << 20, "ttl_s": 600 });
    let (status, over_http) = post(&setup, "/v2/leases", &body)?;
    ensure!(status == 200 && over_http["epoch"] == epoch, "{over_http}");
    let mut other = body.clone();
    other["quota_limit"] = json!(0.9);
    let (status, text) = post(&setup, "/v2/leases", &other)?;
    ensure!(status == 409 && text["error"].as_str().is_some_and(|text| text.contains("another request")), "{text}");
    let capacity = get(&setup, "/v2/capacity")?;
    let device = &capacity["devices"][0];
    ensure!((&capacity["leases"], &device["promised_sm_pct"]) == (&json!(1), &json!(20.0)), "{capacity}");
    ensure!(device["promised_memory_bytes"] == 1 << 20 && device["promised_real_time_slots"] == 0, "{capacity}");

    ensure!(infer(&setup, instance, 0)?.0 == 200);
    let (status, text) = infer(&setup, instance, 1)?;
    ensure!(status == 400 && text.to_string().contains("without a real-time slot"), "{text}");
    let mut client = setup.client()?;
    client.invoke(call(instance))?;
    // Both requests count, and no refused one.
    let load = get(&setup, "/v2/leases/load")?;
    let ended = load[0]["ended"].as_array().context("ended requests")?;
    let ended: u64 = ended.iter().filter_map(|one| one["requests"].as_u64()).sum();
    ensure!(load[0]["instance"] == instance && load[0]["begun"] == 2 && ended == 2, "{load}");
    ensure!(load[0]["in_flight"] == 0 && load[0]["service_ns"].is_u64(), "{load}");
    ensure!(refusal(client.invoke(call(instance).class(Class::RealTime)))?.1.contains("without a real-time slot"));
    // Operators cannot change the lease's instance.
    ensure!(refusal(client.remove_instance(instance))?.1.contains("belongs to a lease"));
    let (status, renewed) =
        post(&setup, &format!("/v2/leases/{lease}/renew"), &json!({ "epoch": epoch, "holder": "a" }))?;
    ensure!(status == 200 && renewed["epoch"] == epoch, "{renewed}");
    ensure!(get(&setup, "/v2/leases")?.as_array().is_some_and(|all| all.len() == 1));

    let path = format!("/v2/leases/{lease}/release");
    for _ in 0..2 {
        ensure!(post(&setup, &path, &json!({ "epoch": epoch, "holder": "a" }))?.0 == 200, "a repetition succeeds");
    }
    let (status, text) = infer(&setup, instance, 0)?;
    ensure!(status == 409 && text.to_string().contains("a lease that has ended"), "{text}");
    ensure!(get(&setup, "/v2/leases")? == json!([]) && client.instances()?.is_empty());
    ensure!(get(&setup, "/v2/leases/load")? == json!([]));
    ensure!(get(&setup, "/v2/capacity")? == before);
    let (status, text) = post(&setup, "/v2/leases", &body)?;
    ensure!(status == 409 && text.to_string().contains("has ended"), "a late repetition gets no second lease: {text}");
    Ok(())
}

#[test]
fn what_is_not_possible_is_refused_with_the_cause() -> Result<()> {
    let config = "real_time_slots = 1\n[tenant.vision]\n[tenant.speech]\nleases = true\nclass = \"best-effort\"\n";
    let setup = Setup::start(&["--compute-units", "2"], config)?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    let body = |field: &str, value: Value| {
        let mut body = json!({ "request_id": "r", "holder": "a", "function": "affine", "sm_partition": 30,
            "quota_request": 0.4, "gpu_mem": 1 << 20 });
        body[field] = value;
        body
    };
    for (field, value, status, part) in [
        ("sm_partition", json!(130), 400, "a partition of 130 %"),
        ("sm_partition", json!(-1), 400, "a partition of -1 %"),
        ("sm_partition", json!("30"), 400, "invalid type: string"),
        ("quota_request", json!(1.3), 400, "a quota request of 1.3"),
        ("quota_limit", json!(0.1), 400, "exceeds the quota limit 0.1"),
        ("gpu_mem", json!(-5), 400, "gpu_mem is -5; 1 to"),
        ("gpu_mem", json!(1_u64 << 40), 400, "no device is large enough"),
        ("real_time_slots", json!(2), 400, "no device is large enough"),
        ("ttl_s", json!(0), 400, "ttl_s is 0; 5 to 600 seconds"),
        ("holder", json!(""), 400, "holder is missing"),
        ("holder", json!("a\n"), 400, "only visible ASCII"),
        ("request_id", json!("x".repeat(129)), 400, "request_id has 129 bytes"),
        ("function", json!("none"), 404, "there is no function `none`"),
        ("function", json!("vision:affine"), 404, "there is no function `vision:affine`"),
        ("partition", json!(30), 400, "unknown field `partition`"),
        ("class", json!("fast"), 400, "unknown variant `fast`"),
    ] {
        let (found, text) = post(&setup, "/v2/leases", &body(field, value))?;
        ensure!(found == status && text.to_string().contains(part), "{field}: {found} {text}, not {status} {part}");
    }
    let (status, text) = post(&setup, "/v2/leases/1/renew", &json!({ "epoch": 2, "holder": "a" }))?;
    ensure!(status == 404 && text.to_string().contains("there is no lease 1"), "{text}");
    ensure!(post(&setup, "/v2/leases/x/renew", &json!({ "epoch": 2, "holder": "a" }))?.0 == 400);

    // Refusals for lack of room: by the ledger, by the engine beside an operator's instance, and on
    // a drained device.
    let mut client = setup.client()?;
    let full = |id: &str, quota_request| LeaseSpec { sm_partition: 100.0, quota_request, quota_limit: 1.0, ..spec(id) };
    let lease = client.grant_lease(full("r1", 0.6))?;
    let (kind, message) = refusal(client.grant_lease(full("r2", 0.5)))?;
    ensure!(kind == RefusalKind::Busy && message.contains("no device has room"), "{message}");
    let instance = atoll_client::InstanceSpec {
        name: "other".into(),
        function: "affine".into(),
        class: None,
        sm_partition: 100.0,
        quota_request: 0.3,
        quota_limit: 1.0,
        gpu_mem: None,
        latency_ms: None,
    };
    client.create_instance(instance.clone())?;
    let reserved = atoll_client::InstanceSpec { name: "lease-9".into(), ..instance };
    ensure!(refusal(client.create_instance(reserved))?.1.contains("are reserved for leases"));
    let (kind, message) = refusal(client.grant_lease(full("r2", 0.2)))?;
    ensure!(kind == RefusalKind::Busy && message.contains("host:0 has no room for the lease now"), "{message}");
    client.remove_instance("other")?;
    let second = client.grant_lease(full("r2", 0.2))?;
    ensure!(second.lease > lease.lease, "the id was free, since its request was refused: {second:?}");
    client.drain("host:0", true)?;
    ensure!(refusal(client.grant_lease(full("r3", 0.1)))?.1.contains("is drained"));
    client.renew_lease(hold(&second))?;
    client.drain("host:0", false)?;
    client.grant_lease(full("r3", 0.1))?;

    // Refusals for lack of rights: without the right, and for functions and leases of others.
    let mut vision = setup.client_of("vision")?;
    for result in [vision.grant_lease(spec("r4")), vision.renew_lease(hold(&lease))] {
        let (kind, message) = refusal(result)?;
        ensure!(kind == RefusalKind::Denied && message.contains("may hold no leases"), "{message}");
    }
    ensure!(matches!(vision.capacity(), Err(ClientError::Refused(_))));
    let mut speech = setup.client_of("speech")?;
    let (kind, message) = refusal(speech.renew_lease(hold(&lease)))?;
    ensure!(kind == RefusalKind::NotFound && message.contains("there is no lease"), "{message}");
    ensure!(refusal(speech.release_lease(hold(&lease)))?.0 == RefusalKind::NotFound);
    ensure!(speech.leases()?.is_empty() && client.leases()?.len() == 3);
    speech.deploy(&setup.path("affine.kg"), &atoll_client::Deploy::default())?;
    let real_time = LeaseSpec { class: Some(Class::RealTime), ..spec("r5") };
    ensure!(refusal(speech.grant_lease(real_time))?.1.contains("best-effort work only"));
    let own = speech.grant_lease(LeaseSpec { sm_partition: 5.0, quota_request: 0.05, ..spec("r1") })?;
    let its = speech.leases()?;
    ensure!(own.function == "speech:affine" && its.len() == 1 && its[0].lease == own.lease, "{own:?} {its:?}");
    client.release_lease(hold(&own))?;
    Ok(())
}

#[test]
fn leases_outlive_a_killed_daemon_and_old_holders_stay_fenced_off() -> Result<()> {
    let mut setup = Setup::start(&["--compute-units", "2"], "real_time_slots = 2\n")?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    let mut client = setup.client()?;
    let (kept, ended) = (client.grant_lease(spec("kept"))?, client.grant_lease(spec("ended"))?);
    let real_time = LeaseSpec { class: Some(Class::RealTime), ..spec("real-time") };
    let real_time = client.grant_lease(real_time)?;
    ensure!(real_time.real_time_slots == 1, "{real_time:?}");
    client.release_lease(hold(&ended))?;
    let taken = client.take_over_lease(LeaseHold { holder: "successor".into(), ..hold(&kept) })?;
    ensure!(taken.lease == kept.lease && taken.epoch > real_time.epoch, "{taken:?}");
    let stale = |result| -> Result<()> {
        let (kind, message) = refusal(result)?;
        ensure!(kind == RefusalKind::BadRequest && message.contains("another holder took it over"), "{message}");
        Ok(())
    };
    stale(client.renew_lease(hold(&kept)))?;
    stale(client.release_lease(hold(&kept)).map(|()| kept.clone()))?;
    let path = format!("/v2/leases/{}/renew", kept.lease);
    ensure!(post(&setup, &path, &json!({ "epoch": kept.epoch, "holder": kept.holder }))?.0 == 409);
    // A guessed epoch that was never used, and a guessed holder.
    for forged in
        [LeaseHold { epoch: taken.epoch + 1, ..hold(&taken) }, LeaseHold { holder: "x".into(), ..hold(&taken) }]
    {
        ensure!(refusal(client.renew_lease(forged))?.0 == RefusalKind::NotFound);
    }

    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    let numbers = |leases: Vec<LeaseReport>| leases.iter().map(|one| (one.lease, one.epoch)).collect::<Vec<_>>();
    let found = numbers(client.leases()?);
    ensure!(found == [(taken.lease, taken.epoch), (real_time.lease, real_time.epoch)], "{found:?}");
    client.invoke(call(&taken.instance))?;
    stale(client.renew_lease(hold(&kept)))?;
    client.renew_lease(hold(&taken))?;
    let again = client.grant_lease(LeaseSpec { class: Some(Class::RealTime), ..spec("real-time") })?;
    ensure!((again.lease, again.epoch) == (real_time.lease, real_time.epoch), "a repetition gets the same: {again:?}");
    let message = refusal(client.grant_lease(spec("ended")))?.1;
    ensure!(message.contains("has ended"), "{message}");
    let new = client.grant_lease(LeaseSpec { sm_partition: 10.0, ..spec("new") })?;
    ensure!(new.lease > taken.epoch && new.epoch > taken.epoch, "{new:?}");

    // The daemon restarts with fewer real-time slots, so the real-time lease is revoked.
    std::fs::write(setup.path("atoll.toml"), "real_time_slots = 0\n")?;
    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    let found = numbers(client.leases()?);
    ensure!(found == [(taken.lease, taken.epoch), (new.lease, new.epoch)], "{found:?}");
    ensure!(refusal(client.renew_lease(hold(&real_time)))?.1.contains("there is no lease"));
    ensure!(refusal(client.invoke(call(&real_time.instance)))?.1.contains("has no instance"));
    Ok(())
}

#[test]
fn a_lease_that_is_not_renewed_ends_and_its_room_is_free() -> Result<()> {
    let setup = Setup::start(&["--compute-units", "2"], "")?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    let mut client = setup.client()?;
    let whole = |id: &str, ttl_s| LeaseSpec { sm_partition: 100.0, quota_request: 0.5, ttl_s, ..spec(id) };
    let (short, long) = (client.grant_lease(whole("short", 5))?, client.grant_lease(whole("long", 5))?);
    ensure!(short.expires_in_ms <= 5000, "{short:?}");
    wait_until("the lease that is not renewed ends", || {
        client.renew_lease(hold(&long))?;
        Ok(client.leases()?.len() == 1)
    })?;
    ensure!(client.leases()?[0].lease == long.lease && client.instances()?.len() == 1);
    ensure!(refusal(client.renew_lease(hold(&short)))?.0 == RefusalKind::NotFound);
    let next = client.grant_lease(whole("next", 5))?;
    ensure!(next.epoch > long.epoch, "{next:?}");
    let Err(ClientError::Refused(late)) = client.invoke(call(&short.instance)) else { bail!("its instance is gone") };
    ensure!(late.kind == RefusalKind::BadRequest, "{late:?}");
    Ok(())
}

#[test]
fn the_rule_of_scaling_answers_each_line() -> Result<()> {
    let lines = [
        r#"{"latency_ms": 100, "max_instances": 3, "quota_request": 0.1}"#,
        r#"{"now_ns": 1, "arrivals": 5, "queued": 0, "ended": 0, "late": 0, "running": [], "service_ns": 50000000}"#,
        "not JSON",
    ];
    let folder = tempfile::tempdir()?;
    let input = folder.path().join("lines");
    std::fs::write(&input, lines.join("\n"))?;
    let rule = || Command::new(atoll()).args(["lease", "scale"]).stdin(File::open(&input)?).output();
    let output = rule()?;
    ensure!(output.status.success(), "{output:?}");
    let answers: Vec<Value> =
        String::from_utf8(output.stdout)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let [first, second] = &answers[..] else { bail!("{answers:?}") };
    // With less than 60 % of the time, the pauses at the ends of windows make a request too slow.
    ensure!(first["add"] == json!([{ "sm_partition": 100.0, "quota": 0.6 }]), "{first}");
    ensure!(first["rate"] == 5.0 && first["why"] == "a request found no instance", "{first}");
    ensure!(second["error"].is_string(), "{second}");
    std::fs::write(&input, "{}")?;
    let output = rule()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2) && errors.contains("latency_ms"), "{output:?}");
    Ok(())
}
