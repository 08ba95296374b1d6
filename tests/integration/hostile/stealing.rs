//! Executors that do not answer: their code stops the process, or reads the daemon's messages in
//! its place and blocks all signals.

use super::{Intruder, beside, hidden, pack_hostile, rights, start};
use crate::cancel::metric;
use crate::executors::wait_until;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Call, Class, Deploy};
use atoll_hostile_executor::Attack;
use atoll_tests::full;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The signal that stops a process.
const STOP: u64 = 19;

/// Three tenants whose executors do not answer when they are asked to load code, and many
/// deployments of each. The deployments, calls and requests of others go on meanwhile.
#[test]
fn deployments_that_an_executor_does_not_answer_delay_only_their_tenant() -> Result<()> {
    // On a busy machine the executors may be ended before another tenant's deployment is.
    for _ in 0..5 {
        if another_deploys_while_thieves_wait()? {
            return Ok(());
        }
    }
    bail!("another tenant's deployment always ended after those that no executor answers")
}

/// Whether another tenant's deployment ended while deployments of the attackers waited.
fn another_deploys_while_thieves_wait() -> Result<bool> {
    const THIEVES: [&str; 3] = ["stopper-a", "stopper-b", "thief"];
    let setup = start(&["--time-limit", "1"], &rights(&THIEVES))?;
    let bundle = pack_hostile(&setup.path(""))?;
    // Compiles the code now, so that the deployment during the attack finds it in the cache.
    let mut other = setup.client_of("other")?;
    let urgent = Deploy { class: Some(Class::RealTime), ..Deploy::default() };
    other.deploy(&setup.path("affine.kg"), &urgent)?;
    other.remove_function("affine")?;
    let deployments = if full() { 80 } else { 6 };
    let (answered, stolen) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let waited = beside("deployments that no executor answers", &setup, |others| {
        std::thread::scope(|scope| -> Result<bool> {
            let thieves = THIEVES.map(|tenant| {
                let (setup, bundle, stolen) = (&setup, &bundle, &stolen);
                scope.spawn(move || -> Result<()> {
                    let mut thief = Intruder::new(setup, bundle, tenant)?;
                    stolen.fetch_add(1, SeqCst);
                    if tenant == "thief" {
                        let attack = Attack::Steal { time: Duration::from_secs(120) };
                        let outcome = thief.run_within(&attack, Some(Duration::from_secs(2)))?;
                        ensure!(outcome.is_err(), "it was not ended");
                        return Ok(());
                    }
                    thief.is_ended(setup, &Attack::Signal { number: STOP }, "hung", &["showed no sign of life"])
                })
            });
            wait_until("the thieves run", || Ok(stolen.load(SeqCst) == THIEVES.len()))?;
            std::thread::sleep(Duration::from_millis(300));
            let waiting: Vec<_> = THIEVES
                .into_iter()
                .flat_map(|tenant| (0..deployments).map(move |index| (tenant, index)))
                .map(|(tenant, index)| {
                    let (setup, answered) = (&setup, &answered);
                    scope.spawn(move || -> Result<()> {
                        // Code that the executor has not loaded yet. It may succeed with the next
                        // executor, or fail with the cause.
                        let bundle = setup.path("affine.kg");
                        let _ = setup.client_of(tenant)?.deploy(&bundle, &hidden(&format!("f{index}")));
                        answered.fetch_add(1, SeqCst);
                        Ok(())
                    })
                })
                .collect();
            // A tenant that deploys, calls and removes functions meanwhile.
            let mut waited = false;
            for round in 0..3 {
                other.deploy(&setup.path("affine.kg"), &urgent)?;
                waited |= round == 0 && answered.load(SeqCst) < THIEVES.len() * deployments;
                // As real-time work: a best-effort call would wait until the launches of the
                // thieves are ended.
                super::affine(&mut other)?;
                other.remove_function("affine")?;
                others.go_on(2)?;
            }
            thieves.into_iter().chain(waiting).try_for_each(|thread| thread.join().expect("no panic"))?;
            Ok(waited)
        })
    })?;
    ensure!(metric(&setup.daemon, "atoll_executor_losses_total{cause=\"hung\"}")? >= 2.0);
    Ok(waited)
}

/// Functions are removed while their executor computes and lets no signal through. Its process is
/// killed and reaped, and its memory freed, while others are served.
#[test]
fn removing_a_function_of_a_busy_executor_delays_no_other() -> Result<()> {
    let setup = start(&["--time-limit", "1"], &rights(&["spinner"]))?;
    let bundle = pack_hostile(&setup.path(""))?;
    let rounds = if full() { 4 } else { 1 };
    beside("removing functions", &setup, |others| {
        for _ in 0..rounds {
            let mut spinner = Intruder::new(&setup, &bundle, "spinner")?;
            std::thread::scope(|scope| -> Result<()> {
                let spinning = scope.spawn(|| spinner.run(&Attack::Spin { time: Duration::from_secs(120) }));
                wait_until("it runs", || Ok(metric(&setup.daemon, "atoll_executors")? >= 3.0))?;
                std::thread::sleep(Duration::from_millis(200));
                setup.client_of("spinner")?.remove_function("hostile")?;
                others.go_on(5)?;
                let message = spinning.join().expect("no panic")?.err().context("it was not ended")?;
                ensure!(!message.is_empty());
                Ok(())
            })?;
            let mut client = setup.client_of("spinner")?;
            ensure!(client.invoke(Call::of("hostile")).is_err(), "it is removed");
        }
        Ok(())
    })
}
