//! Bundles served by a daemon: changes to their files, and what remains of bundles that cannot be
//! loaded.

use crate::cancel::metric;
use crate::executors::{children, wait_until};
use crate::functions::{manifest, pack_grind, packed};
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_kgraph::{Bundle, BundleContents, TargetContents, write_bundle};
use atoll_tests::chaos::grind;
use atoll_tests::http::ask;
use rustix::process::Signal;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Device memory for the constants of one `grind` and a small invocation.
const ROOM_FOR_ONE: &str = "100K";

/// Calls `grind` and compares with the expected result for its constants.
fn check(daemon: &Daemon, model: &str, seed: u64) -> Result<()> {
    let (x, times) = ([1_u32, 2, 3, 4_000_000_000], 3);
    let body = json!({ "inputs": [
        { "name": "x", "datatype": "UINT32", "shape": [4], "data": x },
        { "name": "times", "datatype": "UINT32", "shape": [1], "data": [times] },
    ] });
    let (status, text) = ask(&daemon.http, "POST", &format!("/v2/models/{model}/infer"), &body.to_string())?;
    ensure!(status == 200, "{model}: {text}");
    let answer: serde_json::Value = serde_json::from_str(&text)?;
    let expected = grind::grind(&x, &grind::table(seed), times);
    ensure!(answer["outputs"][0]["data"] == json!(expected), "{model} does not match seed {seed}: {text}");
    Ok(())
}

fn reload(daemon: &Daemon, model: &str) -> Result<(u16, String)> {
    Ok(ask(&daemon.http, "POST", &format!("/v2/repository/models/{model}/load"), "{}")?)
}

#[test]
fn a_served_bundle_that_is_overwritten_in_place_gives_the_old_answers_until_it_is_loaded_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let served = repository.join("served.kg");
    std::fs::copy(pack_grind(folder.path(), 1)?, &served)?;
    std::fs::copy(pack_grind(folder.path(), 2)?, repository.join("other.kg"))?;
    let next = pack_grind(folder.path(), 3)?;
    let options = ["--memory-limit", ROOM_FOR_ONE, "--memory-overcommit", "4"];
    let mut daemon = Daemon::start_with(&repository, folder.path(), &options)?;
    // Each call loads its constants in place of the other's.
    for _ in 0..2 {
        check(&daemon, "served", 1)?;
        check(&daemon, "other", 2)?;
    }
    let evictions = metric(&daemon, "atoll_constants_evictions_total")?;
    ensure!(evictions >= 2.0, "{evictions} evictions: the constants never left the device");
    // Overwrites the same file, as `cp` does.
    std::fs::copy(&next, &served)?;
    for _ in 0..2 {
        check(&daemon, "served", 1)?;
        check(&daemon, "other", 2)?;
    }
    ensure!(
        metric(&daemon, "atoll_constants_evictions_total")? >= evictions + 2.0,
        "the constants never left the device"
    );
    let (status, text) = reload(&daemon, "served")?;
    ensure!(status == 200, "{text}");
    check(&daemon, "served", 3)?;
    check(&daemon, "other", 2)?;
    check(&daemon, "served", 3)?;
    daemon.signal(Signal::KILL)?;
    let left: Vec<_> = std::fs::read_dir(folder.path().join("atoll/compiled"))?.collect::<Result<_, _>>()?;
    ensure!(left.is_empty(), "a killed daemon leaves {left:?}");
    Ok(())
}

/// Writes a bundle with one change and matching digests.
fn changed(from: &Path, to: &Path, change: impl Fn(&mut TargetContents)) -> Result<()> {
    let bundle: Arc<Bundle> = Bundle::open(from)?;
    let target = |name: &str| -> Result<TargetContents> {
        let (image, code) =
            (bundle.target(name).context("a target")?.clone(), bundle.code(name).context("its code")?.to_vec());
        let mut target = TargetContents { image, code, ptx: None, source: None };
        change(&mut target);
        Ok(target)
    };
    let targets = bundle.target_names().map(target).collect::<Result<_>>()?;
    let contents = BundleContents {
        producer: "test".into(),
        graph: bundle.graph(),
        weights: vec![(0, bundle.weights())],
        targets,
    };
    write_bundle(to, &contents)?;
    Ok(())
}

