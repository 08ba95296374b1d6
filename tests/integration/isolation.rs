//! A hostile tenant beside another one, in a real daemon. Its kernels try to access arbitrary
//! memory; they must not read, change or block anything of the other tenant.

use crate::cancel::{TIMEOUT, metric};
use crate::control::Setup;
use crate::executors::wait_until;
use crate::functions::{manifest, packed};
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, DataType, Deploy, ExecutorEntry, Tensor};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: i64 = 4096;

/// Every word of the victim's constant.
const SECRET: u32 = 0x5ec1_2e75;
const SECRET_WORDS: usize = 16 << 10;

/// Every word of the intruder's own constant.
const OWN: u32 = 0x0a11_0c8d;

/// Modes of `tests/functions/reach.ptx`.
#[derive(Clone, Copy, Debug)]
enum Reach {
    ReadConstants,
    WriteConstants,
    ReadMemory,
    WriteMemory,
    Tell,
}

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Packs a function of `tests/functions` with these words as its constant `file`.
fn pack(setup: &Setup, function: &str, name: &str, file: &str, constant: &[u32]) -> Result<PathBuf> {
    let folder = setup.path(&format!("{name}.d"));
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join(file), words(constant.iter().copied()))?;
    std::fs::copy(manifest(function).with_extension("ptx"), folder.join(function).with_extension("ptx"))?;
    let text = std::fs::read_to_string(manifest(function))?;
    let copy = folder.join(name).with_extension("toml");
    std::fs::write(
        &copy,
        text.replace(
            "dtype = \"u32\", shape = [1024], file",
            &format!("dtype = \"u32\", shape = [{}], file", constant.len()),
        ),
    )?;
    let bundle = copy.with_extension("kg");
    packed(&copy, &bundle)?;
    Ok(bundle)
}

fn named(name: &str) -> Deploy {
    Deploy { name: Some(name.into()), private: true, ..Deploy::default() }
}

/// The victim's regular work, with a known result.
fn vault(client: &mut Client, salt: u32) -> Result<()> {
    let x: Vec<u32> = (0..SECRET_WORDS as u32).map(|i| i.wrapping_mul(salt)).collect();
    let tensor =
        Tensor { datatype: DataType::Uint32, shape: vec![SECRET_WORDS as i64], bytes: words(x.iter().copied()) };
    let answer = client.invoke(Call::of("vault").input("x", tensor))?;
    ensure!(answer.tensor("y")?.bytes == words(x.into_iter().map(|x| x ^ SECRET)), "the victim's result is wrong");
    Ok(())
}

/// The contents of a page, or `None` if the kernel faulted.
fn reach(client: &mut Client, function: &str, how: Reach, distance: i64) -> Result<Option<Vec<u32>>> {
    let bytes = [how as i64, distance].iter().flat_map(|word| word.to_le_bytes()).collect();
    let how_to = Tensor { datatype: DataType::Uint64, shape: vec![2], bytes };
    let answer = match client.invoke(Call::of(function).input("how", how_to)) {
        Ok(answer) => answer,
        Err(error) => {
            let text = error.to_string();
            ensure!(
                ["faulted", "executor", "control words"].iter().any(|cause| text.contains(cause)),
                "{how:?} at {distance}: {text}"
            );
            return Ok(None);
        }
    };
    Ok(Some(answer.tensor("out")?.bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()))
}

fn is_secret(page: &[u32]) -> bool {
    page.contains(&SECRET)
}

fn executor(client: &mut Client) -> Result<ExecutorEntry> {
    client.processes()?.executors.into_iter().next().context("an executor")
}

/// Runs the victim's work repeatedly while `intruder` runs; the victim must get every answer, and
/// all correct.
fn beside(setup: &Setup, intruder: impl FnOnce(&AtomicU64) -> Result<()>) -> Result<()> {
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| -> Result<()> {
        let victim = scope.spawn(|| -> Result<()> {
            let mut client = setup.client_of("victim")?;
            while !over.load(Relaxed) {
                vault(&mut client, answers.fetch_add(1, Relaxed) as u32)?;
            }
            Ok(())
        });
        let done = intruder(&answers);
        over.store(true, Relaxed);
        victim.join().expect("the victim does not panic")?;
        done
    })
}

