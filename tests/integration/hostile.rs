//! Attacks on a real daemon: native code of a tenant that has taken over its executor
//! (`tests/hostile-executor`), and clients that flood the daemon or misuse its protocols
//! (`tests/hostile-client`).
//!
//! In each test, the attacker is refused, limited or killed, with the cause in its own error and in a
//! metric. Meanwhile another tenant's real-time calls, requests over HTTP, metrics and health are
//! answered. The longest times are printed, not checked.

mod clients;
mod contents;
mod control;
mod executors;
mod stealing;
mod table;

use crate::cancel::{TIMEOUT, metric};
use crate::control::Setup;
use crate::functions::packed;
use crate::tenant_code::forge;
use anyhow::{Context, Result, bail, ensure};
use atoll_client::{Call, Class, Client, ClientError, Deploy, Tensor};
use atoll_device::cpus;
use atoll_hostile_client::hold::HEALTH;
use atoll_hostile_client::http1::read_answer;
use atoll_hostile_executor::{Attack, Layout, code, manifest};
use atoll_tests::chaos::call_of;
use atoll_tests::measured;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A request to `affine` over HTTP, as real-time work.
const URGENT: &str = r#"{"parameters": {"priority": 1}, "inputs": [
    {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]},
    {"name": "b", "datatype": "FP32", "shape": [2], "data": [1, 1]}]}"#;

/// The path of `affine` of the tenant `local`.
const AFFINE: &str = "/v2/models/affine/infer";

/// A request with a body, on a connection that stays open.
fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// A daemon with `affine` of `local` and of the tenant `victim`. `config` describes the attackers.
fn start(options: &[&str], config: &str) -> Result<Setup> {
    let setup = Setup::start(options, config)?;
    setup.client()?.deploy(&setup.path("affine.kg"), &Deploy::default())?;
    let urgent = Deploy { class: Some(Class::RealTime), private: true, ..Deploy::default() };
    setup.client_of("victim")?.deploy(&setup.path("affine.kg"), &urgent)?;
    Ok(setup)
}

/// Work of others during an attack: its number of rounds, and the time of each.
struct Work {
    name: &'static str,
    rounds: AtomicU64,
    times: std::sync::Mutex<Vec<Duration>>,
}

impl Work {
    fn new(name: &'static str) -> Work {
        Work { name, rounds: AtomicU64::new(0), times: Default::default() }
    }

