//! Starting and stopping a fleet.

use crate::error::FleetError;
use crate::handle::FleetHandle;
use crate::member::Member;
use crate::placing::Placing;
use atoll_core::DeviceId;
use atoll_core::limits::DEVICES_MAX;
use atoll_device::{Device, DeviceInfo};
use atoll_engine::{CoreShare, CoreUse, Engine, EngineConfig};
use std::collections::HashSet;

/// The devices of a daemon, each with an engine that drives it.
#[derive(Debug)]
pub struct Fleet {
    engines: Vec<Engine>,
    handle: FleetHandle,
}

impl Fleet {
    /// Starts an engine for each device, all with the same settings. Memory limits and quotas apply
    /// to each device separately. The CPUs that the devices do not use are divided among the
    /// engines' threads.
    ///
    /// # Errors
    ///
    /// If there are no devices, too many, or two with the same name, or if an engine or a thread
    /// cannot start. In the last case, the engines that have already started are shut down.
    pub fn start(devices: Vec<Box<dyn Device>>, config: &EngineConfig, placing: Placing) -> Result<Fleet, FleetError> {
        check(&devices.iter().map(|device| device.info()).collect::<Vec<_>>())?;
        let uses: Vec<CoreUse> = devices.iter().map(|device| device.info().into()).collect();
        let mut engines = Vec::with_capacity(devices.len());
        for (at, (device, cores)) in devices.into_iter().zip(CoreShare::assign(&uses)).enumerate() {
            let name = device.info().name.clone();
            let config = EngineConfig { device: DeviceId(at as u16), cores: Some(cores), ..config.clone() };
            engines.push(Engine::start(device, config).map_err(|source| FleetError::Engine { device: name, source })?);
        }
        let members = engines.iter().map(|engine| Box::new(engine.handle()) as Box<dyn Member>).collect();
        let handle = FleetHandle::new(members, placing)?;
        Ok(Fleet { engines, handle })
    }

    /// A handle through which other threads use the fleet.
    pub fn handle(&self) -> FleetHandle {
        self.handle.clone()
    }

    /// Shuts all engines down at the same time; see [`Engine::shutdown`].
    pub fn shutdown(self) {
        std::thread::scope(|scope| {
            for engine in self.engines {
                scope.spawn(|| engine.shutdown());
            }
        });
    }
}

fn check(devices: &[&DeviceInfo]) -> Result<(), FleetError> {
    if devices.is_empty() {
        return Err(FleetError::NoDevice);
    }
    if devices.len() > DEVICES_MAX {
        return Err(FleetError::TooMany(devices.len()));
    }
    let mut names = HashSet::new();
    match devices.iter().find(|device| !names.insert(&device.name)) {
        Some(device) => Err(FleetError::Twice(device.name.clone())),
        None => Ok(()),
    }
}
