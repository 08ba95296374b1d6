//! The driver: prepares and releases claims, and holds their leases in between.
//!
//! One thread decides which requests to send and when; a few others send them. Calls of the kubelet
//! wait until the leases of their claim are granted, or until the daemon has refused one.

use crate::api::Api;
use crate::claim::{Part, Record, main_request, plan};
use crate::claims::{Call, Claims, Effect, State};
use crate::files::Files;
use crate::names::is_uid;
use atoll_kubernetes::capacity::Capacity;
use atoll_kubernetes::daemon::{Answer, DaemonClient};
use atoll_kubernetes::gift::Gift;
use atoll_kubernetes::request::Refused;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often the driver acts if nothing happens.
const TICK: Duration = Duration::from_millis(250);

/// Requests to the daemon that are sent at the same time.
const THREADS: usize = 4;

/// How long the kubelet waits for leases that are asked for. It asks again later.
const PREPARE_MAX: Duration = Duration::from_secs(15);

/// How long the kubelet waits for leases that are released. The driver goes on after it.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// Why a claim is not prepared that was released during its preparation.
const RELEASED: &str = "the claim was released meanwhile";

/// Where the driver is, and whom it asks.
#[derive(Debug)]
pub(crate) struct Driver {
    claims: Mutex<Claims>,
    /// Something about the claims has changed.
    changed: Condvar,
    files: Files,
    api: Arc<Api>,
    daemon: DaemonClient,
    node: String,
    gift: Gift,
    capacity: watch::Receiver<Arc<Capacity>>,
}

/// A device that is ready for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// The request of the claim, without the alternative that was chosen: the kubelet compares it with
    /// the request that a container names.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) share_id: Option<String>,
    /// Its name for the container runtime.
    pub(crate) cdi: String,
}

impl Prepared {
    fn of(part: Part, cdi: String) -> Prepared {
        let request = main_request(&part.request).to_owned();
        Prepared { request, pool: part.pool, device: part.device, share_id: part.share_id, cdi }
    }
}

/// Time since the start.
fn now() -> Duration {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed()
}

