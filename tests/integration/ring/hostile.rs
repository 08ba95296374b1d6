//! Clients that overwrite the memory of their ring: they lose their ring, and other clients notice
//! nothing.

use super::{asleep, call_of, ring, start};
use crate::cancel::metric;
use crate::control::{Setup, affine, vector};
use crate::executors::wait_until;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Ring, RingOptions};
use atoll_control::{Answer, Attachments, Incoming, Outgoing, Progress, Request, RingReport, RingSpec};
use atoll_core::rng::Rng;
use atoll_device::shm::Region;
use atoll_tests::seed;
use rustix::process::Signal;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Word of the memory at which the indices of the requests begin.
const REQUESTS: usize = 4096 / 8;

/// Word of the first record of the requests.
const RECORDS: usize = REQUESTS + 32;

/// A ring whose memory is overwritten.
struct Raw {
    stream: UnixStream,
    memory: Region,
}

impl Raw {
    fn open(setup: &Setup, tenant: &str, slots: u32) -> Result<Raw> {
        let stream = UnixStream::connect(setup.path("atoll.sock"))?;
        ask(&stream, &Request::Hello { tenant: Some(tenant.parse()?) })?;
        let spec = RingSpec { slots, arena_bytes: 64 << 10, spin_us: 0 };
        let (answer, mut files) = ask(&stream, &Request::OpenRing(spec))?;
        let Answer::Ring(RingReport { memory, .. }) = answer else { bail!("not a ring: {answer:?}") };
        Ok(Raw { stream, memory: Region::attach(files.take_memory(memory)?)? })
    }

    fn store(&self, word: usize, value: u64) -> Result<()> {
        let words = self.memory.words(0, (self.memory.bytes() / 8) as usize).context("words")?;
        words[word].store(value, Ordering::SeqCst);
        Ok(())
    }

    /// Wakes the thread of the daemon: changes the ticket of its bell, and wakes all sleepers.
    fn wake(&self) -> Result<()> {
        use rustix::thread::futex::{Flags, wake};
        let ticket = self.memory.word(0).context("a bell")?;
        ticket.fetch_add(1, Ordering::SeqCst);
        wake(ticket, Flags::empty(), i32::MAX as u32)?;
        Ok(())
    }

    /// The reason for which the daemon closes the ring.
    fn reason(&self) -> Result<String> {
        self.stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        match received(&self.stream)?.0 {
            Answer::Refused(refusal) => Ok(refusal.message),
            other => bail!("not a refusal: {other:?}"),
        }
    }
}

fn ask(stream: &UnixStream, request: &Request) -> Result<(Answer, Attachments)> {
    let mut outgoing = Outgoing::new(request, Attachments::default())?;
    while let Progress::More = outgoing.step(stream)? {}
    received(stream)
}

fn received(stream: &UnixStream) -> Result<(Answer, Attachments)> {
    let mut incoming = Incoming::default();
    loop {
        match incoming.step(stream)? {
            Progress::More => {}
            Progress::Done(frame) => return Ok(frame.decode()?),
            Progress::Closed => bail!("the connection was closed"),
        }
    }
}

