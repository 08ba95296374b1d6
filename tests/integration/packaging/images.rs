//! The container images: built whole where their base images can be fetched, and, without a registry,
//! their last stage with a package of the programs under test. Full runs only.

use super::{CONTAINER_FILES, package};
use anyhow::{Context, Result, ensure};
use atoll_models::{BuildOptions, build_onnx};
use atoll_tests::{full, root, skip};
use std::process::{Command, Output};

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Why this machine cannot build the last stage; `None` if it can.
fn missing() -> Option<&'static str> {
    // The package's dependencies are those of the system that it is built on.
    let version = std::fs::read_to_string("/etc/debian_version").unwrap_or_default();
    let needed = [
        (full(), "make test-full"),
        (version.starts_with("12"), "the package is for Debian 12, and this is another system"),
        (rustix::process::geteuid().is_root(), "debootstrap needs root"),
        (is_there("debootstrap"), "debootstrap is missing, which tools/setup.sh installs"),
        (is_there("buildah"), "buildah is missing, which tools/setup.sh installs"),
        (is_there("dpkg-shlibdeps"), "dpkg-shlibdeps (dpkg-dev) is missing"),
    ];
    needed.into_iter().find(|(is_there, _)| !is_there).map(|(_, reason)| reason)
}

#[test]
fn images_serve_a_model() -> Result<()> {
    if let Some(missing) = missing() {
        skip(&format!("a model served in the container images: {missing}"));
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let package = package(folder.path())?;
    let model = folder.path().join("null.onnx");
    std::fs::write(&model, build_onnx("null", &BuildOptions::default())?)?;
    for file in CONTAINER_FILES {
        let mut check = Command::new(root().join("packaging/container/check.sh"));
        let output = check.arg(root().join(file)).args([&package, &model]).output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && printed.contains("the model is served"), "{file}: {printed}{errors}");
    }
    Ok(())
}

/// The base images of a Containerfile.
fn base_images(file: &str) -> Result<Vec<String>> {
    let text = super::read(file)?;
    let images = text.lines().filter_map(|line| line.strip_prefix("FROM ")?.split(' ').next());
    Ok(images.map(str::to_owned).collect())
}

#[test]
fn images_are_built_where_their_base_images_are_there() -> Result<()> {
    if !full() {
        skip("building the container images: make test-full, with buildah or podman");
        return Ok(());
    }
    let Some(builder) = ["podman", "buildah"].into_iter().find(|name| is_there(name)) else {
        skip("building the container images: neither podman nor buildah is installed");
        return Ok(());
    };
    let output = |arguments: &[&str]| -> Result<Output> {
        Command::new(builder).args(arguments).current_dir(root()).output().context(builder)
    };
    for image in base_images(CONTAINER_FILES[0])? {
        let pulled = output(&["pull", "--quiet", &image])?;
        if !pulled.status.success() {
            let errors = String::from_utf8_lossy(&pulled.stderr).into_owned();
            skip(&format!("building the container images: no {image}: {}", errors.lines().last().unwrap_or_default()));
            return Ok(());
        }
    }
    let folder = tempfile::tempdir()?;
    let id = folder.path().join("id");
    for file in CONTAINER_FILES {
        let id_file = id.to_str().context("a path in UTF-8")?;
        let built = output(&["build", "--format", "docker", "-f", file, "--iidfile", id_file, "."])?;
        ensure!(built.status.success(), "{file}: {}", String::from_utf8_lossy(&built.stderr));
        if builder != "podman" {
            skip(&format!("running the image of {file}: podman is not installed"));
            continue;
        }
        let image = std::fs::read_to_string(&id)?;
        let run = output(&["run", "--rm", "--network", "none", "--entrypoint", "atoll", image.trim(), "--version"])?;
        let version = String::from_utf8_lossy(&run.stdout).into_owned();
        let errors = String::from_utf8_lossy(&run.stderr);
        ensure!(run.status.success() && version.starts_with("atoll "), "{file}: {version}{errors}");
    }
    Ok(())
}
