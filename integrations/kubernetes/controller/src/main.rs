//! `atoll-controller`: makes the instances that `AtollFunction` resources of Kubernetes state, and
//! holds the lease of each `AtollInstance` at the daemon of its node.
//!
//! Start reading in [`controller`], which decides what to do from what the API server and the
//! daemons report; [`atoll_kubernetes::hold`] is the lease of one instance, [`functions`] the
//! instances of a function. [`election`] decides which of several controllers acts. These have no
//! connection and no clock. [`api`], [`daemons`] and this file have the connections.
//!
//! # Invariants
//!
//! - A lease is asked for only when its instance has a finalizer, and the finalizer is removed only
//!   when the lease was released, has ended, or cannot be renewed any more.
//! - The id of a request for a lease is the UID of the instance. So controllers that repeat each
//!   other's requests get one lease.
//! - Only the leader sends anything but reads. It stops before another one begins.

mod api;
mod arguments;
mod clock;
mod controller;
mod daemons;
mod election;
mod functions;
mod placing;
mod replicas;
mod resources;
#[cfg(test)]
mod simulation;
mod status;

use anyhow::{Context, Result, bail};
use api::{Api, Ended, Watched};
use arguments::Arguments;
use atoll_kubernetes::daemon::Answer;
use atoll_kubernetes::logging;
use atoll_kubernetes::request::Refused;
use clap::Parser;
use controller::{Action, Call, Change, Controller, Verb, Write};
use daemons::Daemons;
use election::Election;
use resources::{KINDS, Kind, Resource};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{SignalKind, signal};

/// How often the controller acts if nothing is reported.
const TICK: Duration = Duration::from_millis(250);

/// Pause between two renewals of leadership, and between two attempts to get it.
const ELECTION_PAUSE: Duration = Duration::from_secs(2);

/// Longest pause before a list that failed is asked for again.
const LIST_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Shortest time between the beginnings of two watches of a kind.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// What other threads report.
enum Input {
    Change(Change),
    Answer(Duration, Call, Result<Answer, Refused>),
    Written(Write, Result<Option<Resource>, Refused>),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    logging::start(&arguments.log)?;
    run(&arguments)
}