/// `grind` with four times the constants.
fn pack_large(folder: &Path, to: &Path) -> Result<()> {
    let source = folder.join("large");
    std::fs::create_dir(&source)?;
    std::fs::copy(manifest("grind").with_extension("ptx"), source.join("grind.ptx"))?;
    std::fs::write(
        source.join("large.toml"),
        std::fs::read_to_string(manifest("grind"))?.replace("[16384]", "[65536]"),
    )?;
    std::fs::write(source.join("c.bin"), [grind::bytes(&grind::table(5)), vec![9; 3 << 16]].concat())?;
    packed(&source.join("large.toml"), to)
}

/// Descriptors and mappings of a daemon and its executors, and the resources that the daemon
/// reports.
fn holds(daemon: &Daemon) -> Result<Vec<String>> {
    let pid = i32::try_from(daemon.process().id())?;
    let mut held = Vec::new();
    for process in children(pid)?.into_iter().chain([pid]) {
        let files = std::fs::read_dir(format!("/proc/{process}/fd"))?.count();
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
        let mapped = maps
            .lines()
            .filter(|line| line.contains("(deleted)") || line.contains(".kg") || line.contains("memfd:"))
            .count();
        held.push(format!("process {process}: {files} descriptors, {mapped} mappings of files that have no name"));
    }
    let text = ask(&daemon.metrics, "GET", "/metrics", "")?.1;
    let told = [
        "atoll_usage_memory_bytes",
        "atoll_constants",
        "atoll_device_memory",
        "atoll_bundle_copies_bytes",
        "atoll_padding_modules",
    ];
    held.extend(text.lines().filter(|line| told.iter().any(|name| line.starts_with(name))).map(String::from));
    Ok(held)
}

/// What they hold after it stayed the same for half a second: connections of earlier requests are
/// closed then.
fn settled(daemon: &Daemon) -> Result<Vec<String>> {
    let mut last = (holds(daemon)?, 0);
    wait_until("what the daemon holds stays the same", || {
        std::thread::sleep(Duration::from_millis(40));
        let now = holds(daemon)?;
        let times = if now == last.0 { last.1 + 1 } else { 0 };
        last = (now, times);
        Ok(times == 10)
    })?;
    Ok(last.0)
}

#[test]
fn bundles_that_cannot_be_loaded_leave_nothing_behind() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let good = pack_grind(folder.path(), 1)?;
    std::fs::copy(&good, repository.join("good.kg"))?;
    let options = ["--memory-limit", ROOM_FOR_ONE, "--memory-overcommit", "1"];
    let daemon = Daemon::start_with(&repository, folder.path(), &options)?;
    check(&daemon, "good", 1)?;
    let is_ready = || Ok::<_, anyhow::Error>(ask(&daemon.http, "GET", "/v2/health/ready", "")?.0 == 200);
    ensure!(is_ready()?);
    let before = settled(&daemon)?;

    let at = |name: &str| repository.join(name).with_extension("kg");
    let mut damaged = std::fs::read(&good)?;
    let table = grind::bytes(&grind::table(1));
    let weights =
        damaged.windows(64).position(|window| window == &table[..64]).context("the constants are in the file")?;
    damaged[weights] ^= 1;
    std::fs::write(at("damaged"), &damaged)?;
    std::fs::write(at("cut"), &damaged[..damaged.len() / 2])?;
    changed(&good, &at("foreign"), |target| target.image.name = "host-unknown".into())?;
    changed(&good, &at("junk"), |target| target.code.fill(0x90))?;
    pack_large(folder.path(), &at("large"))?;
    std::fs::copy(pack_grind(folder.path(), 2)?, at("second"))?;
    for (name, says) in [
        ("damaged", "weights.safetensors does not match its digest"),
        ("cut", "is not a usable bundle"),
        ("foreign", "host-unknown"),
        ("junk", "cannot load the module"),
        ("large", "262144 bytes"),
        ("second", "those of all functions"),
    ] {
        for _ in 0..3 {
            let (status, text) = reload(&daemon, name)?;
            ensure!(status == 400 && text.contains(says), "{name}: {status} {text}");
        }
        // A connection closes a moment after its answer.
        let restored = wait_until("as before", || Ok(holds(&daemon)? == before));
        restored.with_context(|| {
            format!("{name} left something: {before:#?} became {:#?}", holds(&daemon).unwrap_or_default())
        })?;
        check(&daemon, "good", 1).context(name)?;
    }
    ensure!(!is_ready()?, "models of the repository failed");
    for name in ["damaged", "cut", "foreign", "junk", "large", "second"] {
        ask(&daemon.http, "POST", &format!("/v2/repository/models/{name}/unload"), "{}")?;
    }
    ensure!(is_ready()?, "unloading them clears the failures");
    Ok(())
}