    fn run(&self, over: &AtomicBool, mut round: impl FnMut() -> Result<()>) -> Result<()> {
        while !over.load(Relaxed) {
            let start = Instant::now();
            round().with_context(|| format!("{} beside an attack", self.name))?;
            self.times.lock().expect("no round panics").push(start.elapsed());
            self.rounds.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn told(&self) -> String {
        let mut times = self.times.lock().expect("no round panics").clone();
        times.sort();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        match times.is_empty() {
            true => format!("{}: none", self.name),
            false => format!("{}: {} in p50 {:.1} ms, p99 {:.1} ms", self.name, times.len(), at(0.5), at(0.99)),
        }
    }
}

/// All work of others during an attack.
struct Others {
    call: Work,
    infer: Work,
    health: Work,
    metrics: Work,
}

impl Others {
    fn all(&self) -> [&Work; 4] {
        [&self.call, &self.infer, &self.health, &self.metrics]
    }

    /// Waits until each kind of work has done this many more rounds.
    fn go_on(&self, rounds: u64) -> Result<()> {
        let wanted = self.all().map(|work| work.rounds.load(Relaxed) + rounds);
        let start = Instant::now();
        for (work, wanted) in self.all().into_iter().zip(wanted) {
            while work.rounds.load(Relaxed) < wanted {
                ensure!(start.elapsed() < TIMEOUT, "{} waits beside an attack", work.name);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

/// Runs an attack while others work; each of their requests must be answered, and correctly.
fn beside<T>(what: &str, setup: &Setup, attack: impl FnOnce(&Others) -> Result<T>) -> Result<T> {
    let others = Others {
        call: Work::new("a real-time call"),
        infer: Work::new("a real-time request over HTTP"),
        health: Work::new("health"),
        metrics: Work::new("metrics"),
    };
    let over = AtomicBool::new(false);
    let done = std::thread::scope(|scope| -> Result<T> {
        let threads = [
            scope.spawn(|| {
                let mut client = setup.client_of("victim")?;
                others.call.run(&over, || affine(&mut client))
            }),
            // Each request comes on a new connection, which needs a place.
            scope.spawn(|| others.infer.run(&over, || ask(&setup.daemon.http, &post(AFFINE, URGENT)))),
            scope.spawn(|| others.health.run(&over, || ask(&setup.daemon.metrics, HEALTH))),
            scope.spawn(|| others.metrics.run(&over, || metric(&setup.daemon, "atoll_connections").map(drop))),
        ];
        let done = others.go_on(1).and_then(|()| attack(&others)).and_then(|done| {
            others.go_on(2)?;
            Ok(done)
        });
        over.store(true, Relaxed);
        let worked = threads.map(|thread| thread.join().expect("no panic"));
        worked.into_iter().collect::<Result<()>>()?;
        done
    })?;
    let told = others.all().map(Work::told);
    measured(&format!("{what}; {}", told.join("; ")));
    Ok(done)
}

/// A call of the victim, with a known result.
fn affine(client: &mut Client) -> Result<()> {
    let vector = |values: &[f32]| Tensor::f32(&[values.len() as i64], values);
    let answer = client.invoke(Call::of("affine").input("x", vector(&[1.0, 2.0])).input("b", vector(&[1.0, 1.0])))?;
    ensure!(answer.tensor("y")?.to_f32() == [4.0, 7.0], "the victim's result is wrong");
    Ok(())
}

/// Sends a request on a new connection; it must be answered with 200.
fn ask(address: &str, request: &[u8]) -> Result<()> {
    let mut stream = atoll_hostile_client::connect(address)?;
    stream.write_all(request)?;
    let status = read_answer(&mut stream)?;
    ensure!(status == 200, "it was answered with status {status}");
    Ok(())
}

/// A tenant that runs its own native code, with its function `hostile`.
struct Intruder {
    client: Client,
    layout: Layout,
}

/// The sections of the configuration for such tenants: best-effort work, 64 MiB of device memory,
/// and trusted code, so that their native code runs as it was sent. The jail has to hold any native
/// code.
pub(crate) fn rights(names: &[&str]) -> String {
    let section = |name: &&str| {
        format!("[tenant.{name}]\ntrusted_code = true\nclass = \"best-effort\"\ndevice_bytes = \"64M\"\n")
    };
    names.iter().map(section).collect()
}

/// Packs `hostile` with its native code into a folder.
pub(crate) fn pack_hostile(folder: &Path) -> Result<PathBuf> {
    let (harmless, hostile) = (folder.join("harmless.kg"), folder.join("hostile.kg"));
    packed(&manifest(), &harmless)?;
    let code = code()?;
    forge(&harmless, &hostile, |target| target.code = code.clone())?;
    Ok(hostile)
}

fn hidden(name: &str) -> Deploy {
    Deploy { name: Some(name.into()), private: true, ..Deploy::default() }
}

impl Intruder {
    fn new(setup: &Setup, bundle: &Path, tenant: &str) -> Result<Intruder> {
        let mut client = setup.client_of(tenant)?;
        client.deploy(bundle, &hidden("hostile"))?;
        // One compute unit for each CPU that the daemon may use.
        let layout = Layout::of_host(cpus::allowed().len() as u32)?;
        let mut intruder = Intruder { client, layout };
        ensure!(intruder.run(&Attack::Nothing)?.is_ok(), "its code runs");
        Ok(intruder)
    }

    /// Runs an attack: the words of `out`, or the error that the attacker gets.
    fn run(&mut self, attack: &Attack) -> Result<Result<Vec<u64>, String>> {
        self.run_within(attack, None)
    }

    fn run_within(&mut self, attack: &Attack, deadline: Option<Duration>) -> Result<Result<Vec<u64>, String>> {
        let call = call_of(attack, &self.layout);
        let call = if let Some(deadline) = deadline { call.deadline(deadline) } else { call };
        match self.client.invoke(call) {
            Ok(answer) => {
                let bytes = &answer.tensor("out")?.bytes;
                Ok(Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()))
            }
            Err(ClientError::Refused(refusal)) => Ok(Err(refusal.message)),
            Err(error) => bail!("not an answer: {error}"),
        }
    }

    /// Runs an attack that ends its executor: the attacker gets an error with one of these causes,
    /// and the metric counts it.
    fn is_ended(&mut self, setup: &Setup, attack: &Attack, label: &str, causes: &[&str]) -> Result<()> {
        let losses = || metric(&setup.daemon, &format!("atoll_executor_losses_total{{cause=\"{label}\"}}"));
        let before = losses()?;
        let message = self.run(attack)?.err().with_context(|| format!("{attack:?} did not end its executor"))?;
        ensure!(causes.iter().any(|cause| message.contains(cause)), "{attack:?}: {message}");
        ensure!(losses()? > before, "{attack:?} is not counted as {label}: {message}");
        Ok(())
    }
}
