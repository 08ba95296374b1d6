//! Quotas of a tenant on disk and of descriptors: checked before anything is written, named with
//! their use in errors, and reported by `atoll usage`.

use crate::control::{Setup, refusal};
use crate::functions::{manifest, packed};
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, DataType, Deploy, RefusalKind, Tensor};
use std::path::Path;

fn named(name: &str) -> Deploy {
    Deploy { name: Some(name.into()), private: true, ..Deploy::default() }
}

/// All files below a folder.
fn files(folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

/// Use and limit of a quota, as `atoll usage` reports it.
fn quota(setup: &Setup, tenant: &str, quota: &str) -> Result<(u64, Option<u64>)> {
    let usage = setup.json(&["usage", "--tenant", tenant])?;
    let entries = usage["quotas"].as_array().context("quotas")?;
    let entry = entries.iter().find(|entry| entry["quota"] == quota && entry["tenant"] == tenant);
    let entry = entry.with_context(|| format!("{quota} in {usage}"))?;
    Ok((entry["used"].as_u64().context("used")?, entry["limit"].as_u64()))
}

#[test]
fn bundles_on_disk_are_limited_and_what_is_deployed_stays_when_the_limit_is_lowered() -> Result<()> {
    let sizes = tempfile::tempdir()?;
    let bundle = sizes.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let bytes = std::fs::metadata(&bundle)?.len();
    let limit = bytes + 100;
    let config = |limit: u64| format!("[tenant.small]\ntrusted_code = true\nbundle_bytes = {limit}\n");
    let mut setup = Setup::start(&[], &config(limit))?;
    let mut client = setup.client_of("small")?;
    client.deploy(&bundle, &named("first"))?;
    // Equal bundles of a tenant are stored once.
    client.deploy(&bundle, &named("second"))?;
    ensure!(quota(&setup, "small", "bundle_bytes")? == (bytes, Some(limit)));
    ensure!(quota(&setup, "small", "functions")?.0 == 2);
    let stored = || files(&setup.path("atoll"));
    let before = stored()?;
    let (kind, message) = refusal(client.deploy(&setup.path("faulty.kg"), &named("third")))?;
    let told = format!("of the bundle bytes of tenant `small`, {bytes} of {limit} are used");
    ensure!(kind == RefusalKind::Quota && message.contains(&told), "{message}");
    ensure!(stored()? == before, "nothing was written");
    // The quota of another tenant is separate.
    setup.client_of("other")?.deploy(&bundle, &named("first"))?;

    std::fs::write(setup.path("atoll.toml"), config(1))?;
    setup.kill_and_restart()?;
    let mut client = setup.client_of("small")?;
    let vector = |value: f32| Tensor::f32(&[1], &[value]);
    let answer = client.invoke(Call::of("first").input("x", vector(2.0)).input("b", vector(1.0)))?;
    ensure!(answer.tensor("y")?.to_f32() == [7.0]);
    ensure!(quota(&setup, "small", "bundle_bytes")? == (bytes, Some(1)));
    let (kind, message) = refusal(client.deploy(&setup.path("faulty.kg"), &named("third")))?;
    ensure!(kind == RefusalKind::Quota && message.contains(&format!("{bytes} of 1 are used")), "{message}");
    // Removing functions makes room again, up to the new limit.
    client.remove_function("first")?;
    client.remove_function("second")?;
    ensure!(quota(&setup, "small", "bundle_bytes")?.0 == 0);
    Ok(())
}

#[test]
fn constants_are_limited_since_each_takes_a_descriptor() -> Result<()> {
    let mut setup = Setup::start(&[], "[tenant.few]\ntrusted_code = true\ndescriptors = 1\n")?;
    let folder = setup.path("vault.d");
    std::fs::create_dir(&folder)?;
    for extension in ["toml", "ptx"] {
        let file = manifest("vault").with_extension(extension);
        std::fs::copy(&file, folder.join("vault").with_extension(extension))?;
    }
    std::fs::write(folder.join("secret.bin"), [7; 65536])?;
    let bundle = setup.path("vault.kg");
    packed(&folder.join("vault.toml"), &bundle)?;
    let mut client = setup.client_of("few")?;
    client.deploy(&bundle, &named("first"))?;
    ensure!(quota(&setup, "few", "descriptors")? == (1, Some(1)));
    let (kind, message) = refusal(client.deploy(&bundle, &named("second")))?;
    ensure!(kind == RefusalKind::Quota && message.contains("of tenant `few`, 1 of 1 are used"), "{message}");
    // A function may be replaced at the limit.
    client.deploy(&bundle, &named("first"))?;
    let x = Tensor { datatype: DataType::Uint32, shape: vec![16384], bytes: vec![0; 65536] };
    let answer = client.invoke(Call::of("first").input("x", x))?;
    ensure!(answer.tensor("y")?.bytes == [7; 65536]);
    // A function also counts after a restart, even if it cannot be loaded.
    std::fs::write(setup.path("atoll.toml"), "[tenant.few]\ndescriptors = 1\n")?;
    setup.kill_and_restart()?;
    ensure!(quota(&setup, "few", "descriptors")? == (1, Some(1)));
    Ok(())
}