/// Time since the start.
fn now() -> Duration {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

/// Runs until a signal asks to end, or another controller has become the leader.
fn run(arguments: &Arguments) -> Result<()> {
    now();
    let stop = stop_on_signal()?;
    let api = arguments.api()?;
    let (inputs, received) = channel();
    for kind in KINDS {
        let (api, inputs) = (api.clone(), inputs.clone());
        start("watch", move || follow(&api, kind, &inputs))?;
    }
    let election = Arc::new(Mutex::new(Election::new(arguments.identity(), &arguments.namespace)));
    {
        let (api, election) = (api.clone(), election.clone());
        start("election", move || elect(&api, &election))?;
    }
    let (writes, queue) = channel::<Write>();
    {
        let (api, inputs) = (api.clone(), inputs.clone());
        start("write", move || write_all(&api, &queue, &inputs))?;
    }
    let report = move |sent, call, answer| drop(inputs.send(Input::Answer(sent, call, answer)));
    let daemons = Daemons::new(arguments.tokens.clone(), now, Arc::new(report));
    let controller = Controller::new(arguments.settings());
    act(controller, daemons, &received, &writes, &election, &stop)?;
    resign(&api, &election);
    tracing::info!("ended by a signal");
    Ok(())
}

/// Carries out what the controller decides while this process is the leader.
fn act(
    mut controller: Controller,
    mut daemons: Daemons,
    inputs: &Receiver<Input>,
    writes: &Sender<Write>,
    election: &Mutex<Election>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut has_led = false;
    while !stop.load(Relaxed) {
        let first = inputs.recv_timeout(TICK).ok();
        for input in first.into_iter().chain(std::iter::from_fn(|| inputs.try_recv().ok())) {
            match input {
                Input::Change(change) => controller.observe(change),
                Input::Answer(sent, call, answer) => controller.answered(sent, now(), &call, answer),
                Input::Written(write, result) => controller.written(now(), &write, result),
            }
        }
        let leads = lock(election).leads(now());
        if !leads && has_led {
            bail!("another controller has become the leader, or the API server does not answer");
        }
        if !leads {
            continue;
        }
        if !has_led {
            tracing::info!("this controller is the leader");
            has_led = true;
        }
        for action in controller.step(now(), &clock::stamp(SystemTime::now(), false)) {
            match action {
                Action::Ask(call) => daemons.send(call),
                Action::Write(write) => {
                    note(&write);
                    writes.send(write).context("the thread that writes has ended")?;
                }
            }
        }
        daemons.keep(|node| controller.daemon(node).is_some());
    }
    Ok(())
}

/// Logs an event.
fn note(write: &Write) {
    if let (None, Verb::Create(event)) = (write.kind, &write.verb) {
        let (namespace, name) = &write.key;
        let text = |field: &str| event[field].as_str().unwrap_or_default();
        tracing::info!(namespace, name, reason = text("reason"), "{}", text("message"));
    }
}

/// Lists and watches a kind. Returns when the receiver of the changes is gone.
fn follow(api: &Api, kind: Kind, inputs: &Sender<Input>) {
    let mut failures = 0;
    loop {
        let listed = follow_once(api, kind, inputs, &mut failures);
        let Err(Refused { message, .. }) = listed else { return };
        failures = u32::min(failures + 1, 16);
        let pause = Duration::from_millis(500).saturating_mul(1 << failures).min(LIST_PAUSE_MAX);
        tracing::warn!(?kind, message, "the API server does not report changes; asking again in {pause:?}");
        std::thread::sleep(pause);
    }
}

/// Lists a kind and watches it. Returns without an error only when the receiver is gone.
fn follow_once(api: &Api, kind: Kind, inputs: &Sender<Input>, failures: &mut u32) -> Result<(), Refused> {
    loop {
        let (all, mut version) = api.list(kind)?;
        if inputs.send(Input::Change(Change::Listed(kind, all))).is_err() {
            return Ok(());
        }
        loop {
            let (mut is_open, began) = (true, Instant::now());
            let ended = api.watch(kind, &version.clone(), |event| {
                let change = match event {
                    Watched::Version(new) => {
                        version = new;
                        return true;
                    }
                    Watched::Set(resource) => {
                        version.clone_from(&resource.metadata.resource_version);
                        Change::Set(kind, resource)
                    }
                    Watched::Gone(resource) => {
                        version.clone_from(&resource.metadata.resource_version);
                        Change::Gone(kind, resource.metadata.key(), resource.metadata.uid)
                    }
                };
                is_open = inputs.send(Input::Change(change)).is_ok();
                is_open
            })?;
            *failures = 0;
            if !is_open {
                return Ok(());
            }
            std::thread::sleep(WATCH_PAUSE.saturating_sub(began.elapsed()));
            if ended == Ended::TooOld {
                break;
            }
        }
    }
}

/// Carries out writes in order.
fn write_all(api: &Api, queue: &Receiver<Write>, inputs: &Sender<Input>) {
    while let Ok(write) = queue.recv() {
        let result = api.write(&write);
        if let Err(Refused { message, .. }) = &result {
            let (namespace, name) = &write.key;
            tracing::warn!(namespace, name, message, "the API server refused a write");
        }
        if inputs.send(Input::Written(write, result)).is_err() {
            return;
        }
    }
}

/// Gets and keeps leadership.
fn elect(api: &Api, election: &Mutex<Election>) {
    loop {
        let sent = now();
        match api.leader(election::NAME) {
            Ok(lease) => {
                let stamp = clock::stamp(SystemTime::now(), true);
                let wanted = lock(election).read(sent, lease.as_ref(), &stamp);
                if let Some(wanted) = wanted {
                    let written = api.lead(election::NAME, &wanted);
                    if let Err(Refused { message, .. }) = &written {
                        tracing::warn!(message, "the lease of the leader was not written");
                    }
                    lock(election).written(sent, written.is_ok());
                }
            }
            Err(Refused { message, .. }) => tracing::warn!(message, "the lease of the leader cannot be read"),
        }
        std::thread::sleep(ELECTION_PAUSE);
    }
}

/// Gives up leadership, so that another controller begins at once.
fn resign(api: &Api, election: &Mutex<Election>) {
    // Locked until the end: the other thread does not renew in between.
    let mut election = lock(election);
    let Ok(Some(lease)) = api.leader(election::NAME) else { return };
    let stamp = clock::stamp(SystemTime::now(), true);
    if let Some(lease) = election.resign(&lease, &stamp)
        && let Err(Refused { message, .. }) = api.lead(election::NAME, &lease)
    {
        tracing::warn!(message, "the lease of the leader was not released; it ends by its duration");
    }
}

fn lock(election: &Mutex<Election>) -> std::sync::MutexGuard<'_, Election> {
    election.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).context("a thread cannot be started")?;
    Ok(())
}

/// Becomes true on SIGINT or SIGTERM, which then no longer end the process.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let guard = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    drop(guard);
    let ours = stop.clone();
    start("signals", move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        ours.store(true, Relaxed);
    })?;
    Ok(stop)
}
