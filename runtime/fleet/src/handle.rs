//! The handle of a fleet, usable from any thread.

mod anew;
mod choice;
mod route;
mod sessions;
mod shares;

use self::anew::Anew;
use self::route::Route;
use crate::dispatcher::{Admitted, DeviceState, Dispatcher, POOL, POOLED};
use crate::inference::{DeviceTraits, FleetStatus, Inference, Placed};
use crate::member::{Member, Reopened};
use crate::placements::{Placements, Source};
use crate::placing::Placing;
use crate::shares::{ShareRefusal, ShareRoom, Shares};
use atoll_core::DeviceId;
use atoll_core::limits::DEVICES_MAX;
use atoll_core::placement::{FunctionId, Why};
use atoll_core::scaling::Decision;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FlushRequest, FunctionKey, FunctionOptions, Imports, InstanceMemory,
    InvocationId, InvokeError, MemorySession, Reply, SessionId, ShareClient, ShareSpec, SuspendError, SuspendedSession,
    TraceBatch,
};
use atoll_kgraph::Bundle;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// The id of an invocation that was rejected before it reached an engine.
const REFUSED: InvocationId = InvocationId(u64::MAX);

/// Access to the devices of a daemon. Cheap to clone.
#[derive(Clone)]
pub struct FleetHandle(Arc<Shared>);

struct Shared {
    /// Indexed by [`DeviceId`].
    members: Arc<[Box<dyn Member>]>,
    names: Vec<String>,
    /// No other lock is taken while it is held.
    placements: RwLock<Placements>,
    /// Locked before `placements`, never while that is locked.
    shares: Mutex<Shares>,
    /// The clients whose shares are not set, and those that are bound to a device. A copy that
    /// requests can read without waiting for `shares`, which is locked while engines answer. No
    /// other lock is taken while it is held.
    standings: RwLock<shares::Standings>,
    /// The pool and its policy, if it chooses the device of each request.
    pool: Option<(&'static str, Dispatcher)>,
    /// A bit for each device that gets no new requests.
    drained: AtomicU64,
    /// Requests whose functions have to be loaded elsewhere first.
    anew: Anew,
}

/// The devices chosen for a function.
struct Chosen {
    id: FunctionId,
    devices: Vec<DeviceId>,
}

impl fmt::Debug for FleetHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FleetHandle").field(&self.0.names).finish()
    }
}

impl FleetHandle {
    /// A fleet of these members. The index of a member is its [`DeviceId`], which must be in the
    /// upper bits of its invocation ids.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(members: Vec<Box<dyn Member>>, placing: Placing) -> io::Result<FleetHandle> {
        let names = members.iter().map(|member| member.name().to_owned()).collect();
        let members: Arc<[Box<dyn Member>]> = members.into();
        let pool = match placing {
            Placing::Pool(config) if members.len() > 1 => {
                Some((config.policy.name, Dispatcher::new(members.clone(), config)?))
            }
            _ => None,
        };
        let (placements, shares, drained) = (RwLock::default(), Mutex::default(), AtomicU64::new(0));
        let (standings, anew) = (RwLock::default(), Anew::default());
        Ok(FleetHandle(Arc::new(Shared { members, names, placements, shares, standings, pool, drained, anew })))
    }

    fn member(&self, device: DeviceId) -> Option<&dyn Member> {
        self.0.members.get(usize::from(device.0)).map(|member| &**member)
    }

    fn ids(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.0.members.len()).map(|at| DeviceId(at as u16))
    }

    /// These devices with their members.
    fn with_members(&self, devices: &[DeviceId]) -> Vec<(DeviceId, &dyn Member)> {
        devices.iter().filter_map(|&device| Some((device, self.member(device)?))).collect()
    }

    /// The devices of a function; none if it is not placed.
    fn members_of(&self, function: &FunctionKey) -> Vec<(DeviceId, &dyn Member)> {
        let devices = self.placements().get(function).map_or_else(Vec::new, |place| place.devices.clone());
        self.with_members(&devices)
    }

    fn placements(&self) -> RwLockReadGuard<'_, Placements> {
        self.0.placements.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn placements_mut(&self) -> RwLockWriteGuard<'_, Placements> {
        self.0.placements.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the device of a request that bypasses the pool.
    fn note_given(&self, device: DeviceId, why: Why, request: &ChainRequest) {
        let Some((_, pool)) = &self.0.pool else { return };
        let first = request.stages.first();
        let function = first.and_then(|stage| self.placements().get(&stage.function).map(|place| place.id));
        if let Some(function) = function {
            pool.note_given(function, device, why);
        }
    }
}

