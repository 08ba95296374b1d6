//! Loads functions whose devices are all lost or drained onto other devices.
//!
//! Usually a function is on all devices that can run it. It is on fewer if the others refused it when
//! it was deployed, for lack of memory. A request that finds none of its devices open waits until a
//! thread has tried the others again.

use super::{FleetHandle, REFUSED, Shared};
use crate::placements::{Placement, Source};
use atoll_core::DeviceId;
use atoll_core::placement::FunctionId;
use atoll_engine::{ChainRequest, FunctionKey, InvocationId, InvokeError, Reply};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Requests that wait for their functions to be loaded elsewhere. More are refused.
const WAITING_MAX: usize = 1024;

/// How long a function that no other device could take is not tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type Job = (ChainRequest, Reply);

/// The way to the thread, which is started with the first request.
#[derive(Default)]
pub(super) struct Anew(Mutex<Option<SyncSender<Job>>>);

impl Anew {
    /// Passes a request to the thread; gives it back if too many wait or there is no thread.
    fn send(&self, fleet: &Arc<Shared>, job: Job) -> Result<(), Job> {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            let (jobs, inbox) = sync_channel(WAITING_MAX);
            let fleet = Arc::downgrade(fleet);
            let thread = std::thread::Builder::new().name("atoll-anew".into()).spawn(move || work(&fleet, &inbox));
            if let Err(error) = thread {
                tracing::error!(%error, "no thread can be started, so functions are not loaded elsewhere");
                return Err(job);
            }
            *sender = Some(jobs);
        }
        let Some(jobs) = &*sender else { return Err(job) };
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

/// Loads the functions of requests elsewhere and submits the requests again. Ends with the fleet.
fn work(fleet: &Weak<Shared>, inbox: &Receiver<Job>) {
    while let Ok((request, reply)) = inbox.recv() {
        let Some(shared) = fleet.upgrade() else { return reply(Err(InvokeError::ShuttingDown)) };
        let fleet = FleetHandle(shared);
        if let Some(stage) = request.stages.first() {
            fleet.load_anew(&stage.function);
        }
        super::Inference::submit(&fleet, request, reply);
    }
}

impl FleetHandle {
    /// Whether a function has no open device, and another device may take it.
    pub(super) fn has_to_move(&self, placement: &Placement) -> bool {
        let Some(source) = &placement.source else { return false };
        let failed = placement.failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER);
        !failed
            && !placement.devices.iter().any(|device| self.is_open(*device))
            && self.others(placement, source).next().is_some()
    }

    /// Open devices that can run a function and do not have it.
    fn others(&self, placement: &Placement, source: &Source) -> impl Iterator<Item = DeviceId> {
        let is_other = |device: &DeviceId| {
            !placement.devices.contains(device) && self.is_open(*device) && self.suits(*device, &source.bundle)
        };
        self.ids().filter(is_other)
    }

    /// Submits a request once its function was loaded elsewhere. It cannot be cancelled until then.
    pub(super) fn submit_anew(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        if let Err((_, reply)) = self.0.anew.send(&self.0, (request, reply)) {
            reply(Err(InvokeError::QueueFull { capacity: WAITING_MAX }));
        }
        REFUSED
    }

    /// Loads a function onto the open devices that do not have it, unless it has an open one.
    fn load_anew(&self, function: &FunctionKey) {
        let placement = self.placements().get(function).cloned();
        let Some(placement) = placement.filter(|placement| self.has_to_move(placement)) else { return };
        let Some(source) = placement.source.clone() else { return };
        let others: Vec<DeviceId> = self.others(&placement, &source).collect();
        // Shares are set before the function accepts requests, as when it is deployed.
        let mut shares = self.shares();
        shares.place(function, &self.with_members(&others));
        self.note_shares(&shares);
        drop(shares);
        let loaded = self.load_onto(&others, &source.bundle, &source.options).unwrap_or_else(|error| {
            tracing::warn!(%function, %error, "no other device can take the function, whose devices are gone");
            Vec::new()
        });
        let devices: Vec<DeviceId> = loaded.iter().map(|(device, _)| *device).collect();
        let weights = devices.iter().map(|device| (*device, self.weight(*device, &source.bundle))).collect();
        let is_there = self.placements_mut().extend(function, placement.id, weights);
        let failed: Vec<DeviceId> =
            others.into_iter().filter(|device| !is_there || !devices.contains(device)).collect();
        self.displace_shares(function, &failed, false);
        if is_there {
            let resident = loaded.iter().filter(|(_, info)| info.weights_resident).map(|(device, _)| *device);
            self.tell_pool(placement.id, &[placement.devices, devices].concat(), &resident.collect::<Vec<_>>());
        } else {
            // It was unloaded meanwhile.
            let members = self.with_members(&devices);
            members.iter().for_each(|(_, member)| drop(member.unload(function)));
        }
    }

    fn tell_pool(&self, function: FunctionId, devices: &[DeviceId], resident: &[DeviceId]) {
        if let Some((_, pool)) = &self.0.pool {
            pool.set_devices(function, devices, resident);
        }
    }
}