impl Driver {
    /// The driver of a node, with the claims of earlier processes. Starts its threads.
    ///
    /// # Errors
    /// Fails if the records cannot be read, or if the system has no room for a thread.
    pub(crate) fn start(
        files: Files,
        api: Arc<Api>,
        daemon: DaemonClient,
        node: String,
        gift: Gift,
        capacity: watch::Receiver<Arc<Capacity>>,
    ) -> io::Result<Arc<Driver>> {
        if let Err(error) = files.tidy() {
            tracing::warn!(%error, "the files of claims that are gone are not all removed");
        }
        let mut claims = Claims::default();
        let records = files.records()?;
        tracing::info!(claims = records.len(), "the claims of earlier processes go on");
        for record in records {
            // The folder of the container runtime does not survive a restart of the machine.
            if !record.leaves {
                files.expose(&record)?;
            }
            claims.insert(record, false, now());
        }
        let (claims, changed) = (Mutex::new(claims), Condvar::new());
        let driver = Arc::new(Driver { claims, changed, files, api, daemon, node, gift, capacity });
        let (calls, received) = channel();
        let received = Arc::new(Mutex::new(received));
        for _ in 0..THREADS {
            let (driver, received) = (driver.clone(), received.clone());
            std::thread::Builder::new().name("daemon".into()).spawn(move || driver.send(&received))?;
        }
        let keeper = driver.clone();
        std::thread::Builder::new().name("leases".into()).spawn(move || keeper.keep(&calls))?;
        Ok(driver)
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what has to be sent, for as long as requests are taken.
    fn keep(&self, calls: &Sender<Call>) {
        let mut claims = self.lock();
        loop {
            let (due, effects) = claims.step(now());
            self.carry_out(effects);
            if due.into_iter().any(|call| calls.send(call).is_err()) {
                return;
            }
            claims = self.changed.wait_timeout(claims, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends requests to the daemon and takes the answers.
    fn send(&self, calls: &Mutex<Receiver<Call>>) {
        loop {
            let call = calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(call) = call else { return };
            let sent = now();
            let answer = match self.daemon.ask(&self.gift.url, &call.namespace, &call.ask) {
                Ok(Answer::Lease(lease)) => Ok(lease.map(|lease| *lease)),
                Ok(Answer::Capacity(_)) => Ok(None),
                Err(refused) => Err(refused),
            };
            if let Err(Refused { status, message }) = &answer {
                tracing::warn!(claim = call.uid, ?status, message, "the daemon refused a request");
            }
            let mut claims = self.lock();
            let effects = claims.answered(sent, now(), &call, answer);
            self.carry_out(effects);
            drop(claims);
            self.changed.notify_all();
        }
    }

    /// Writes files. Called with the lock of the claims, so that files change in the order of effects.
    fn carry_out(&self, effects: Vec<Effect>) {
        for effect in effects {
            let done = match &effect {
                Effect::Save(record) => self.files.save(record),
                Effect::Show { uid, file, lease } => {
                    tracing::info!(claim = uid, lease = lease.as_ref().map(|lease| lease.lease), "what containers see");
                    self.files.show(uid, file, lease.as_deref())
                }
                Effect::Forget(uid) => self.files.hide(uid).and_then(|()| self.files.forget(uid)),
            };
            if let Err(error) = done {
                tracing::error!(%error, "a file of a claim cannot be written");
            }
        }
    }

    /// Makes a claim ready: its leases are granted, and the container runtime knows its devices. The
    /// same again if it is ready.
    ///
    /// # Errors
    /// Says why the claim is not ready. It may be later.
    pub(crate) fn prepare(&self, namespace: &str, name: &str, uid: &str) -> Result<Vec<Prepared>, String> {
        if !is_uid(uid) {
            return Err(format!("{uid:?} is not the UID of a claim"));
        }
        let until = Instant::now() + PREPARE_MAX;
        // A claim of pods that follow each other may be prepared while it is still being released.
        let mut claims = self.wait(uid, until, |state| *state != State::Leaving);
        let plan = match claims.state(uid, now()) {
            State::Leaving => return Err("the leases of an earlier use of the claim are being released".into()),
            State::Unknown => Some(claims.begin(uid)),
            State::Asking | State::Ready(_) | State::Refused(_) => None,
        };
        drop(claims);
        if let Some(plan) = plan {
            let planned = self.planned(namespace, name, uid);
            let mut claims = self.lock();
            let is_wanted = claims.end(plan);
            let record = planned?;
            if !is_wanted {
                return Err(RELEASED.into());
            }
            // Stored first: a lease is asked for only if another process can release it.
            if claims.state(uid, now()) == State::Unknown {
                self.files.save(&record).map_err(|error| format!("the claim cannot be stored: {error}"))?;
                claims.insert(record, true, now());
                self.changed.notify_all();
            }
        }
        let claims = self.wait(uid, until, |state| *state != State::Asking);
        let record = match claims.state(uid, now()) {
            State::Ready(record) => record,
            State::Refused(why) => return Err(format!("the daemon does not grant the lease: {why}")),
            State::Asking => return Err("the daemon has not answered in time".into()),
            State::Leaving | State::Unknown => return Err(RELEASED.into()),
        };
        let names = self.files.expose(&record);
        drop(claims);
        let names = names.map_err(|error| format!("the specification for the container runtime: {error}"))?;
        tracing::info!(namespace, name, claim = uid, devices = names.len(), "prepared");
        Ok(record.parts.into_iter().zip(names).map(|(part, cdi)| Prepared::of(part, cdi)).collect())
    }

    /// What the API server says about a claim.
    fn planned(&self, namespace: &str, name: &str, uid: &str) -> Result<Record, String> {
        let resource = self.api.claim(namespace, name);
        let resource =
            resource.map_err(|refused| format!("the API server does not tell the claim: {}", refused.message))?;
        let capacity = Arc::clone(&self.capacity.borrow());
        plan(resource, uid, &self.node, &capacity.devices, &self.gift)
    }

    /// Releases a claim. Its leases are released as soon as the daemon answers; until then this waits for
    /// a short time only, since they end by themselves when they are not renewed.
    ///
    /// # Errors
    /// Says why the claim is still visible to the container runtime.
    pub(crate) fn unprepare(&self, uid: &str) -> Result<(), String> {
        if !is_uid(uid) {
            return Err(format!("{uid:?} is not the UID of a claim"));
        }
        self.files.hide(uid).map_err(|error| format!("the files of the claim: {error}"))?;
        let mut claims = self.lock();
        match claims.leave(uid, now()) {
            Some(record) => self.files.save(&record).map_err(|error| format!("the claim cannot be stored: {error}"))?,
            // A record that could not be read may be there.
            None => self.files.forget(uid).map_err(|error| format!("the record of the claim: {error}"))?,
        }
        drop(claims);
        self.changed.notify_all();
        drop(self.wait(uid, Instant::now() + RELEASE_MAX, |state| *state == State::Unknown));
        tracing::info!(claim = uid, "released");
        Ok(())
    }

    /// Waits until a claim is in some state, or until a time.
    fn wait(&self, uid: &str, until: Instant, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, Claims> {
        let mut claims = self.lock();
        while !is_so(&claims.state(uid, now())) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            claims = self.changed.wait_timeout(claims, left.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
        }
        claims
    }
}
