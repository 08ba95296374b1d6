//! Chooses the devices onto which a function is loaded.

use super::{Chosen, FleetHandle, bit};
use crate::inference::device_named;
use crate::placements::{Placements, Weight};
use atoll_core::DeviceId;
use atoll_core::placement::{Candidate, emptiest};
use atoll_engine::{EngineError, FunctionInfo, FunctionKey, FunctionOptions};
use atoll_kgraph::{BufferKind, Bundle};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FleetHandle {
    /// Chooses the devices of a function and records them. The emptiest one is first.
    pub(super) fn place(
        &self,
        bundle: &Bundle,
        function: &FunctionKey,
        named: Option<&str>,
    ) -> Result<Chosen, EngineError> {
        let mut placements = self.placements_mut();
        if placements.get(function).is_some() {
            return Err(EngineError::AlreadyLoaded(function.clone()));
        }
        let mut devices = match named {
            Some(name) => vec![self.named(name)?],
            None => vec![self.emptiest(bundle, &placements)],
        };
        if self.may_move(bundle, named) {
            let first = devices[0];
            devices.extend(self.ids().filter(|&device| device != first && self.suits(device, bundle)));
        }
        let weight = |&device: &DeviceId| (device, self.weight(device, bundle));
        let id = placements.insert(function.clone(), devices.iter().map(weight).collect());
        Ok(Chosen { id, devices })
    }

    /// Whether a function may be on any device. One with sessions stays on one device, which holds
    /// their state; so does one that names its device.
    pub(super) fn may_move(&self, bundle: &Bundle, named: Option<&str>) -> bool {
        let keeps_state = bundle.graph().buffers_of(BufferKind::State).next().is_some();
        named.is_none() && self.0.pool.is_some() && !keeps_state
    }

    /// Loads a function onto the chosen devices. Returns the devices that loaded it, with the
    /// reports of their engines.
    ///
    /// # Errors
    /// The first error, if no device loaded it.
    pub(super) fn load_onto(
        &self,
        devices: &[DeviceId],
        bundle: &Arc<Bundle>,
        options: &FunctionOptions,
    ) -> Result<Vec<(DeviceId, FunctionInfo)>, EngineError> {
        let (mut loaded, mut failure) = (Vec::new(), None);
        for &device in devices {
            let member = self.member(device).ok_or(EngineError::ShuttingDown);
            match member.and_then(|member| member.load(bundle.clone(), options.clone())) {
                Ok(info) => loaded.push((device, info)),
                Err(error) => {
                    let name = self.0.names.get(usize::from(device.0)).map_or("", String::as_str);
                    if devices.len() > 1 {
                        tracing::warn!(device = name, function = %options.key, %error, "not loaded on this device");
                    }
                    failure.get_or_insert(error);
                }
            }
        }
        if loaded.is_empty() { Err(failure.unwrap_or(EngineError::ShuttingDown)) } else { Ok(loaded) }
    }

    /// The device with this name.
    pub(super) fn named(&self, name: &str) -> Result<DeviceId, EngineError> {
        let unknown = || EngineError::UnknownDevice { name: name.into(), known: self.0.names.join(", ") };
        device_named(&self.0.names, name).ok_or_else(unknown)
    }

    /// The emptiest device that can run the function. If none can, the first device: its engine
    /// reports why it cannot.
    fn emptiest(&self, bundle: &Bundle, placements: &Placements) -> DeviceId {
        let candidate = |device| Candidate {
            device,
            bytes: placements.bytes_on(device),
            suits: self.suits(device, bundle) && !self.is_drained(device),
        };
        let candidates: Vec<Candidate> = self.ids().map(candidate).collect();
        emptiest(&candidates).unwrap_or_default()
    }

    /// Whether a device can run a bundle: the bundle has code for it, and the device is not lost.
    pub(super) fn suits(&self, device: DeviceId, bundle: &Bundle) -> bool {
        self.target(device, bundle).is_some() && self.member(device).is_some_and(|member| !member.is_lost())
    }

    pub(super) fn is_drained(&self, device: DeviceId) -> bool {
        self.0.drained.load(Ordering::Relaxed) & bit(device) != 0
    }

    /// The memory that a function takes on a device.
    pub(super) fn weight(&self, device: DeviceId, bundle: &Bundle) -> Weight {
        self.target(device, bundle).map(|target| Weight::of(bundle, target)).unwrap_or_default()
    }

    /// The bundle target that a device would run: the best one for which the bundle has code.
    fn target(&self, device: DeviceId, bundle: &Bundle) -> Option<&str> {
        let targets = self.member(device)?.targets();
        targets.iter().map(String::as_str).find(|target| bundle.target(target).is_some())
    }
}
