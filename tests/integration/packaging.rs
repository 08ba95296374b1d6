//! `packaging`: socket units, container files, and the bill of materials agree with each other and
//! with the program. `images.rs` and `vm.rs` install the package; `archives.rs` builds the archives.

mod archives;
mod containerfile;
mod images;

use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_server::ServerConfig;
use atoll_tests::{full, python, root, skip};
use containerfile::{Instruction, faults, instructions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const CONTAINER_FILES: [&str; 2] = ["packaging/container/Containerfile", "packaging/container/Containerfile.cuda"];

/// Packs the programs under test as a Debian package in the folder.
pub(crate) fn package(folder: &Path) -> Result<PathBuf> {
    // The script writes the package beside the programs, under one name.
    static PACKING: Mutex<()> = Mutex::new(());
    let _packing = PACKING.lock().unwrap_or_else(PoisonError::into_inner);
    let program = atoll();
    let built = program.parent().context("a folder")?;
    let output = Command::new(root().join("packaging/deb/build.sh")).arg(built).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let package = folder.join("atoll.deb");
    std::fs::copy(&written, &package)?;
    std::fs::remove_file(written)?;
    Ok(package)
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}

/// The values of a setting in a unit of systemd.
fn values<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// The one value of a setting.
fn value<'a>(unit: &'a str, name: &str) -> Result<&'a str> {
    match values(unit, name)[..] {
        [value] => Ok(value),
        ref values => anyhow::bail!("{name} has the values {values:?}"),
    }
}

/// The command of the service, without the variable for more options.
fn service_command() -> Result<Vec<String>> {
    let service = read("packaging/deb/atoll.service")?;
    let command = value(&service, "ExecStart")?.strip_suffix(" $ATOLL_OPTIONS").context("$ATOLL_OPTIONS")?;
    Ok(command.split(' ').map(str::to_owned).collect())
}

/// The address of each socket unit, by the name under which the daemon takes it.
fn socket_units() -> Result<BTreeMap<String, String>> {
    let mut units = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("packaging/deb"))? {
        let file = entry?.file_name().into_string().ok().context("a file name")?;
        let Some(stem) = file.strip_suffix(".socket") else { continue };
        let unit = read(&format!("packaging/deb/{file}"))?;
        let name = value(&unit, "FileDescriptorName")?;
        ensure!(stem == format!("atoll-{name}"), "{file} passes the socket `{name}`");
        ensure!(value(&unit, "Service")? == "atoll.service", "{file} starts another service");
        ensure!(value(&unit, "WantedBy")? == "sockets.target", "{file} is not started with the system");
        units.insert(name.to_owned(), value(&unit, "ListenStream")?.to_owned());
    }
    Ok(units)
}

#[test]
fn socket_units_have_the_addresses_of_the_settings() -> Result<()> {
    let units = socket_units()?;
    let settings = ServerConfig::new("models".into(), "cache".into());
    let address = |port: u16| std::net::SocketAddr::new(settings.host, port).to_string();
    let command = service_command()?;
    let control = command.iter().skip_while(|word| *word != "--control-socket").nth(1).context("--control-socket")?;
    let expected = [
        ("control", control.clone()),
        ("grpc", address(settings.grpc_port.context("a port")?)),
        ("http", address(settings.http_port)),
        ("metrics", address(settings.metrics_port)),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(name, address)| (name.to_owned(), address)).into();
    ensure!(units == expected, "{units:?}");
    // The service has no option that contradicts them.
    let command = command.join(" ");
    ensure!(["--host", "-port", "--no-"].iter().all(|flag| !command.contains(flag)), "{command}");
    Ok(())
}

