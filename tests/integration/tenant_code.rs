//! Code of tenants in a real daemon: the daemon compiles it from PTX, unless the tenant or a
//! signature is trusted. Native code and facts in other bundles have no effect.

use crate::cancel::TIMEOUT;
use crate::control::{Setup, refusal};
use crate::functions::{manifest, pack_grind, packed};
use crate::serve::LOG;
use anyhow::{Context, Result, ensure};
use atoll_client::{Answer, Call, Class, Client, DataType, Deploy, RefusalKind, Tensor};
use atoll_kgraph::{Bundle, BundleContents, RerunFact, TargetContents, write_bundle};
use atoll_tests::chaos::grind;
use atoll_tests::root;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The only tenant whose code is trusted.
const FRIEND: &str = "[tenant.friend]\ntrusted_code = true\n";

/// Writes a copy of a bundle with changed sources.
pub(crate) fn forge(from: &Path, to: &Path, change: impl Fn(&mut TargetContents)) -> Result<()> {
    let bundle = Bundle::open(from)?;
    let target = |name: &str| -> Result<TargetContents> {
        let image = bundle.target(name).context("a target")?.clone();
        let code = bundle.code(name).context("its code")?.to_vec();
        let mut target = TargetContents { image, code, ptx: None, source: bundle.source(name)? };
        change(&mut target);
        Ok(target)
    };
    let targets = bundle.target_names().map(target).collect::<Result<_>>()?;
    let (graph, weights) = (bundle.graph(), vec![(0, bundle.weights())]);
    write_bundle(to, &BundleContents { producer: "test".into(), graph, weights, targets })?;
    Ok(())
}

/// `affine.kg` with native code that computes something else.
fn hostile(setup: &Setup) -> Result<PathBuf> {
    let folder = setup.path("hostile.d");
    std::fs::create_dir(&folder)?;
    let text = std::fs::read_to_string(manifest("affine").with_extension("ptx"))?;
    let changed = text.replace("0f40400000", "0fC2280000");
    ensure!(changed != text, "affine.ptx multiplies by 3");
    std::fs::write(folder.join("affine.ptx"), changed)?;
    std::fs::copy(manifest("affine"), folder.join("affine.toml"))?;
    packed(&folder.join("affine.toml"), &folder.join("affine.kg"))?;
    let other = Bundle::open(&folder.join("affine.kg"))?;
    let path = setup.path("hostile.kg");
    forge(&setup.path("affine.kg"), &path, |target| {
        target.code = other.code(&target.image.name).unwrap_or_default().to_vec();
    })?;
    Ok(path)
}

/// The result of `affine` for x = 2 and b = 1: 7, or -83 from the hostile code.
fn affine_of(client: &mut Client, function: &str) -> Result<f32> {
    let [x, b] = [2.0, 1.0].map(|value| Tensor::f32(&[5], &[value; 5]));
    let answer = client.invoke(Call::of(function).input("x", x).input("b", b))?;
    answer.tensor("y")?.to_f32().first().copied().context("an element")
}

fn named(name: &str) -> Deploy {
    Deploy { name: Some(name.into()), ..Deploy::default() }
}

/// How often the daemon compiled a bundle of a tenant.
fn compilations(setup: &Setup) -> Result<usize> {
    Ok(std::fs::read_to_string(setup.path(LOG))?.matches("compiling the kernels of a bundle").count())
}

#[test]
fn native_code_of_an_untrusted_tenant_does_not_run() -> Result<()> {
    let setup = Setup::start(&[], FRIEND)?;
    let bundle = hostile(&setup)?;
    let (mut guest, mut friend) = (setup.client_of("guest")?, setup.client_of("friend")?);
    let mut stages = Vec::new();
    guest.deploy_observed(&bundle, &named("f"), &mut |stage| stages.push(stage.stage))?;
    ensure!(affine_of(&mut guest, "f")? == 7.0, "the code was made from the PTX");
    ensure!(stages.iter().any(|stage| stage.starts_with("lower host")), "{stages:?}");
    friend.deploy(&bundle, &named("f"))?;
    ensure!(affine_of(&mut friend, "f")? == -83.0, "a trusted tenant's code is taken as it was sent");
    setup.client()?.deploy(&bundle, &named("own"))?;
    ensure!(affine_of(&mut setup.client()?, "own")? == -83.0, "so is the operator's");
    ensure!(compilations(&setup)? == 1);
    Ok(())
}

