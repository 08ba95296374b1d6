//! The destination of a request: the pool, or a device.

use super::FleetHandle;
use crate::placements::Placement;
use atoll_core::DeviceId;
use atoll_core::placement::FunctionId;
use atoll_engine::{ChainRequest, InvokeError, StageRequest};

/// The destination of a request.
#[derive(Debug)]
pub(super) enum Route {
    Device(DeviceId),
    /// The pool chooses when, and which device.
    Pool(FunctionId),
    /// The pool chooses a device for all functions of a chain, or else it is this one.
    Chain(Vec<FunctionId>, DeviceId),
    /// The function has to be loaded elsewhere first, since its devices are lost or drained.
    Anew,
}

impl FleetHandle {
    /// The destination of a request: the pool, or a device that has all its functions.
    pub(super) fn route(&self, request: &ChainRequest) -> Result<Route, InvokeError> {
        // A single engine checks the functions itself.
        if self.0.members.len() == 1 {
            return self.usable(&[DeviceId(0)]).map(Route::Device);
        }
        let bound = self.bound_of(request);
        let placements = self.placements();
        let places = request.stages.iter().map(|stage| placements.get(&stage.function));
        let places: Vec<&Placement> = places.collect::<Option<_>>().ok_or(InvokeError::UnknownFunction)?;
        // The first engine rejects an empty chain.
        let Some((first, rest)) = places.split_first() else { return Ok(Route::Device(DeviceId(0))) };
        let is_everywhere = |device: &DeviceId| rest.iter().all(|place| place.devices.contains(device));
        let common: Vec<DeviceId> = first.devices.iter().copied().filter(is_everywhere).collect();
        if common.is_empty() {
            return Err(InvokeError::BadInput(self.scattered(request, &places)));
        }
        if let Some(device) = bound {
            if !common.contains(&device) {
                return Err(InvokeError::BadInput(self.bound_elsewhere(request, device)));
            }
            // The engine of a lost device says why it is lost.
            return self.usable(&[device]).map(Route::Device);
        }
        if rest.is_empty() && self.has_to_move(first) {
            return Ok(Route::Anew);
        }
        let device = self.usable(&common)?;
        // The engine of a lost device says why it is lost.
        let is_pooled = places.iter().all(|place| place.is_pooled) && self.member(device).is_some_and(|m| !m.is_lost());
        Ok(match is_pooled {
            true if rest.is_empty() => Route::Pool(first.id),
            true => Route::Chain(places.iter().map(|place| place.id).collect(), device),
            false => Route::Device(device),
        })
    }

    /// The first of these devices that takes requests; a lost one if there is no other, since its
    /// engine says why it is lost.
    pub(super) fn usable(&self, devices: &[DeviceId]) -> Result<DeviceId, InvokeError> {
        let open = || devices.iter().copied().filter(|device| !self.is_drained(*device));
        let alive = open().find(|device| self.member(*device).is_some_and(|member| !member.is_lost()));
        alive.or_else(|| open().next()).ok_or_else(|| {
            let names = devices.iter().filter_map(|device| self.0.names.get(usize::from(device.0)));
            let names = names.map(String::as_str).collect::<Vec<_>>().join(", ");
            InvokeError::Unavailable(format!(
                "it is only on {names}, which is drained; run `atoll device resume` to use it again"
            ))
        })
    }

    /// Whether a device has all functions of a request.
    pub(super) fn has_all(&self, device: DeviceId, request: &ChainRequest) -> bool {
        let placements = self.placements();
        let has = |stage: &StageRequest| {
            placements.get(&stage.function).is_some_and(|placement| placement.devices.contains(&device))
        };
        self.0.members.len() == 1 || request.stages.iter().all(has)
    }

    fn scattered(&self, request: &ChainRequest, places: &[&Placement]) -> String {
        let place = |(stage, place): (&StageRequest, &&Placement)| {
            let names = place.devices.iter().filter_map(|device| self.0.names.get(usize::from(device.0)));
            format!("`{}` is on {}", stage.function, names.map(String::as_str).collect::<Vec<_>>().join(" and "))
        };
        let places: Vec<String> = request.stages.iter().zip(places).map(place).collect();
        format!(
            "the functions of a chain have to be on one device: {}; deploy them on one with `--device`",
            places.join(", ")
        )
    }
}
