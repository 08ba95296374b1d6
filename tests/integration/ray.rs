//! The package `atoll-ray` on a real Ray cluster.

use crate::functions::{manifest, packed};
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::{full, python, root, skip};
use std::process::{Command, Stdio};

#[test]
fn replicas_on_a_ray_cluster_hold_leases_and_are_replaced() -> Result<()> {
    // Ray's environment is beside the tests' environment.
    let ray = python().ancestors().nth(3).context("an environment has a folder")?.join("ray/bin/python");
    if !full() {
        skip("replicas on a Ray cluster: a minute, and Ray; `make test-full` runs it");
        return Ok(());
    }
    if !ray.exists() {
        skip(&format!("replicas on a Ray cluster: {} is not installed; tools/setup.sh does it", ray.display()));
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let output = Command::new(ray)
        .arg(root().join("integrations/ray/tests/cluster.py"))
        .arg(atoll())
        .args([&bundle, &folder.path().join("cluster")])
        .env("PYTHONPATH", root().join("integrations/ray/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("ATOLL_URL")
        .env_remove("ATOLL_TOKEN")
        .stdin(Stdio::null())
        .output()?;
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && out.ends_with("all of it holds\n"), "{out}{errors}");
    Ok(())
}