/// A victim with a secret, and an intruder with `reach`.
fn setup() -> Result<(Setup, Client, Client)> {
    // The jail must confine any native code, so the daemon runs the intruder's as it was sent.
    let setup = Setup::start(&["--time-limit", "1"], "[tenant.intruder]\ntrusted_code = true\n")?;
    let (mut victim, mut intruder) = (setup.client_of("victim")?, setup.client_of("intruder")?);
    victim.deploy(&pack(&setup, "vault", "vault", "secret.bin", &[SECRET; SECRET_WORDS])?, &named("vault"))?;
    intruder.deploy(&pack(&setup, "reach", "reach", "own.bin", &[OWN; 1024])?, &named("reach"))?;
    vault(&mut victim, 1)?;
    Ok((setup, victim, intruder))
}

#[test]
fn nothing_of_another_tenant_is_read_or_written() -> Result<()> {
    let (setup, mut victim, mut intruder) = setup()?;
    let before = executor(&mut victim)?;
    ensure!(before.pid.is_some() && before.restarts == 0 && before.tenant.as_str() == "victim", "{before:?}");
    beside(&setup, |_| {
        let own = reach(&mut intruder, "reach", Reach::ReadConstants, 0)?.context("it may read its own")?;
        ensure!(own.iter().all(|word| *word == OWN), "its own constant is not what it was: {own:x?}");
        // Neighbouring pages, which would contain the secret if there were one address space for
        // all; then the whole window, in strides.
        let near = (-40..=40).map(|page| page * PAGE);
        let far = (-32..=32).map(|step| step << 30);
        for distance in near.chain(far).filter(|distance| *distance != 0) {
            let page = reach(&mut intruder, "reach", Reach::ReadConstants, distance)?;
            ensure!(page.as_deref().is_none_or(|page| !is_secret(page)), "the secret is {distance} bytes away");
            ensure!(
                distance.abs() > 40 * PAGE || page.is_none(),
                "memory is accessible {distance} bytes from a constant: {page:x?}"
            );
        }
        for distance in (-16..=16).map(|page| page * PAGE) {
            ensure!(
                reach(&mut intruder, "reach", Reach::WriteConstants, distance)?.is_none(),
                "constants cannot be written, {distance}"
            );
        }
        // Its own memory, the bounds of its range, and what is around it.
        let around = (-8..=8).map(|page| page * PAGE);
        let bounds = (-34..=34).map(|step| step << 23);
        for distance in around.chain(bounds) {
            let page = reach(&mut intruder, "reach", Reach::ReadMemory, distance)?;
            ensure!(
                page.is_none_or(|page| !is_secret(&page)),
                "the secret is {distance} bytes from the memory of another"
            );
            reach(&mut intruder, "reach", Reach::WriteMemory, distance)?;
        }
        Ok(())
    })?;
    let after = executor(&mut victim)?;
    ensure!((after.pid, after.restarts) == (before.pid, before.restarts), "{after:?}");
    Ok(())
}