#[test]
fn impossible_indices_and_too_many_requests_end_the_ring() -> Result<()> {
    let setup = start(&[], "")?;
    for index in [5_u64, 1 << 40, u64::MAX] {
        let raw = Raw::open(&setup, "local", 4)?;
        raw.store(REQUESTS, index)?;
        raw.wake()?;
        let reason = raw.reason()?;
        ensure!(reason.contains("the ring is corrupt"), "{reason}");
        // The word that says that the ring is closed is set.
        ensure!(raw.memory.word(256).context("a word")?.load(Ordering::SeqCst) == 1);
        ensure!((&raw.stream).read(&mut [0])? == 0, "the connection ends");
    }
    // Four pings without taking answers, and then one more.
    let raw = Raw::open(&setup, "local", 4)?;
    for slot in 0..4 {
        raw.store(RECORDS + slot * 4, 1)?;
    }
    raw.store(REQUESTS, 4)?;
    raw.wake()?;
    wait_until("four answers", || {
        Ok(raw.memory.words(REQUESTS as u64 * 8, 32).context("words")?[16].load(Ordering::SeqCst) == 4)
    })?;
    raw.store(REQUESTS, 5)?;
    raw.wake()?;
    let reason = raw.reason()?;
    ensure!(reason.contains("sent more requests than that"), "{reason}");
    ensure!(metric(&setup.daemon, "atoll_rings_closed_total{reason=\"violation\"}")? == 4.0);
    // A client that sends on the socket of its ring loses it, too.
    let raw = Raw::open(&setup, "local", 4)?;
    let _ = ask(&raw.stream, &Request::Objects);
    wait_until("all rings are closed", || Ok(metric(&setup.daemon, "atoll_rings{tenant=\"local\"}")? == 0.0))?;
    Ok(())
}

#[test]
fn a_bell_that_never_stops_does_not_stop_others() -> Result<()> {
    let setup = start(&[], "")?;
    let raw = Raw::open(&setup, "noisy", 4)?;
    let mut good = ring(&setup, "local")?;
    let (x, b) = (vector([1.0; 64]), vector([2.0; 64]));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let noise = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::SeqCst) {
                raw.wake()?;
                raw.store(0, u64::MAX)?;
            }
            Ok(())
        });
        let answered = (0..50).try_for_each(|_| -> Result<()> {
            ensure!(good.infer(&call_of(&x, &b))?.tensor("y")? == &affine(&x, &b));
            Ok(())
        });
        stop.store(true, Ordering::SeqCst);
        noise.join().expect("the thread does not panic")?;
        answered
    })?;
    // Its own ring still works when its bell is restored.
    raw.store(0, 0)?;
    raw.store(RECORDS, 1)?;
    raw.store(REQUESTS, 1)?;
    raw.wake()?;
    let answers = raw.memory.words(4096, 32).context("words")?;
    wait_until("the request was taken", || Ok(answers[16].load(Ordering::SeqCst) == 1))
}

/// A client that sends only pings, with a spin that keeps the daemon's thread awake. Its time without a
/// request is limited, and billed.
#[test]
fn a_ring_that_only_pings_pauses_and_its_cpu_time_is_billed() -> Result<()> {
    let setup = start(&[], "[tenant.pinger]\nmodels = [\"affine\"]\n")?;
    let options = RingOptions { daemon_spin: Duration::from_millis(1), ..asleep(4) };
    let mut rings = (0..2).map(|_| Ok(setup.client_of("pinger")?.open_ring(&options)?)).collect::<Result<Vec<_>>>()?;
    let mut good = ring(&setup, "local")?;
    let (x, b) = (vector([1.0; 64]), vector([2.0; 64]));
    let stop = AtomicBool::new(false);
    let pauses = || metric(&setup.daemon, "atoll_ring_pauses_total");
    std::thread::scope(|scope| -> Result<()> {
        let pinging: Vec<_> = rings
            .iter_mut()
            .map(|ring| {
                scope.spawn(|| -> Result<()> {
                    while !stop.load(Ordering::SeqCst) {
                        ring.ping()?;
                    }
                    Ok(())
                })
            })
            .collect();
        // One of the two may use the budget, and both pause then.
        let paused = wait_until("they pause", || Ok(pauses()? >= 2.0));
        let served = paused.and_then(|()| {
            (0..20).try_for_each(|_| -> Result<()> {
                ensure!(good.infer(&call_of(&x, &b))?.tensor("y")? == &affine(&x, &b));
                Ok(())
            })
        });
        stop.store(true, Ordering::SeqCst);
        pinging.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))?;
        served
    })?;
    // Their requests are served after the pause, and what they cost is on the tenant's account.
    for ring in &mut rings {
        ensure!(ring.infer(&call_of(&x, &b))?.tensor("y")? == &affine(&x, &b));
    }
    drop(rings);
    let cpu = || metric(&setup.daemon, "atoll_ring_cpu_seconds_total{tenant=\"pinger\"}");
    wait_until("it is billed", || Ok(cpu()? > 0.01))?;
    let usage = setup.json(&["usage", "--tenant", "pinger"])?;
    let rows = usage["executors"].as_array().context("executors")?;
    let row = rows.iter().find(|row| row["device"] == "ring").context("the row of rings")?;
    ensure!(row["tenant"] == "pinger" && row["cpu_s"].as_f64() > Some(0.01), "{row}");
    Ok(())
}

