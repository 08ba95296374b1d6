//! Constants on four stand-in GPUs that have memory for a part of them each: requests under `cost` go
//! where the constants are.

use super::cold_starts::Gpus;
use crate::functions::grind_sources;
use anyhow::{Context, Result, ensure};
use atoll_core::rng::Rng;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::measured;
use std::path::Path;

/// Functions with 64 KiB of constants each; each belongs to a tenant with its name.
const FUNCTIONS: [(&str, u64); 6] = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 6)];
/// Memory of a GPU: for the constants of two functions, and some invocations.
const MEMORY: &str = "192K";
const CALLS: usize = 60;

fn pack_all(folder: &Path) -> Result<()> {
    let compile = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    for (name, seed) in FUNCTIONS {
        pack(&grind_sources(folder, seed)?, &folder.join(name).with_extension("kg"), &compile, &Silent)?;
    }
    Ok(())
}

/// Loads of constants during calls in random order, one after the other.
fn loads(policy: &str, bundles: &Path) -> Result<f64> {
    let gpus = Gpus::start(policy, MEMORY)?;
    for (name, _) in FUNCTIONS {
        gpus.deploy(name, name, bundles)?;
    }
    let before: f64 = gpus.loads()?.iter().sum();
    let mut rng = Rng::new(1);
    for _ in 0..CALLS {
        gpus.call(FUNCTIONS[rng.below(FUNCTIONS.len() as u64) as usize], 1)?;
    }
    Ok(gpus.loads()?.iter().sum::<f64>() - before)
}

#[test]
fn requests_go_to_the_gpus_that_hold_their_constants() -> Result<()> {
    let bundles = tempfile::tempdir()?;
    pack_all(bundles.path())?;
    let [cost, balance] = ["cost", "balance"].map(|policy| loads(policy, bundles.path()).context(policy));
    let (cost, balance) = (cost?, balance?);
    measured(&format!("{CALLS} calls: {cost} loads under cost, {balance} under balance"));
    ensure!(cost <= CALLS as f64 / 4.0, "most calls find their constants: {cost} loads");
    ensure!(balance >= 2.0 * cost, "balance pays no attention: {balance} loads, cost {cost}");
    Ok(())
}