#[test]
fn equal_constants_are_stored_once_and_freed_with_the_last_function() -> Result<()> {
    let (setup, mut victim, mut intruder) = setup()?;
    let held = || metric(&setup.daemon, "atoll_device_constants_bytes{device=\"host:0\"}");
    let (secret, own) = ((SECRET_WORDS * 4) as f64, 4096.0);
    ensure!(held()? == secret + own, "{}", held()?);
    // A tenant that already has the bytes may have them on the device, without further memory.
    intruder.deploy(&pack(&setup, "reach", "insider", "own.bin", &[SECRET; SECRET_WORDS])?, &named("insider"))?;
    ensure!(held()? == secret + own, "{}", held()?);
    let places = |client: &mut Client, function: &str| -> Result<i64> {
        let told = reach(client, function, Reach::Tell, 0)?.context("an answer")?;
        Ok(i64::from(told[0]) | i64::from(told[1]) << 32)
    };
    let distance = places(&mut intruder, "insider")? - places(&mut intruder, "reach")?;
    let page = reach(&mut intruder, "reach", Reach::ReadConstants, distance)?;
    ensure!(
        page.is_some_and(|page| page.iter().all(|word| *word == SECRET)),
        "a tenant's functions can all read its constants"
    );
    // After unloading, the address is known but no longer accessible.
    intruder.remove_function("insider")?;
    let start = Instant::now();
    while reach(&mut intruder, "reach", Reach::ReadConstants, distance)?.is_some() {
        ensure!(start.elapsed() < TIMEOUT, "an unloaded constant is still accessible");
    }
    vault(&mut victim, 7)?;
    ensure!(held()? == secret + own, "{}", held()?);
    victim.remove_function("vault")?;
    ensure!(held()? == own, "the last byte comes back: {}", held()?);
    intruder.remove_function("reach")?;
    ensure!(
        held()? == 0.0 && setup.client()?.processes()?.executors.iter().all(|entry| entry.tenant.as_str() == "local")
    );
    Ok(())
}

#[test]
fn wild_stores_traps_and_endless_kernels_do_not_delay_others_for_long() -> Result<()> {
    let (setup, mut victim, mut intruder) = setup()?;
    intruder.deploy(&setup.path("faulty.kg"), &named("faulty"))?;
    let before = executor(&mut victim)?;
    let mode = |mode: u8| Tensor { datatype: DataType::Uint32, shape: vec![1], bytes: vec![mode, 0, 0, 0] };
    beside(&setup, |answers| {
        // Null, misaligned and wild accesses and a trap, repeatedly.
        for round in 0..10 {
            let answer = intruder.invoke(Call::of("faulty").input("mode", mode(1 + round % 4)));
            ensure!(answer.is_err(), "it should have failed");
        }
        // Endless kernels until their time limit; the victim's requests are answered meanwhile.
        for deadline in [None, Some(Duration::from_millis(200))] {
            let before = answers.load(Relaxed);
            let call = Call::of("faulty").input("mode", mode(5));
            let call = if let Some(deadline) = deadline { call.deadline(deadline) } else { call };
            ensure!(intruder.invoke(call).is_err(), "it should have been ended");
            let start = Instant::now();
            while answers.load(Relaxed) < before + 2 {
                ensure!(start.elapsed() < TIMEOUT, "the victim waits");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    })?;
    let after = executor(&mut victim)?;
    ensure!((after.pid, after.restarts) == (before.pid, before.restarts), "{after:?}");
    Ok(())
}

/// The jail limits an executor's mappings, but its device memory is one sparse range.
#[test]
fn memory_that_was_not_granted_costs_the_executor_that_touches_it() -> Result<()> {
    let setup = Setup::start(&[], "")?;
    let (mut victim, mut intruder) = (setup.client_of("victim")?, setup.client_of("intruder")?);
    victim.deploy(&pack(&setup, "vault", "vault", "secret.bin", &[SECRET; SECRET_WORDS])?, &named("vault"))?;
    packed(&manifest("sprawl"), &setup.path("sprawl.kg"))?;
    intruder.deploy(&setup.path("sprawl.kg"), &named("sprawl"))?;
    let before = executor(&mut victim)?;
    beside(&setup, |_| {
        // The request may end before the executor is checked.
        drop(intruder.invoke(Call::of("sprawl")));
        let violations = "atoll_executor_losses_total{cause=\"protocol_violation\",device=\"host:0\"}";
        wait_until("the executor is killed", || Ok(metric(&setup.daemon, violations)? >= 1.0))
    })?;
    let log = std::fs::read_to_string(setup.path("daemon.log"))?;
    ensure!(log.contains("MiB of device memory, and its work holds at most"), "{log}");
    let after = executor(&mut victim)?;
    ensure!((after.pid, after.restarts) == (before.pid, before.restarts), "{after:?}");
    Ok(())
}
