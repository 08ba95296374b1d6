//! The Python package: a wheel in a bare environment, the guide's page, errors and types.

use crate::clients::clients_python;
use crate::console::run_elsewhere;
use crate::functions::{manifest, packed};
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::{full, program, python, root, skip};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder with the package `atoll` as it is in the repository, over the library and the program
/// that cargo built. It goes on `PYTHONPATH`.
pub(crate) fn package() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let to = folder.path().join("atoll");
    std::fs::create_dir_all(to.join("bin"))?;
    for file in std::fs::read_dir(root().join("integrations/python/python/atoll"))? {
        let file = file?.path();
        if file.is_file() {
            symlink(&file, to.join(file.file_name().context("a file has a name")?))?;
        }
    }
    symlink(program("libatoll_python.so"), to.join("_native.abi3.so"))?;
    symlink(atoll(), to.join("bin/atoll"))?;
    Ok(folder)
}

/// Runs a command and returns what it printed.
fn ran(command: &mut Command) -> Result<String> {
    let output = command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("ATOLL_PROGRAM").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// A new virtual environment with nothing but NumPy, which is linked from the tests' environment.
fn bare_environment(folder: &Path) -> Result<PathBuf> {
    let place = folder.join("venv");
    ran(Command::new(python()).args(["-m", "venv"]).arg(&place))?;
    let inside = place.join("bin/python");
    let packages = |python: &Path| -> Result<PathBuf> {
        let says = ran(Command::new(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))?;
        Ok(says.trim().into())
    };
    let (from, to) = (packages(&python())?, packages(&inside)?);
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "numpy" || name.to_string_lossy().starts_with("numpy-") || name == "numpy.libs" {
            symlink(entry.path(), to.join(name))?;
        }
    }
    Ok(inside)
}

/// Checks a wheel as an index and its users do.
fn check(wheel: &Path) -> Result<()> {
    let mut script = Command::new(python());
    script.arg(root().join("tests/python/wheel.py")).arg(wheel);
    script.arg(root().join("integrations/python/pyproject.toml"));
    ensure!(ran(&mut script)?.ends_with("all of it holds\n"));
    let twine = clients_python()?;
    if !full() || !twine.exists() {
        skip("twine, which judges the wheel's metadata: `make test-full` runs it");
        return Ok(());
    }
    ran(Command::new(twine).args(["-m", "twine", "check", "--strict"]).arg(wheel)).map(drop)
}

/// Installs a wheel without an index.
fn install(python: &Path, wheel: &str) -> Result<()> {
    let pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--disable-pip-version-check", wheel];
    ran(Command::new(python).args(pip))?;
    let says = ran(Command::new(python).args(["-m", "atoll", "--version"]))?;
    ensure!(says.starts_with("atoll "), "{says}");
    Ok(())
}

#[test]
fn a_wheel_in_a_bare_environment_runs_the_guide() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let built = program("");
    let mut assemble = Command::new(python());
    let wheel = ran(assemble.arg(root().join("integrations/python/assemble.py")).arg(&built).arg(folder.path()))?;
    check(Path::new(wheel.trim()))?;
    let python = bare_environment(folder.path())?;
    install(&python, wheel.trim())?;
    run_elsewhere(python.parent().context("Python is in a folder")?)
}

/// Runs a script on the package, with the bundles of two functions.
fn run_script(name: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for function in ["affine", "faulty"] {
        packed(&manifest(function), &folder.path().join(function).with_extension("kg"))?;
    }
    let packages = package()?;
    let mut script = Command::new(python());
    script.arg("-B").arg(root().join("tests/python").join(name)).arg(folder.path());
    script.env("PYTHONPATH", packages.path()).env("XDG_CACHE_HOME", folder.path().join("cache"));
    script.env_remove("ATOLL_TOKEN").env_remove("ATOLL_LOG");
    ensure!(ran(&mut script)?.ends_with("all of it holds\n"));
    Ok(())
}

#[test]
fn calls_from_python_have_results_types_and_exceptions() -> Result<()> {
    run_script("package.py")
}

#[test]
fn python_has_chains_objects_futures_graphs_leases_and_sessions() -> Result<()> {
    run_script("package_control.py")
}

#[test]
fn the_client_for_asyncio_does_not_block_and_cancels_requests() -> Result<()> {
    run_script("package_asyncio.py")
}

#[test]
fn the_package_has_types() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut check = Command::new(python());
    check.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(folder.path()).args(["-p", "atoll"]);
    check.current_dir(root().join("integrations/python/python"));
    ran(&mut check)?;
    Ok(())
}

#[test]
fn maturin_builds_the_wheel() -> Result<()> {
    if !full() {
        skip("the wheel that maturin builds: a minute; `make test-full` runs it");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let environment = python();
    let environment = environment.ancestors().nth(2).context("Python is in the folder of its environment")?;
    let mut build = Command::new(root().join("integrations/python/build.sh"));
    build.arg(program("")).args(["--profile", "dev", "--target-dir"]).arg(root().join("target/python"));
    let wheel = ran(build.env("ATOLL_VENV", environment))?;
    let wheel = root().join(wheel.trim());
    check(&wheel)?;
    install(&bare_environment(folder.path())?, &wheel.to_string_lossy())
}