#[test]
fn clients_that_overwrite_their_rings_at_random_disturb_no_others() -> Result<()> {
    let mut setup = start(&[], "")?;
    let (x, b) = (vector([1.0; 64]), vector([2.0; 64]));
    let stop = AtomicBool::new(false);
    let rings = std::thread::scope(|scope| -> Result<u64> {
        let hostile: Vec<_> = (0..2)
            .map(|thread| {
                let (setup, stop) = (&setup, &stop);
                scope.spawn(move || overwrite(setup, stop, Rng::new(seed() + thread)))
            })
            .collect();
        let mut good: Vec<Ring> = (0..2).map(|_| ring(&setup, "local")).collect::<Result<_>>()?;
        let begun = Instant::now();
        let mut served = Ok(());
        while begun.elapsed() < Duration::from_secs(5) && served.is_ok() {
            served = good.iter_mut().try_for_each(|ring| {
                ensure!(ring.infer(&call_of(&x, &b))?.tensor("y")? == &affine(&x, &b));
                Ok(())
            });
        }
        stop.store(true, Ordering::SeqCst);
        let rings = hostile.into_iter().map(|thread| thread.join().expect("the thread does not panic"));
        let rings = rings.sum::<Result<u64>>()?;
        served.map(|()| rings)
    })?;
    ensure!(rings > 10, "only {rings} rings were overwritten");
    ensure!(setup.daemon.is_running()?, "the daemon exited");
    wait_until("all rings are closed", || Ok(metric(&setup.daemon, "atoll_rings{tenant=\"rude\"}").is_err()))?;
    setup.client()?.open_ring(&asleep(1))?.ping()?;
    let log = std::fs::read_to_string(setup.path(crate::serve::LOG))?;
    ensure!(!log.contains("panicked"), "{log}");
    let status = setup.daemon.signal(Signal::TERM)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Opens rings and overwrites their memory: sensible requests first, then single words of header,
/// indices, records and answers. Returns the number of rings.
fn overwrite(setup: &Setup, stop: &AtomicBool, mut numbers: Rng) -> Result<u64> {
    let mut rings = 0;
    while !stop.load(Ordering::SeqCst) {
        // The tenant may have too many rings that are being closed.
        let Ok(raw) = Raw::open(setup, "rude", 4) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        rings += 1;
        let words = raw.memory.bytes() / 8;
        for round in 0..200 {
            // A request that is almost valid: a ping, or a call with a short or long message.
            let record = RECORDS + (round % 4) * 4;
            raw.store(record, 1 + numbers.below(2))?;
            raw.store(record + 2, if numbers.one_in(8) { numbers.next_u64() } else { numbers.below(64) })?;
            raw.store(REQUESTS, round as u64 + 1)?;
            let near = [0, 16, 32, REQUESTS as u64, REQUESTS as u64 + 16, RECORDS as u64 + numbers.below(2100)];
            let near = near[numbers.below(near.len() as u64) as usize] + numbers.below(4);
            let word = if numbers.one_in(2) { near } else { numbers.below(words) };
            let value = [0, 1, numbers.below(300), u64::MAX, numbers.next_u64() << 20][numbers.below(5) as usize];
            if numbers.one_in(4) {
                raw.store(word as usize, value)?;
            }
            raw.wake()?;
            if raw.memory.word(256).context("a word")?.load(Ordering::SeqCst) == 1 {
                break;
            }
        }
    }
    Ok(rings)
}