fn bit(device: DeviceId) -> u64 {
    1 << (u64::from(device.0) % DEVICES_MAX as u64)
}

impl Inference for FleetHandle {
    fn devices(&self) -> &[String] {
        &self.0.names
    }

    fn traits(&self) -> Vec<DeviceTraits> {
        let all = self.0.members.iter().map(|member| DeviceTraits {
            kind: member.kind(),
            is_cpu: member.name().split(':').next() == Some("host"),
            memory_bytes: member.memory_bytes(),
            capability: member.capability(),
        });
        all.collect()
    }

    fn imports(&self) -> Vec<Arc<dyn Imports>> {
        self.0.members.iter().filter_map(|member| member.imports()).collect()
    }

    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError> {
        // Computes the digests of the constants before the lock is taken.
        bundle.constants();
        let function = options.key.clone();
        let Chosen { id, devices: chosen } = self.place(&bundle, &function, device)?;
        // Shares are set before the function accepts requests.
        let mut shares = self.shares();
        shares.place(&function, &self.with_members(&chosen));
        self.note_shares(&shares);
        drop(shares);
        let loaded = self.load_onto(&chosen, &bundle, &options).inspect_err(|_| {
            self.displace_shares(&function, &chosen, true);
            self.placements_mut().remove(&function);
        })?;
        let devices: Vec<DeviceId> = loaded.iter().map(|(device, _)| *device).collect();
        let failed: Vec<DeviceId> = chosen.into_iter().filter(|device| !devices.contains(device)).collect();
        if let Some((_, pool)) = &self.0.pool {
            pool.add(
                id,
                &Admitted {
                    tenant: &function.tenant,
                    name: &function.name,
                    class: options.class,
                    is_batched: options.batching.as_ref().is_some_and(|batching| batching.gathers),
                    queue_capacity: loaded[0].1.queue_capacity,
                    constant_bytes: loaded[0].1.weights_bytes,
                    devices: &loaded.iter().map(|(device, info)| (*device, info.weights_resident)).collect::<Vec<_>>(),
                },
            );
        }
        // Before room is given to others, so that the function's own shares are set where it is
        // loaded.
        let source = self.may_move(&bundle, device).then(|| Source { bundle, options });
        self.placements_mut().loaded(&function, &devices, self.0.pool.is_some(), source);
        self.displace_shares(&function, &failed, false);
        let info = loaded.into_iter().next().map(|(_, info)| info).ok_or(EngineError::ShuttingDown)?;
        Ok(Placed { devices, info })
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        let placement =
            self.placements().get(function).cloned().ok_or_else(|| EngineError::NotLoaded(function.clone()))?;
        if let Some((_, pool)) = &self.0.pool {
            pool.remove(placement.id);
        }
        let unload = |device: &DeviceId| {
            let Some(member) = self.member(*device) else { return Ok(()) };
            match member.unload(function) {
                // A device that is lost or stopped has no functions left, and one that has unloaded
                // it already is done; only the placement must be removed.
                Err(EngineError::ShuttingDown | EngineError::NotLoaded(_)) => Ok(()),
                other => other,
            }
        };
        // Unloads from all devices, even if one fails.
        let outcomes: Vec<_> = placement.devices.iter().map(unload).collect();
        outcomes.into_iter().collect::<Result<(), EngineError>>()?;
        // In this order: after its removal the function may be loaded again and set its shares.
        self.displace_shares(function, &placement.devices, true);
        self.placements_mut().remove(function);
        Ok(())
    }

