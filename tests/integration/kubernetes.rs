//! `integrations/kubernetes`: the manifests, the device plugin with the protocol of the kubelet, the
//! controller with that of the API server, and the driver of dynamic resource allocation with both.

use crate::functions::{manifest, packed};
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::{full, program, python, root, skip};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a script of `tests/python`, whose last line of output begins with `last`.
pub(crate) fn script(python: &Path, name: &str, arguments: &[&OsStr], last: &str) -> Result<()> {
    let output = Command::new(python)
        .arg(root().join("tests/python").join(name))
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("ATOLL_URL")
        .env_remove("ATOLL_TOKEN")
        .stdin(Stdio::null())
        .output()
        .with_context(|| python.display().to_string())?;
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_done = out.lines().last().is_some_and(|line| line.starts_with(last));
    ensure!(output.status.success() && is_done, "{name}: {out}{errors}");
    Ok(())
}

/// A program of this folder, such as `atoll-device-plugin`.
fn built(name: &str) -> Result<PathBuf> {
    let path = program(name);
    ensure!(path.exists(), "{} is not built; run cargo build -p {name}", path.display());
    Ok(path)
}

#[test]
fn manifests_are_right_and_wrong_resources_are_refused() -> Result<()> {
    // Beside the other environment.
    let other = python().ancestors().nth(3).context("an environment has a folder")?.join("kubernetes/bin/python");
    let has_schemas = full() && other.exists();
    if !has_schemas {
        skip("the schemas of Kubernetes, and Helm: 300 MB, which `make test-full` installs and uses");
    }
    let python = if has_schemas { other } else { python() };
    let (atoll, plugin, controller) = (atoll(), built("atoll-device-plugin")?, built("atoll-controller")?);
    let driver = built("atoll-dra-driver")?;
    let arguments = [atoll.as_os_str(), plugin.as_os_str(), controller.as_os_str(), driver.as_os_str()];
    script(&python, "kubernetes_manifests.py", &arguments, "all manifests are right")
}

#[test]
fn the_device_plugin_offers_shares_and_containers_hold_leases() -> Result<()> {
    // The paths of its sockets must be short.
    let folder = tempfile::Builder::new().prefix("ak").tempdir_in("/tmp")?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let (atoll, plugin, work) = (atoll(), built("atoll-device-plugin")?, folder.path().join("w"));
    if !full() {
        skip("annotations of FaST-GShare and the names of HAMi with a daemon: seconds, in `make test-full`");
    }
    let arguments = [atoll.as_os_str(), plugin.as_os_str(), bundle.as_os_str(), work.as_os_str()];
    script(&python(), "kubelet.py", &arguments, "all of it holds")
}

#[test]
fn the_controller_holds_the_leases_that_resources_state() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("ac").tempdir_in("/tmp")?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let (atoll, controller, work) = (atoll(), built("atoll-controller")?, folder.path().join("w"));
    if !full() {
        skip("leaders that die, forgotten versions and impossible resources: a minute, in `make test-full`");
    }
    let arguments = [atoll.as_os_str(), controller.as_os_str(), bundle.as_os_str(), work.as_os_str()];
    script(&python(), "kubernetes_controller.py", &arguments, "all of it holds")
}

#[test]
fn the_dra_driver_holds_the_leases_of_claims() -> Result<()> {
    // The paths of its sockets must be short.
    let folder = tempfile::Builder::new().prefix("ad").tempdir_in("/tmp")?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let (atoll, driver, work) = (atoll(), built("atoll-dra-driver")?, folder.path().join("w"));
    if !full() {
        skip("renewals, and API servers without a feature: half a minute, in `make test-full`");
    }
    let arguments = [atoll.as_os_str(), driver.as_os_str(), bundle.as_os_str(), work.as_os_str()];
    script(&python(), "kubernetes_dra.py", &arguments, "all of it holds")
}