#[test]
fn code_is_compiled_once_also_for_other_tenants_and_after_a_restart() -> Result<()> {
    let mut setup = Setup::start(&[], "")?;
    let bundle = hostile(&setup)?;
    for (tenant, function) in [("a", "f"), ("a", "g"), ("b", "f")] {
        let mut client = setup.client_of(tenant)?;
        client.deploy(&bundle, &named(function))?;
        ensure!(affine_of(&mut client, function)? == 7.0);
    }
    ensure!(compilations(&setup)? == 1);
    setup.kill_and_restart()?;
    ensure!(affine_of(&mut setup.client_of("b")?, "f")? == 7.0 && compilations(&setup)? == 1);
    // If the cache is lost or damaged, the code is compiled again.
    for file in std::fs::read_dir(setup.path("atoll/compiled/tenants"))? {
        std::fs::write(file?.path(), b"damaged")?;
    }
    setup.kill_and_restart()?;
    ensure!(affine_of(&mut setup.client_of("b")?, "f")? == 7.0 && compilations(&setup)? == 2);
    Ok(())
}

fn call_grind(client: &mut Client, x: &[u32], times: u32) -> Result<Answer> {
    let vector = |values: &[u32]| Tensor {
        datatype: DataType::Uint32,
        shape: vec![values.len() as i64],
        bytes: grind::bytes(values),
    };
    Ok(client.invoke(Call::of("grind").input("x", vector(x)).input("times", vector(&[times])))?)
}

/// Calls `urgent` until `slow` is done.
fn beside(urgent: &mut Client, slow: impl FnOnce() -> Result<Answer> + Send) -> Result<Answer> {
    std::thread::scope(|scope| {
        let slow = scope.spawn(slow);
        while !slow.is_finished() {
            affine_of(urgent, "urgent")?;
        }
        slow.join().expect("no panic")
    })
}

#[test]
fn forged_facts_have_no_effect() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let honest = pack_grind(&setup.path(""), 1)?;
    let forged = setup.path("forged.kg");
    forge(&honest, &forged, |target| {
        for kernel in &mut target.image.kernels {
            // Without preemption parameters, so that it could not be evicted.
            kernel.preempt_offset = None;
            kernel.params_bytes = 36;
            kernel.rerun = Some(RerunFact::Always);
            kernel.scratch_bytes = 0;
        }
    })?;
    let (mut urgent, mut guest) = (setup.client()?, setup.client_of("guest")?);
    urgent.deploy(&setup.path("affine.kg"), &Deploy { class: Some(Class::RealTime), ..named("urgent") })?;
    guest.deploy(&forged, &Deploy::default())?;
    let (x, start) = ([7; 4096], Instant::now());
    loop {
        let done = beside(&mut urgent, || call_grind(&mut guest, &x, 300_000))?;
        ensure!(done.tensor("y")?.bytes == grind::bytes(&grind::grind(&x, &grind::table(1), 300_000)));
        if done.preemptions > 0 {
            return Ok(());
        }
        ensure!(start.elapsed() < TIMEOUT, "it was never preempted");
    }
}

