//! Quotas of a tenant on disk, of descriptors and of invocations: checked before anything is
//! written or runs, named with their use in errors, and reported by `atoll usage`.

use crate::cancel::metric;
use crate::control::{Setup, refusal};
use crate::functions::{manifest, packed};
use anyhow::{Context, Result, ensure};
use atoll_client::{Answer, Call, Client, ClientError, DataType, Deploy, GraphCall, RefusalKind, Tensor};
use std::path::{Path, PathBuf};

fn named(name: &str) -> Deploy {
    Deploy { name: Some(name.into()), private: true, ..Deploy::default() }
}

/// All files below a folder.
pub(crate) fn files(folder: &Path) -> Result<usize> {
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

/// A function with a constant of 64 KiB of this byte.
fn vault(setup: &Setup, byte: u8) -> Result<PathBuf> {
    let folder = setup.path(&format!("vault-{byte}.d"));
    std::fs::create_dir(&folder)?;
    for extension in ["toml", "ptx"] {
        let file = manifest("vault").with_extension(extension);
        std::fs::copy(&file, folder.join("vault").with_extension(extension))?;
    }
    std::fs::write(folder.join("secret.bin"), [byte; 65536])?;
    let bundle = setup.path(&format!("vault-{byte}.kg"));
    packed(&folder.join("vault.toml"), &bundle)?;
    Ok(bundle)
}

/// The answer of a [`vault`] to zeros: its constant.
fn opened(client: &mut Client, function: &str) -> Result<Vec<u8>, ClientError> {
    let x = Tensor { datatype: DataType::Uint32, shape: vec![16384], bytes: vec![0; 65536] };
    Ok(client.invoke(Call::of(function).input("x", x))?.tensor("y")?.bytes.clone())
}

#[test]
fn constants_are_limited_since_each_takes_a_descriptor() -> Result<()> {
    let mut setup = Setup::start(&[], "[tenant.few]\ntrusted_code = true\ndescriptors = 1\n")?;
    let bundle = vault(&setup, 7)?;
    let mut client = setup.client_of("few")?;
    client.deploy(&bundle, &named("first"))?;
    ensure!(quota(&setup, "few", "descriptors")? == (1, Some(1)));
    // Other bytes, so that a file would be written for them.
    let other = vault(&setup, 8)?;
    let before = files(&setup.path("atoll"))?;
    for bundle in [&bundle, &other] {
        let (kind, message) = refusal(client.deploy(bundle, &named("second")))?;
        ensure!(kind == RefusalKind::Quota && message.contains("of tenant `few`, 1 of 1 are used"), "{message}");
    }
    ensure!(files(&setup.path("atoll"))? == before, "nothing was written");
    // A function may be replaced at the limit.
    client.deploy(&bundle, &named("first"))?;
    ensure!(opened(&mut client, "first")? == [7; 65536]);
    // A function also counts after a restart, even if it cannot be loaded.
    std::fs::write(setup.path("atoll.toml"), "[tenant.few]\ndescriptors = 1\n")?;
    setup.kill_and_restart()?;
    ensure!(quota(&setup, "few", "descriptors")? == (1, Some(1)));
    Ok(())
}

/// What is deployed and stored stays, and is served or says why not; more is refused. With the old
/// quotas, all is as before.
#[test]
fn quotas_below_their_use_keep_what_there_is_and_refuse_more() -> Result<()> {
    let ample = "[tenant.low]\ntrusted_code = true\n";
    let mut setup = Setup::start(&[], ample)?;
    let (bundle, other) = (vault(&setup, 7)?, vault(&setup, 8)?);
    let vector = |value: f32| Tensor::f32(&[2], &[value; 2]);
    let mut client = setup.client_of("low")?;
    for function in ["first", "second"] {
        client.deploy(&bundle, &named(function))?;
    }
    let objects = [client.put(&vector(1.0), None)?, client.put(&vector(2.0), None)?];

    let below = "functions = 1\ndescriptors = 1\nobject_bytes = 1\n";
    std::fs::write(setup.path("atoll.toml"), format!("{ample}{below}"))?;
    setup.kill_and_restart()?;
    let mut client = setup.client_of("low")?;
    for function in ["first", "second"] {
        ensure!(opened(&mut client, function)? == [7; 65536], "{function}");
    }
    ensure!(client.get(objects[0])?.to_f32() == [1.0; 2] && client.get(objects[1])?.to_f32() == [2.0; 2]);
    for (name, used, limit) in [("functions", 2, 1), ("descriptors", 2, 1), ("object_bytes", 16, 1)] {
        ensure!(quota(&setup, "low", name)? == (used, Some(limit)), "{name}");
    }
    let refused = |result: Result<_, ClientError>, says: &str| -> Result<()> {
        let (kind, message) = refusal(result)?;
        ensure!(kind == RefusalKind::Quota && message.contains(says), "{kind:?}: {message}");
        Ok(())
    };
    refused(client.deploy(&other, &named("third")).map(drop), "has reached its limit of 1 functions")?;
    refused(client.put(&vector(3.0), None).map(drop), "of object bytes, 16 of 1 are used")?;
    // An object that the tenant has already costs nothing.
    ensure!(client.put(&vector(1.0), None)? == objects[0]);
    for reason in ["deployment", "objects"] {
        let denied = metric(&setup.daemon, &format!("atoll_denied_requests_total{{reason=\"{reason}\"}}"))?;
        ensure!(denied == 1.0, "{reason}: {denied}");
    }
    ensure!(refused_requests(&setup, "low")? == 2);

    // Constants that exceed the device memory of the tenant are not loaded.
    std::fs::write(setup.path("atoll.toml"), format!("{ample}device_bytes = 4096\n"))?;
    setup.kill_and_restart()?;
    let functions = setup.client_of("low")?.functions()?;
    let told = |failure: &Option<String>| failure.as_ref().is_some_and(|text| text.contains("quota"));
    ensure!(functions.len() == 2 && functions.iter().all(|function| told(&function.failure)), "{functions:?}");
    std::fs::write(setup.path("atoll.toml"), ample)?;
    setup.kill_and_restart()?;
    let mut client = setup.client_of("low")?;
    ensure!(opened(&mut client, "second")? == [7; 65536], "nothing is lost");
    Ok(())
}

/// Requests in the account of a tenant that were refused.
pub(crate) fn refused_requests(setup: &Setup, tenant: &str) -> Result<u64> {
    let usage = setup.json(&["usage", "--tenant", tenant])?;
    let rows = usage["rows"].as_array().context("rows")?.iter().filter(|row| row["tenant"] == tenant);
    Ok(rows.filter_map(|row| row["invocations"]["refused"].as_u64()).sum())
}

/// Two calls of a function at one time, and one after both.
const FORK: &str = r#"
name = "fork"
[inputs]
x = { datatype = "FP32", shape = [-1] }
b = { datatype = "FP32", shape = [-1] }
[[stage]]
name = "left"
function = "line"
inputs = { x = "x", b = "b" }
[[stage]]
name = "right"
function = "line"
inputs = { x = "b", b = "x" }
[[stage]]
name = "both"
function = "line"
inputs = { x = "left.y", b = "right.y" }
[outputs]
y = "both.y"
"#;

#[test]
fn calls_beyond_the_quota_of_invocations_are_refused_and_a_graph_counts_as_its_width() -> Result<()> {
    let mut setup = Setup::start(&[], "[tenant.a]\ntrusted_code = true\ninvocations = 0\n")?;
    let mut client = setup.client_of("a")?;
    client.deploy(&setup.path("affine.kg"), &named("line"))?;
    client.deploy_graph(FORK, None)?;
    let vector = |value: f32| Tensor::f32(&[1], &[value]);
    let line = |client: &mut Client| client.invoke(Call::of("line").input("x", vector(2.0)).input("b", vector(1.0)));
    let fork = |client: &mut Client| {
        client.invoke_graph(&GraphCall::of("fork").input("x", vector(2.0)).input("b", vector(1.0)))
    };
    let refused = |result: Result<Answer, ClientError>, counts: u64, limit: u64| -> Result<()> {
        let (kind, message) = refusal(result)?;
        let told = format!("may have {limit} at one time; this call counts as {counts}.");
        ensure!(kind == RefusalKind::Quota && message.contains(&told), "{kind:?}: {message}");
        Ok(())
    };
    refused(line(&mut client), 1, 0)?;
    refused(fork(&mut client), 2, 0)?;
    ensure!(quota(&setup, "a", "invocations")? == (0, Some(0)));

    std::fs::write(setup.path("atoll.toml"), "[tenant.a]\ntrusted_code = true\ninvocations = 1\n")?;
    setup.kill_and_restart()?;
    let mut client = setup.client_of("a")?;
    ensure!(line(&mut client)?.tensor("y")?.to_f32() == [7.0]);
    refused(fork(&mut client), 2, 1)?;
    ensure!(line(&mut client)?.tensor("y")?.to_f32() == [7.0], "what was refused does not count");

    std::fs::write(setup.path("atoll.toml"), "[tenant.a]\ntrusted_code = true\ninvocations = 2\n")?;
    setup.kill_and_restart()?;
    let mut client = setup.client_of("a")?;
    // 3 (3·2 + 1) + (3·1 + 2).
    ensure!(fork(&mut client)?.tensor("y")?.to_f32() == [26.0]);
    ensure!(quota(&setup, "a", "invocations")? == (0, Some(2)));
    Ok(())
}

#[test]
fn a_tenant_that_has_used_the_compiler_for_long_enough_waits() -> Result<()> {
    let setup = Setup::start(&[], "[tenant.a]\ncompile_seconds_per_hour = 0\n")?;
    let mut client = setup.client_of("a")?;
    let (kind, message) = refusal(client.deploy(&setup.path("affine.kg"), &named("line")))?;
    let told = "may use 0 s in an hour";
    ensure!(kind == RefusalKind::Quota && message.contains(told), "{kind:?}: {message}");
    ensure!(quota(&setup, "a", "compile_seconds_per_hour")? == (0, Some(0)));
    let denied = metric(&setup.daemon, "atoll_denied_requests_total{reason=\"deployment\"}")?;
    ensure!(denied == 1.0, "{denied}");
    // Another tenant's compilation leaves the code of the bundle in the cache.
    setup.client_of("b")?.deploy(&setup.path("affine.kg"), &named("line"))?;
    ensure!(quota(&setup, "b", "compile_seconds_per_hour")?.0 > 0);
    client.deploy(&setup.path("affine.kg"), &named("line"))?;
    Ok(())
}

/// Where there are no control groups, the process of such a tenant has a region of twice its quota,
/// in which parts of memory move; kernels that are fenced and kernels that are not find them.
#[test]
fn a_tenant_with_a_quota_of_device_memory_computes_in_calls_of_all_sizes() -> Result<()> {
    let config =
        "[tenant.trusted]\ntrusted_code = true\ndevice_bytes = \"4M\"\n[tenant.fenced]\ndevice_bytes = \"4M\"\n";
    let mut setup = Setup::start(&[], config)?;
    let check = |client: &mut Client, function: &str, n: usize| -> Result<()> {
        let vector = |from: f32| {
            let values: Vec<f32> = (0..n).map(|index| from + index as f32).collect();
            Tensor::f32(&[n as i64], &values)
        };
        let answer = client.invoke(Call::of(function).input("x", vector(1.0)).input("b", vector(2.0)))?;
        let expected: Vec<f32> = (0..n).map(|index| (1.0 + index as f32).mul_add(3.0, 2.0 + index as f32)).collect();
        ensure!(answer.tensor("y")?.to_f32() == expected, "{function}, {n} elements");
        Ok(())
    };
    for round in 0..2 {
        for tenant in ["trusted", "fenced"] {
            let mut client = setup.client_of(tenant)?;
            for function in ["one", "two"] {
                if round == 0 {
                    client.deploy(&setup.path("affine.kg"), &named(function))?;
                }
                for n in [1, 100_000, 7, 250_000, 300_000, 100, 200_000, 1] {
                    check(&mut client, function, n)?;
                }
            }
            // The whole quota is 4 MiB: 349,525 elements of three buffers.
            let vector = Tensor::f32(&[400_000], &vec![0.0; 400_000]);
            let (kind, message) =
                refusal(client.invoke(Call::of("one").input("x", vector.clone()).input("b", vector)))?;
            ensure!(kind == RefusalKind::Quota, "{message}");
        }
        setup.kill_and_restart()?;
    }
    Ok(())
}
