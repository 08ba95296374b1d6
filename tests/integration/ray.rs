//! The package `atoll-ray`: its parts, a real Ray cluster, and faults in one.

use crate::functions::{manifest, pack_grind, packed};
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::{full, measured, python, root, skip};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A cluster has many processes, so only one test has one at a time.
static CLUSTER: Mutex<()> = Mutex::new(());

#[test]
fn parts_of_the_package_hold_without_a_cluster() -> Result<()> {
    let Some(ray) = ray("the parts of the package for Ray")? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    run(&ray, "units.py", &[folder.path().as_os_str()]).map(drop)
}

#[test]
fn replicas_on_a_ray_cluster_hold_leases_and_are_replaced() -> Result<()> {
    let Some(ray) = ray("replicas on a Ray cluster")? else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let (atoll, cluster) = (atoll(), folder.path().join("cluster"));
    let mut arguments = vec![atoll.as_os_str(), bundle.as_os_str(), cluster.as_os_str()];
    if !full() {
        // One node and one replica.
        arguments.push(OsStr::new("short"));
    }
    run(&ray, "cluster.py", &arguments).map(drop)
}

#[test]
fn the_simulation_predicts_a_run_on_three_ray_nodes() -> Result<()> {
    let Some(ray) = ray("the prediction of a run on three Ray nodes")? else { return Ok(()) };
    if !full() {
        skip("the prediction of a run on three Ray nodes: minutes; `make test-full` runs it");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (atoll, bundle) = (atoll(), pack_grind(folder.path(), 1)?);
    let cluster = folder.path().join("cluster");
    run(&ray, "prediction.py", &[atoll.as_os_str(), bundle.as_os_str(), cluster.as_os_str()]).map(drop)
}

/// `ATOLL_ROUNDS` is the number of faults, 5 if it is not set. `ATOLL_SEED` selects them.
#[test]
fn three_ray_nodes_recover_from_faults_and_promise_nothing_twice() -> Result<()> {
    let Some(ray) = ray("faults on three Ray nodes")? else { return Ok(()) };
    if !full() {
        skip("faults on three Ray nodes: minutes; `make test-full` runs five, and `ATOLL_ROUNDS=200` many");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let (atoll, cluster) = (atoll(), folder.path().join("cluster"));
    let out = run(&ray, "chaos.py", &[atoll.as_os_str(), bundle.as_os_str(), cluster.as_os_str()])?;
    let result = out.lines().rev().nth(1).context("the run prints its result")?;
    measured(&format!("Ray on three nodes: {result}"));
    Ok(())
}

/// Python of Ray's environment, which is beside the tests' environment.
fn ray(what: &str) -> Result<Option<PathBuf>> {
    let ray = python().ancestors().nth(3).context("an environment has a folder")?.join("ray/bin/python");
    if ray.exists() {
        return Ok(Some(ray));
    }
    skip(&format!("{what}: {} is not installed; `make test-full` does it", ray.display()));
    Ok(None)
}

/// Runs a test of the package, and returns its output.
fn run(ray: &Path, test: &str, arguments: &[&OsStr]) -> Result<String> {
    let _one = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    let package = root().join("integrations/ray");
    let output = Command::new(ray)
        .arg(package.join("tests").join(test))
        .args(arguments)
        .env("PYTHONPATH", package.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // The rule by which deployments are scaled.
        .env("ATOLL_PROGRAM", atoll())
        .env_remove("ATOLL_URL")
        .env_remove("ATOLL_TOKEN")
        .stdin(Stdio::null())
        .output()?;
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for reason in out.lines().filter_map(|line| line.strip_prefix("SKIPPED: ")) {
        skip(reason);
    }
    for figures in out.lines().filter_map(|line| line.strip_prefix("MEASURED: ")) {
        measured(&format!("Ray: {figures}"));
    }
    ensure!(output.status.success() && out.ends_with("all of it holds\n"), "{out}{errors}");
    Ok(out.into_owned())
}