    fn set_share(
        &self,
        client: &ShareClient,
        function: Option<&FunctionKey>,
        share: ShareSpec,
    ) -> Result<(), EngineError> {
        self.put_share(client, function, share, None)
    }

    fn set_share_on(
        &self,
        client: &ShareClient,
        function: &FunctionKey,
        share: ShareSpec,
        device: DeviceId,
    ) -> Result<(), EngineError> {
        self.put_share(client, Some(function), share, Some(device))
    }

    fn device_of_share(&self, client: &ShareClient) -> Option<DeviceId> {
        self.bound_device(client)
    }

    fn share_rooms(&self) -> Vec<ShareRoom> {
        self.rooms()
    }

    fn remove_share(&self, client: &ShareClient) -> bool {
        let mut shares = self.shares();
        let was_there = shares.remove(client, &self.0.members);
        shares.retry(|function| self.members_of(function));
        self.note_shares(&shares);
        was_there
    }

    fn holds_share(&self, client: &ShareClient) -> bool {
        self.share_holds(client)
    }

    fn limit_memory(&self, client: &ShareClient, limit: Option<InstanceMemory>) {
        self.0.members.iter().for_each(|member| member.limit_memory(client, limit));
    }

    fn share_refusals(&self) -> Vec<ShareRefusal> {
        self.shares().refusals()
    }

    fn submit(&self, mut request: ChainRequest, reply: Reply) -> InvocationId {
        let pool = self.0.pool.as_ref().map(|(_, pool)| pool);
        let (device, reply) = match (self.route(&request), pool) {
            (Ok(Route::Anew), _) => return self.submit_anew(request, reply),
            (Ok(Route::Pool(function)), Some(pool)) => return pool.submit(function, request, reply),
            (Ok(Route::Chain(functions, device)), Some(pool)) => match pool.submit_chain(functions, request, reply) {
                Ok(id) => return id,
                Err((given_back, reply)) => {
                    request = given_back;
                    (Ok(device), reply)
                }
            },
            (Ok(Route::Device(device) | Route::Chain(_, device)), _) => (Ok(device), reply),
            // Only fleets with a pool have such a route.
            (Ok(Route::Pool(_)), None) => (Err(InvokeError::UnknownFunction), reply),
            (Err(error), _) => (Err(error), reply),
        };
        match device.and_then(|device| self.member(device).ok_or(InvokeError::UnknownFunction)) {
            Ok(member) => member.submit(request, reply),
            Err(error) => {
                reply(Err(error));
                REFUSED
            }
        }
    }

    fn encodes(&self, request: &ChainRequest) -> bool {
        self.0.members.iter().any(|member| member.encodes(request))
    }

    fn submit_to(&self, device: DeviceId, why: Why, request: ChainRequest, reply: Reply) -> InvocationId {
        let name = self.0.names.get(usize::from(device.0)).map_or("?", String::as_str);
        let refusal = match self.member(device) {
            Some(member) if member.is_lost() => format!("{name}, which was chosen for it, is lost; try again"),
            Some(_) if self.is_drained(device) => format!("{name}, which was chosen for it, is drained; try again"),
            Some(member) if self.has_all(device, &request) => {
                self.note_given(device, why, &request);
                return member.submit(request, reply);
            }
            _ => format!("its function is not on {name}, which was chosen for it, any more; try again"),
        };
        reply(Err(InvokeError::Unavailable(refusal)));
        REFUSED
    }

    fn place_of(&self, id: InvocationId) -> Option<DeviceId> {
        match (DeviceId::of_id(id.0), &self.0.pool) {
            (POOLED, Some((_, pool))) => pool.place_of(id),
            (device, _) => self.member(device).map(|_| device),
        }
    }

    fn other_device(&self, function: &FunctionKey, beside: DeviceId) -> Option<DeviceId> {
        let devices = self.placements().get(function)?.devices.clone();
        let states = self.devices_state().devices;
        let load = |device: &DeviceId| {
            let state = states.get(usize::from(device.0))?;
            (*device != beside && !state.is_lost && !state.is_drained).then_some((state.in_flight, *device))
        };
        devices.iter().filter_map(load).min().map(|(_, device)| device)
    }