#[test]
fn stores_outside_of_a_tenants_memory_trap_and_cost_no_executor() -> Result<()> {
    let setup = Setup::start(&[], FRIEND)?;
    packed(&manifest("wild"), &setup.path("wild.kg"))?;
    let mut guest = setup.client_of("guest")?;
    guest.deploy(&setup.path("wild.kg"), &Deploy::default())?;
    let mut store_at = |distance: u64| {
        let bytes = distance.to_le_bytes().to_vec();
        guest.invoke(Call::of("wild").input("where", Tensor { datatype: DataType::Uint64, shape: vec![1], bytes }))
    };
    store_at(0)?;
    for distance in [1 << 40, 1 << 46, u64::MAX << 40, 1 << 63] {
        let (kind, message) = refusal(store_at(distance))?;
        ensure!(kind == RefusalKind::Function && message.contains("trap"), "{distance:#x}: {message}");
    }
    store_at(0)?;
    let executors = guest.processes()?.executors;
    ensure!(executors.iter().all(|executor| executor.restarts == 0), "{executors:?}");
    Ok(())
}

#[test]
fn kernels_that_cannot_be_fenced_are_refused_with_the_reason() -> Result<()> {
    let setup = Setup::start(&[], FRIEND)?;
    let folder = setup.path("reach.d");
    std::fs::create_dir(&folder)?;
    for extension in ["ptx", "toml"] {
        std::fs::copy(manifest("reach").with_extension(extension), folder.join("reach").with_extension(extension))?;
    }
    std::fs::write(folder.join("own.bin"), [0; 4096])?;
    packed(&folder.join("reach.toml"), &folder.join("reach.kg"))?;
    let (kind, message) = refusal(setup.client_of("guest")?.deploy(&folder.join("reach.kg"), &named("f")))?;
    ensure!(
        kind == RefusalKind::BadRequest && message.contains("`reach` cannot be fenced") && message.contains("discard"),
        "{message}"
    );
    setup.client_of("friend")?.deploy(&folder.join("reach.kg"), &named("f"))?;
    Ok(())
}

#[test]
fn compilations_end_at_the_limits_of_their_tenant() -> Result<()> {
    let config = "[tenant.brief]\ncompile_seconds = 0\n[tenant.small]\ncompile_bytes = \"64K\"\n";
    let setup = Setup::start(&[], config)?;
    for (tenant, limit) in [("brief", "compile_seconds"), ("small", "compile_bytes")] {
        let (kind, message) = refusal(setup.client_of(tenant)?.deploy(&setup.path("affine.kg"), &named("f")))?;
        ensure!(kind == RefusalKind::BadRequest && message.contains(limit), "{message}");
    }
    setup.client_of("other")?.deploy(&setup.path("affine.kg"), &named("f"))?;
    Ok(())
}

#[test]
fn bundles_without_sources_are_refused_unless_the_tenant_is_trusted() -> Result<()> {
    let setup = Setup::start(&[], FRIEND)?;
    let without = setup.path("without.kg");
    forge(&setup.path("affine.kg"), &without, |target| (target.source, target.image.source) = (None, None))?;
    let of_format_1 = root().join("tests/fixtures/f95a0d3/chain.kg");
    for (bundle, reason) in [(&without, "for host-"), (&of_format_1, "format 1")] {
        let (kind, message) = refusal(setup.client_of("guest")?.deploy(bundle, &named("f")))?;
        let says = ["no PTX from before the passes", reason, "`atoll sign`", "[tenant.guest]"];
        ensure!(kind == RefusalKind::Denied && says.iter().all(|part| message.contains(part)), "{message}");
        setup.client_of("friend")?.deploy(bundle, &named("f"))?;
        setup.client()?.deploy(bundle, &named("f"))?;
    }
    Ok(())
}

#[test]
fn without_isolation_functions_of_tenants_need_trust() -> Result<()> {
    let setup = Setup::start(&["--isolation", "none"], FRIEND)?;
    for tenant in ["guest", "friend"] {
        let (kind, message) = refusal(setup.client_of(tenant)?.deploy(&setup.path("affine.kg"), &named("f")))?;
        ensure!(kind == RefusalKind::Denied && message.contains("--trust-tenants"), "{message}");
    }
    setup.client()?.deploy(&setup.path("affine.kg"), &named("f"))?;
    let setup = Setup::start(&["--isolation", "none", "--trust-tenants"], "")?;
    let mut guest = setup.client_of("guest")?;
    guest.deploy(&hostile(&setup)?, &named("f"))?;
    ensure!(affine_of(&mut guest, "f")? == 7.0, "--trust-tenants is about isolation, not about code");
    Ok(())
}

