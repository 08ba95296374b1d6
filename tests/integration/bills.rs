//! What tenants are billed: the kernel's count of the CPU time of their executors, and where it
//! counts none, what the device reports.

use crate::control::Setup;
use crate::stages::{DOUBLE, MODULE};
use anyhow::{Context, Result, ensure};
use atoll_client::{BilledBy, Call, Deploy, Tensor, UsageEntry, UsageReport};
use atoll_tests::http::ask;
use std::time::{Duration, Instant};

/// Longest wait for the daemon to read the kernel's count, which it does 20 times a second.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Billed time and CPU time of a tenant in CPU seconds, and the counts by which it is billed.
fn bill(report: &UsageReport, tenant: &str) -> (f64, f64, Vec<BilledBy>) {
    let rows = || report.rows.iter().filter(|row| row.tenant.as_str() == tenant);
    let billed = rows().map(|row| row.billed_s).sum::<f64>() * f64::from(report.compute_units);
    let executor = report.executors.iter().find(|executor| executor.tenant.as_str() == tenant);
    (billed, executor.map_or(0.0, |executor| executor.cpu_s), rows().map(|row| row.billed_by).collect())
}

/// Deploys two functions of a tenant, and runs both until each is billed.
fn work(setup: &Setup, tenant: &str) -> Result<UsageReport> {
    let mut client = setup.client_of(tenant)?;
    let vector = || Tensor::f32(&[10_000], &[1.0; 10_000]);
    for name in ["one", "two"] {
        let how = Deploy { name: Some(name.into()), private: true, ..Deploy::default() };
        client.deploy(&setup.path("affine.kg"), &how)?;
    }
    let begun = Instant::now();
    loop {
        for name in ["one", "two"] {
            client.invoke(Call::of(name).input("x", vector()).input("b", vector()))?;
        }
        let report = client.usage()?;
        let is_billed =
            |name: &str| report.rows.iter().any(|row| row.function.as_deref() == Some(name) && row.billed_s > 0.0);
        if is_billed("one") && is_billed("two") {
            return Ok(report);
        }
        ensure!(begun.elapsed() < TIMEOUT, "{report:?}");
    }
}

#[test]
fn a_tenant_is_billed_the_cpu_time_that_the_kernel_counted_for_its_executor() -> Result<()> {
    let setup = Setup::start(&[], "[tenant.a]\ntrusted_code = true\n")?;
    let (billed, cpu, by) = bill(&work(&setup, "a")?, "a");
    ensure!(!by.is_empty() && by.iter().all(|by| *by == BilledBy::Kernel), "{by:?}");
    ensure!(billed > 0.0 && billed <= cpu + 1e-6, "{billed} s are billed of {cpu} s");
    // What is left when the executor has ended is in the bill, too, to the last nanosecond.
    let mut client = setup.client_of("a")?;
    client.remove_function("one")?;
    client.remove_function("two")?;
    let (billed, cpu, _) = bill(&client.usage()?, "a");
    ensure!(cpu > 0.0 && (billed - cpu).abs() < 1e-6, "{billed} s are billed of {cpu} s");
    let json = setup.json(&["usage", "--tenant", "a"])?;
    let row = json["rows"].as_array().and_then(|rows| rows.first()).with_context(|| format!("a row: {json}"))?;
    ensure!(row["billed_by"] == "kernel", "{row}");
    Ok(())
}

#[test]
fn without_executors_a_tenant_is_billed_what_the_device_reports() -> Result<()> {
    let setup = Setup::start(&["--isolation", "none", "--trust-tenants"], "[tenant.a]\ntrusted_code = true\n")?;
    let report = work(&setup, "a")?;
    ensure!(report.executors.is_empty(), "{report:?}");
    let rows: Vec<_> = report.rows.iter().filter(|row| row.tenant.as_str() == "a").collect();
    let is_reported = |row: &UsageEntry| row.billed_by == BilledBy::Report && row.billed_s == row.device_s;
    ensure!(!rows.is_empty() && rows.iter().all(|row| is_reported(row)), "{rows:?}");
    Ok(())
}

#[test]
fn the_cpu_time_of_stages_is_billed_and_counts_for_price_limits() -> Result<()> {
    let setup = Setup::start(&[], "[prices]\ncpu = 2\n")?;
    std::fs::write(setup.path("module.wasm"), wat::parse_str(DOUBLE)?)?;
    std::fs::write(setup.path("scale.toml"), MODULE)?;
    setup.json(&["graph", "deploy", "scale.toml"])?;
    let call = ["graph", "invoke", "scale", "x=21", "--shape", "x=1000", "--price-max", "10"];
    // The first calls measure the stage, the last one is planned.
    for _ in 0..5 {
        let answer = setup.json(&call)?;
        ensure!(answer["outputs"][0]["max"] == 42.0, "{answer}");
    }
    let usage = setup.json(&["usage"])?;
    ensure!(usage["cpu_price_per_s"] == 2.0, "{usage}");
    let executors = usage["executors"].as_array().context("executors")?;
    let used = executors.iter().find(|used| used["device"] == "cpu").context("CPU stages")?;
    let number = |field: &str| used[field].as_f64().with_context(|| format!("{field}: {used}"));
    ensure!(number("cpu_s")? > 0.0 && (number("price")? - 2.0 * number("cpu_s")?).abs() < 1e-9, "{used}");
    ensure!(usage["devices"][0]["price_per_s"].is_null(), "devices are free: {usage}");
    let text = String::from_utf8(setup.command(&["usage"]).output()?.stdout)?;
    ensure!(text.contains("CPU stages, 2 units a second of CPU time\n") && text.contains("\nlocal: "), "{text}");
    let (_, metrics) = ask(&setup.daemon.metrics, "GET", "/metrics", "")?;
    ensure!(metrics.contains("atoll_stage_price_units_total{tenant=\"local\"} "), "{metrics}");

    let explained = setup.json(&["graph", "explain", "scale", "--price-max", "0"])?;
    let admission = &explained["admission"];
    ensure!(admission["kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"] == "cpu")));
    let cost = &admission["costs"][0];
    ensure!(cost["kind"] == "cpu" && cost["price"].as_f64().is_some_and(|price| price > 0.0), "{admission}");
    ensure!(admission["now"]["admitted"] == false, "it costs more than nothing: {admission}");
    Ok(())
}