#[test]
fn the_service_is_watched_hardened_and_has_delegated_groups() -> Result<()> {
    let service = read("packaging/deb/atoll.service")?;
    for (name, wanted) in [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("User", "atoll"),
        ("Delegate", "cpu memory pids"),
        ("RuntimeDirectoryPreserve", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("CapabilityBoundingSet", ""),
    ] {
        let found = value(&service, name)?;
        ensure!(found == wanted, "{name}={found}");
    }
    let seconds: u32 = value(&service, "WatchdogSec")?.parse()?;
    ensure!(seconds >= 10, "a busy machine needs longer than {seconds} s");
    // Models run as native code that the daemon compiles.
    ensure!(values(&service, "MemoryDenyWriteExecute").is_empty(), "native code cannot run");
    Ok(())
}

#[test]
fn scripts_and_the_package_name_all_socket_units() -> Result<()> {
    for script in ["build.sh", "postinst", "prerm", "postrm"] {
        let text = read(&format!("packaging/deb/{script}"))?;
        for name in socket_units()?.keys() {
            ensure!(text.contains(&format!("atoll-{name}.socket")), "{script} lacks atoll-{name}.socket");
        }
    }
    Ok(())
}

#[test]
fn container_files_are_right() -> Result<()> {
    for file in CONTAINER_FILES {
        let found = faults(&read(file)?, Some(root()));
        ensure!(found.is_empty(), "{file}:\n{}", found.join("\n"));
    }
    // Its context is the folder of the build's outputs.
    let file = "integrations/kubernetes/Containerfile";
    let found = faults(&read(file)?, None);
    ensure!(found.is_empty(), "{file}:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn faults_of_container_files_are_found() {
    let good = "FROM docker.io/library/debian:12.12-slim\nCOPY Cargo.toml /\nUSER atoll\n";
    assert_eq!(faults(good, Some(root())), Vec::<String>::new());
    for (from, to, says) in [
        (":12.12-slim", "", "has no tag"),
        (":12.12-slim", ":latest", "latest"),
        ("docker.io/library/debian", "debian", "names no registry"),
        ("USER", "USR", "unknown instruction"),
        ("COPY Cargo.toml", "COPY Cargo.yaml", "Cargo.yaml"),
        ("COPY Cargo.toml", "COPY ../secret", "outside"),
        ("COPY Cargo.toml", "ADD https://example.com/a.tar", "downloads"),
        ("COPY Cargo.toml", "COPY --from=builder /a", "no stage `builder`"),
        ("USER atoll\n", "", "runs as root"),
        ("USER atoll", "USER 0", "runs as root"),
    ] {
        let bad = good.replace(from, to);
        let found = faults(&bad, Some(root()));
        assert!(found.iter().any(|fault| fault.contains(says)), "{bad}: {found:?}, not {says}");
    }
}

/// The instructions of the last stage of a container file.
fn last_stage(file: &str) -> Result<Vec<Instruction>> {
    let all = instructions(&read(file)?);
    let begin = all.iter().rposition(|instruction| instruction.name == "FROM").context("FROM")?;
    Ok(all[begin..].to_vec())
}

fn arguments(stage: &[Instruction], name: &str) -> Result<String> {
    let found = stage.iter().rfind(|instruction| instruction.name == name).with_context(|| name.to_owned())?;
    Ok(found.arguments.clone())
}

#[test]
fn images_have_the_user_ports_folders_and_command_of_the_service() -> Result<()> {
    let users = read("packaging/deb/atoll.sysusers")?;
    let user = users.split_whitespace().nth(1).context("a user")?;
    let units = socket_units()?;
    let ports: BTreeSet<&str> = units.values().filter_map(|address| Some(address.rsplit_once(':')?.1)).collect();
    let command = service_command()?;
    let control = units.get("control").context("a control socket")?;
    for file in CONTAINER_FILES {
        let stage = last_stage(file)?;
        ensure!(arguments(&stage, "USER")? == user, "{file}: another user");
        let exposed = arguments(&stage, "EXPOSE")?;
        ensure!(exposed.split(' ').collect::<BTreeSet<_>>() == ports, "{file}: EXPOSE {exposed}");
        let entry: Vec<String> = serde_json::from_str(&arguments(&stage, "ENTRYPOINT")?)?;
        ensure!(entry == command, "{file}: {entry:?} instead of {command:?}");
        let variables = stage.iter().filter(|instruction| instruction.name == "ENV");
        let has_control = variables.into_iter().any(|env| env.arguments == format!("ATOLL_CONTROL_SOCKET={control}"));
        ensure!(has_control, "{file}: commands in the container do not find the control socket");
        let volumes: Vec<String> = serde_json::from_str(&arguments(&stage, "VOLUME")?)?;
        let is_kept = |folder: &String| volumes.iter().any(|volume| Path::new(folder).starts_with(volume));
        let folders = ["--model-repository", "--state", "--cache"]
            .map(|flag| command.iter().skip_while(|word| *word != flag).nth(1).with_context(|| flag.to_owned()));
        for folder in folders {
            ensure!(is_kept(folder?), "{file}: no volume for {:?}", command);
        }
        // The program accepts the command of the health check.
        let health = arguments(&stage, "HEALTHCHECK")?;
        let (_, check) = health.split_once("CMD ").context("CMD")?;
        let check: Vec<String> = serde_json::from_str(check)?;
        ensure!(check.first().is_some_and(|program| program == "atoll"), "{file}: {check:?}");
        let helps = Command::new(atoll()).args(&check[1..]).arg("--help").output()?;
        ensure!(helps.status.success(), "{file}: {}", String::from_utf8_lossy(&helps.stderr));
    }
    Ok(())
}

#[test]
fn images_are_built_by_the_oldest_compiler_that_is_supported() -> Result<()> {
    let manifest: toml::Table = toml::from_str(&read("Cargo.toml")?)?;
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str().context("rust-version")?;
    let stages = CONTAINER_FILES.map(|file| -> Result<String> {
        let text = read(file)?;
        ensure!(text.contains(&format!("FROM docker.io/library/rust:{oldest}.")), "{file} has another compiler");
        // The stages that build are the same, so that they are built once.
        let (_, stages) = text.split_once("\nFROM ").context("FROM")?;
        Ok(stages.split_once("\nFROM ").context("two stages")?.0.to_owned())
    });
    let [host, cuda] = stages;
    ensure!(host? == cuda?, "the builders differ");
    Ok(())
}

/// The bill of materials, by name and version of a package.
fn bill(options: &[&str]) -> Result<BTreeMap<(String, String), serde_json::Value>> {
    let output = Command::new(python())
        .arg(root().join("packaging/sbom.py"))
        .arg("--offline")
        .args(options)
        .env("CARGO", env!("CARGO"))
        .env("SOURCE_DATE_EPOCH", "1000000000")
        .output()
        .context("Python of `make setup`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bill: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(bill["spdxVersion"] == "SPDX-2.3", "{}", bill["spdxVersion"]);
    ensure!(bill["creationInfo"]["created"] == "2001-09-09T01:46:40Z", "{}", bill["creationInfo"]);
    let packages = bill["packages"].as_array().context("packages")?;
    let ids: BTreeSet<&str> = packages.iter().filter_map(|package| package["SPDXID"].as_str()).collect();
    ensure!(ids.len() == packages.len(), "two packages have one id");
    for relation in bill["relationships"].as_array().context("relationships")? {
        let names = ["spdxElementId", "relatedSpdxElement"].map(|end| relation[end].as_str().unwrap_or_default());
        ensure!(names.iter().all(|name| *name == "SPDXRef-DOCUMENT" || ids.contains(name)), "{relation}");
    }
    let text = |package: &serde_json::Value, field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let key = |package: &serde_json::Value| (text(package, "name"), text(package, "versionInfo"));
    Ok(packages.iter().map(|package| (key(package), package.clone())).collect())
}

#[test]
fn the_bill_of_materials_has_every_crate_with_version_and_licence() -> Result<()> {
    let bill = bill(&[])?;
    // cargo's own view of what the program and the libraries are built from.
    let mut linked = BTreeSet::new();
    let libraries =
        ["atoll-interpose", "atoll-cudart", "atoll-cublas", "atoll-cudnn", "atoll-stand-in-cuda", "atoll-ring-c"];
    for installed in ["atoll"].into_iter().chain(libraries) {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none"])
            .args(["--package", installed, "--format", "{p}|{l}"])
            .current_dir(root())
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // A crate that was shown before is marked.
        let text = String::from_utf8(output.stdout)?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.ends_with("(*)"));
        linked.extend(lines.map(str::to_owned));
    }
    ensure!(linked.len() > 200, "only {} crates", linked.len());
    let lock: toml::Table = toml::from_str(&read("Cargo.lock")?)?;
    let locked = lock["package"].as_array().context("packages")?;
    for line in &linked {
        let (crate_, licence) = line.split_once('|').context("a licence")?;
        let mut words = crate_.split(' ');
        let (name, version) = (words.next().context("a name")?, words.next().context("a version")?);
        let version = version.trim_start_matches('v');
        let entry = bill.get(&(name.into(), version.into()));
        let entry = entry.with_context(|| format!("the bill of materials lacks {name} {version}"))?;
        let declared = entry["licenseDeclared"].as_str().unwrap_or_default();
        ensure!(!declared.is_empty() && declared != "NOASSERTION", "{name} {version} has no licence");
        ensure!(declared == licence.replace('/', " OR "), "{name} {version}: {declared}, not {licence}");
        let is_it = |package: &&toml::Value| {
            package["name"].as_str() == Some(name) && package["version"].as_str() == Some(version)
        };
        let digest = locked.iter().find(is_it).with_context(|| format!("{name} {version} in Cargo.lock"))?;
        let digest = digest.get("checksum").and_then(toml::Value::as_str);
        ensure!(entry["checksums"][0]["checksumValue"].as_str() == digest, "{name} {version}: another digest");
    }
    Ok(())
}

#[test]
fn the_package_has_units_pages_completions_and_the_bill() -> Result<()> {
    if !full() {
        skip("the files of the Debian package: make test-full");
        return Ok(());
    }
    if Command::new("dpkg-shlibdeps").arg("--version").output().is_err() {
        skip("the files of the Debian package: dpkg-shlibdeps (dpkg-dev) is not installed");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let tree = folder.path().join("tree");
    let program = atoll();
    let built = program.parent().context("a folder")?;
    let output = Command::new(root().join("packaging/deb/build.sh")).arg("--tree").args([&tree, built]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in [
        "usr/lib/atoll/atoll",
        "usr/share/man/man1/atoll.1.gz",
        "usr/share/man/man1/atoll-serve.1.gz",
        "usr/share/bash-completion/completions/atoll",
        "usr/share/zsh/vendor-completions/_atoll",
        "usr/share/fish/vendor_completions.d/atoll.fish",
        "usr/share/doc/atoll/copyright",
        "usr/share/doc/atoll/atoll.spdx.json",
        "usr/lib/sysusers.d/atoll.conf",
        "etc/atoll/atoll.toml",
        "lib/systemd/system/atoll.service",
        "DEBIAN/control",
    ] {
        let length = std::fs::metadata(tree.join(file)).with_context(|| file.to_owned())?.len();
        ensure!(length > 0, "{file} is empty");
    }
    for name in socket_units()?.keys() {
        let unit = tree.join(format!("lib/systemd/system/atoll-{name}.socket"));
        ensure!(unit.exists(), "{} is missing", unit.display());
    }
    // Units name the program where the package has it.
    let command = service_command()?;
    let program = tree.join(command[0].trim_start_matches('/'));
    let version = Command::new(&program).arg("--version").output().with_context(|| program.display().to_string())?;
    ensure!(version.status.success(), "{}", String::from_utf8_lossy(&version.stderr));
    let control = std::fs::read_to_string(tree.join("DEBIAN/control"))?;
    ensure!(control.lines().any(|line| line.starts_with("Depends: ") && line.contains("libc6")), "{control}");
    Ok(())
}