/// Makes a key pair. Returns the file of the secret key, and the public key.
fn keys(folder: &Path, name: &str) -> Result<(PathBuf, String)> {
    let secret = folder.join(name);
    let output = Command::new(crate::serve::atoll()).args(["keys", "generate", "-o"]).arg(&secret).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(secret.with_extension("pub"))?;
    Ok((secret, text.lines().last().context("a key")?.to_owned()))
}

/// Signs a bundle with a key, by `atoll sign`.
fn signature(setup: &Setup, bundle: &Path, key: &Path) -> Result<String> {
    let file = setup.path("signature");
    let output = setup.command(&["sign"]).arg(bundle).arg("--key").arg(key).arg("-o").arg(&file).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(std::fs::read_to_string(file)?)
}

#[test]
fn a_signature_of_a_trusted_key_vouches_for_native_code() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ((own, public), (unknown, other)) = (keys(folder.path(), "own.key")?, keys(folder.path(), "unknown.key")?);
    let mut setup = Setup::start(&[], &format!("trusted_keys = [\"{public}\"]"))?;
    let without = setup.path("without.kg");
    forge(&hostile(&setup)?, &without, |target| (target.source, target.image.source) = (None, None))?;
    let mut guest = setup.client_of("guest")?;
    let good = signature(&setup, &without, &own)?;
    let of_another_bundle = signature(&setup, &setup.path("affine.kg"), &own)?;
    let of_another_key = signature(&setup, &without, &unknown)?;
    let changed = good.replace("trusted comment: atoll bundle", "trusted comment: Atoll bundle");
    for (signature, reason) in [
        (&of_another_bundle, "not of this bundle"),
        (&of_another_key, "a key that is not trusted"),
        (&changed, "not of this bundle"),
        (&"nonsense".to_owned(), "not a signature of minisign"),
    ] {
        let how = Deploy { signature: Some(signature.clone()), ..named("f") };
        let (kind, message) = refusal(guest.deploy(&without, &how))?;
        ensure!(kind == RefusalKind::Denied && message.contains(reason), "{message}");
    }
    ensure!(refusal(guest.deploy(&without, &named("f")))?.0 == RefusalKind::Denied, "unsigned");
    guest.deploy(&without, &Deploy { signature: Some(good.clone()), ..named("f") })?;
    ensure!(affine_of(&mut guest, "f")? == -83.0, "signed code is taken as it is");
    setup.kill_and_restart()?;
    ensure!(affine_of(&mut setup.client_of("guest")?, "f")? == -83.0, "the signature is kept");
    // The command line sends the signature beside a bundle, and checks it.
    std::fs::write(setup.path("without.kg.minisig"), &good)?;
    let run = |arguments: &[&str]| setup.command(arguments).output();
    let deploy = ["fn", "deploy", "without.kg", "--name", "g", "--tenant", "guest"];
    ensure!(run(&deploy)?.status.success());
    ensure!(run(&[deploy.as_slice(), &["--no-signature"]].concat())?.status.code() == Some(2));
    ensure!(run(&["verify", "without.kg", "--key", &public])?.status.success());
    ensure!(run(&["verify", "without.kg", "--key", &other])?.status.code() == Some(2));
    // A key that is no longer trusted.
    std::fs::write(setup.path("atoll.toml"), format!("trusted_keys = [\"{other}\"]"))?;
    setup.kill_and_restart()?;
    let functions = setup.client_of("guest")?.functions()?;
    let failures = functions.iter().map(|function| function.failure.clone().unwrap_or_default());
    ensure!(functions.len() == 2 && failures.clone().all(|text| text.contains("not trusted here")), "{functions:?}");
    Ok(())
}