    fn set_drained(&self, device: &str, is_drained: bool) -> Result<(), EngineError> {
        let device = self.named(device)?;
        match is_drained {
            true => self.0.drained.fetch_or(bit(device), Ordering::Relaxed),
            false => self.0.drained.fetch_and(!bit(device), Ordering::Relaxed),
        };
        if let Some((_, pool)) = &self.0.pool {
            pool.set_drained(device, is_drained);
        }
        Ok(())
    }

    fn devices_state(&self) -> FleetStatus {
        match &self.0.pool {
            Some((policy, pool)) => pool.status(policy),
            None => {
                let state = |device| DeviceState {
                    is_drained: self.is_drained(device),
                    is_lost: self.member(device).is_some_and(Member::is_lost),
                    ..DeviceState::default()
                };
                FleetStatus { devices: self.ids().map(state).collect(), ..FleetStatus::default() }
            }
        }
    }

    fn cancel(&self, id: InvocationId) {
        match (DeviceId::of_id(id.0), &self.0.pool) {
            (POOLED, Some((_, pool))) => pool.cancel(id),
            (device, _) => {
                if let Some(member) = self.member(device) {
                    member.cancel(id);
                }
            }
        }
    }

    fn open_session(&self, function: &FunctionKey, idle: Duration) -> Result<SessionId, InvokeError> {
        self.home(function)?.open_session(function, idle)
    }

    fn open_memory(&self, function: &FunctionKey, bytes: u64) -> Result<SessionId, InvokeError> {
        self.home(function)?.open_memory(function, bytes)
    }

    fn memory_address(&self, session: SessionId) -> Option<u64> {
        self.of_session(session)?.memory_address(session)
    }

    fn submit_flush(&self, session: SessionId, request: FlushRequest, reply: Reply) -> InvocationId {
        match self.of_session(session) {
            Some(member) => member.submit_flush(session, request, reply),
            None => sessions::refuse(reply),
        }
    }

    fn suspend_session(&self, session: SessionId, patience: Duration) -> Result<(), SuspendError> {
        self.of_session(session).ok_or(SuspendError::NoSession)?.suspend_session(session, patience)
    }

    fn hold_session(&self, session: SessionId) -> bool {
        self.of_session(session).is_some_and(|member| member.hold_session(session))
    }

    fn release_session(&self, session: SessionId) {
        self.of_session(session).into_iter().for_each(|member| member.release_session(session));
    }

    fn take_suspended(&self, session: SessionId) -> Result<SuspendedSession, SuspendError> {
        self.of_session(session).ok_or(SuspendError::NoSession)?.take_suspended(session)
    }

    fn open_suspended(&self, function: &FunctionKey, contents: SuspendedSession) -> Reopened {
        self.reopen(function, contents)
    }

    fn memory_sessions(&self) -> Vec<MemorySession> {
        self.0.members.iter().flat_map(|member| member.memory_sessions()).collect()
    }

    fn close_session(&self, session: SessionId) {
        if let Some(member) = self.of_session(session) {
            member.close_session(session);
        }
    }

    fn submit_step(&self, session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        match self.of_session(session) {
            Some(member) => member.submit_step(session, request, reply),
            None => sessions::refuse(reply),
        }
    }

    fn statistics(&self) -> Vec<EngineStatistics> {
        self.0.members.iter().map(|member| member.statistics()).collect()
    }

    fn note_scaled(&self, function: &FunctionKey, decision: &Decision) {
        let Some((_, pool)) = &self.0.pool else { return };
        let function = self.placements().get(function).map(|place| place.id);
        function.into_iter().for_each(|function| pool.note_scaled(function, decision));
    }

    fn traced(&self) -> Vec<String> {
        let pool = self.0.pool.iter().map(|_| POOL.to_owned());
        self.0.names.iter().cloned().chain(pool).collect()
    }

    fn trace(&self, device: DeviceId, from: Option<u64>) -> Option<TraceBatch> {
        match &self.0.pool {
            Some((_, pool)) if usize::from(device.0) == self.0.members.len() => Some(pool.trace(from)),
            _ => self.member(device)?.trace(from),
        }
    }
}
