//! The handle of a fleet, usable from any thread.

use crate::inference::{Inference, Placed};
use crate::member::Member;
use crate::placements::{Placements, Weight};
use atoll_core::DeviceId;
use atoll_core::placement::{Candidate, emptiest};
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionKey, FunctionOptions, InvocationId, InvokeError, Reply,
    SessionId, TraceBatch,
};
use atoll_kgraph::Bundle;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// The id of an invocation that was rejected before it reached an engine.
const REFUSED: InvocationId = InvocationId(u64::MAX);

/// Access to the devices of a daemon. Cheap to clone.
#[derive(Clone)]
pub struct FleetHandle(Arc<Shared>);

struct Shared {
    /// Indexed by [`DeviceId`].
    members: Vec<Box<dyn Member>>,
    names: Vec<String>,
    /// No other lock is taken while it is held.
    placements: RwLock<Placements>,
}

impl fmt::Debug for FleetHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FleetHandle").field(&self.0.names).finish()
    }
}

impl FleetHandle {
    /// A fleet of these members. The index of a member is its [`DeviceId`], which must be in the
    /// upper bits of its invocation ids.
    pub fn new(members: Vec<Box<dyn Member>>) -> FleetHandle {
        let names = members.iter().map(|member| member.name().to_owned()).collect();
        FleetHandle(Arc::new(Shared { members, names, placements: RwLock::default() }))
    }

    fn member(&self, device: DeviceId) -> Option<&dyn Member> {
        self.0.members.get(usize::from(device.0)).map(|member| &**member)
    }

    fn ids(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.0.members.len()).map(|at| DeviceId(at as u16))
    }

    fn placements(&self) -> RwLockReadGuard<'_, Placements> {
        self.0.placements.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn placements_mut(&self) -> RwLockWriteGuard<'_, Placements> {
        self.0.placements.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses a device for a function and records the placement.
    fn place(&self, bundle: &Bundle, function: &FunctionKey, named: Option<&str>) -> Result<DeviceId, EngineError> {
        let mut placements = self.placements_mut();
        if placements.device_of(function).is_some() {
            return Err(EngineError::AlreadyLoaded(function.clone()));
        }
        let device = match named {
            Some(name) => self.named(name)?,
            None => self.emptiest(bundle, &placements),
        };
        let weight = self.target(device, bundle).map(|target| Weight::of(bundle, target)).unwrap_or_default();
        placements.insert(function.clone(), device, weight);
        Ok(device)
    }

    /// The device with this name. A kind without a number, such as `host`, means `host:0`.
    fn named(&self, name: &str) -> Result<DeviceId, EngineError> {
        let is_it = |known: &String| known == name || known.strip_suffix(":0").is_some_and(|kind| kind == name);
        let at = self.0.names.iter().position(is_it);
        let unknown = || EngineError::UnknownDevice { name: name.into(), known: self.0.names.join(", ") };
        at.map(|at| DeviceId(at as u16)).ok_or_else(unknown)
    }

    /// The emptiest device that can run the function. If none can, the first device: its engine
    /// reports why it cannot.
    fn emptiest(&self, bundle: &Bundle, placements: &Placements) -> DeviceId {
        let candidate = |device| Candidate {
            device,
            bytes: placements.bytes_on(device),
            suits: self.target(device, bundle).is_some() && self.member(device).is_some_and(|member| !member.is_lost()),
        };
        let candidates: Vec<Candidate> = self.ids().map(candidate).collect();
        emptiest(&candidates).unwrap_or_default()
    }

    /// The bundle target that a device would run: the best one for which the bundle has code.
    fn target(&self, device: DeviceId, bundle: &Bundle) -> Option<&str> {
        let targets = self.member(device)?.targets();
        targets.iter().map(String::as_str).find(|target| bundle.target(target).is_some())
    }

    /// The device that has all functions of a request.
    fn route(&self, request: &ChainRequest) -> Result<DeviceId, InvokeError> {
        // A single engine checks the functions itself.
        if self.0.members.len() == 1 {
            return Ok(DeviceId(0));
        }
        let placements = self.placements();
        let mut devices = request
            .stages
            .iter()
            .map(|stage| placements.device_of(&stage.function).ok_or(InvokeError::UnknownFunction));
        // The first engine rejects an empty chain.
        let Some(first) = devices.next().transpose()? else { return Ok(DeviceId(0)) };
        for device in devices {
            if device? != first {
                return Err(InvokeError::BadInput(self.scattered(request, &placements)));
            }
        }
        Ok(first)
    }

    fn scattered(&self, request: &ChainRequest, placements: &Placements) -> String {
        let place = |function: &FunctionKey| {
            let device = placements.device_of(function).and_then(|device| self.0.names.get(usize::from(device.0)));
            format!("`{function}` is on {}", device.map_or("none", String::as_str))
        };
        let places: Vec<String> = request.stages.iter().map(|stage| place(&stage.function)).collect();
        format!(
            "the functions of a chain have to be on one device: {}; deploy them on one with `--device`",
            places.join(", ")
        )
    }
}

impl Inference for FleetHandle {
    fn devices(&self) -> &[String] {
        &self.0.names
    }

    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError> {
        // Computes the digests of the constants before the lock is taken.
        bundle.constants();
        let function = options.key.clone();
        let device = self.place(&bundle, &function, device)?;
        let loaded =
            self.member(device).ok_or(EngineError::ShuttingDown).and_then(|member| member.load(bundle, options));
        if loaded.is_err() {
            self.placements_mut().remove(&function);
        }
        Ok(Placed { device, info: loaded? })
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        let device = self.placements().device_of(function);
        let member =
            device.and_then(|device| self.member(device)).ok_or_else(|| EngineError::NotLoaded(function.clone()))?;
        match member.unload(function) {
            // A lost device has no functions left; only the placement must be removed.
            Err(EngineError::ShuttingDown) if member.is_lost() => {}
            other => other?,
        }
        self.placements_mut().remove(function);
        Ok(())
    }

    fn submit(&self, request: ChainRequest, reply: Reply) -> InvocationId {
        let routed = self.route(&request).and_then(|device| self.member(device).ok_or(InvokeError::UnknownFunction));
        match routed {
            Ok(member) => member.submit(request, reply),
            Err(error) => {
                reply(Err(error));
                REFUSED
            }
        }
    }

    fn cancel(&self, id: InvocationId) {
        if let Some(member) = self.member(DeviceId::of_id(id.0)) {
            member.cancel(id);
        }
    }

    fn open_session(&self, function: &FunctionKey, idle: Duration) -> Result<SessionId, InvokeError> {
        let device = if self.0.members.len() == 1 { Some(DeviceId(0)) } else { self.placements().device_of(function) };
        let member = device.and_then(|device| self.member(device)).ok_or(InvokeError::UnknownFunction)?;
        member.open_session(function, idle)
    }

    fn close_session(&self, session: SessionId) {
        if let Some(member) = self.member(DeviceId::of_id(session.0)) {
            member.close_session(session);
        }
    }

    fn submit_step(&self, session: SessionId, request: ChainRequest, reply: Reply) -> InvocationId {
        match self.member(DeviceId::of_id(session.0)) {
            Some(member) => member.submit_step(session, request, reply),
            None => {
                reply(Err(InvokeError::NoSession));
                REFUSED
            }
        }
    }

    fn statistics(&self) -> Vec<EngineStatistics> {
        self.0.members.iter().map(|member| member.statistics()).collect()
    }

    fn trace(&self, device: DeviceId, from: Option<u64>) -> Option<TraceBatch> {
        self.member(device)?.trace(from)
    }
}
