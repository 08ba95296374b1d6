//! The instances that a request tries in turn.

use crate::instances::{Instances, client};
use crate::routes::Urgency;
use atoll_engine::{DeviceId, FunctionKey, InvocationResult, InvokeError};

/// The instances that a request tries in turn. An instance that the daemon chose and that refuses
/// the request is not chosen again. If all refuse it, the request runs under the share of its
/// tenant.
pub(crate) struct Route<'a> {
    instances: &'a Instances,
    function: &'a FunctionKey,
    urgency: Urgency,
    /// The device that runs the request, if it is given.
    device: Option<DeviceId>,
    named: Option<String>,
    chooses: bool,
    /// The instance that was chosen last.
    last: Option<String>,
    refused: Vec<String>,
    /// Whether a device was lost while the request ran there.
    has_lost_device: bool,
}

impl Route<'_> {
    /// The request runs on this device, under an instance that is there.
    pub(crate) fn on(self, device: Option<DeviceId>) -> Self {
        Route { device, ..self }
    }

    /// The instance for the next attempt.
    pub(crate) fn next(&mut self) -> Option<String> {
        if !self.chooses {
            return self.named.clone();
        }
        let choice = self.instances.choose(self.function, self.urgency, &self.refused, self.device);
        self.last = choice.map(|choice| choice.instance);
        self.last.clone()
    }

    /// A copy of the request for another attempt; `None` if there will be no other attempt.
    pub(crate) fn keep<R: Clone>(&self, request: &R) -> Option<R> {
        self.last.is_some().then(|| request.clone())
    }

    /// Whether the chosen instance is bound to a device that takes no requests any more.
    fn has_lost_its_device(&self) -> bool {
        let Some(name) = &self.last else { return false };
        let client = client(&FunctionKey { tenant: self.function.tenant.clone(), name: name.clone() });
        let engine = &self.instances.engine;
        engine.device_of_share(&client).is_some() && !engine.holds_share(&client)
    }

    /// Whether the chosen instance refused the request, so that another one has to be tried.
    pub(crate) fn is_refused(&mut self, result: &Result<InvocationResult, InvokeError>) -> bool {
        use InvokeError::{Device, DeviceLost, InstanceRemoved, OverInstanceMemory, Unavailable, UnknownInstance};
        let of_instance = match result {
            Err(OverInstanceMemory { .. } | UnknownInstance(_) | InstanceRemoved(_)) => true,
            // Its device was lost with the request. A request is the likely cause if it loses a
            // second one, so it is not given to a third.
            Err(Device(_) | DeviceLost(_)) => {
                self.has_lost_its_device() && !std::mem::replace(&mut self.has_lost_device, true)
            }
            // Its device was drained or lost just before.
            Err(Unavailable(_)) => self.has_lost_its_device(),
            _ => false,
        };
        if of_instance {
            self.refused.extend(self.last.take());
        }
        of_instance
    }
}

impl Instances {
    /// The route of a request to an instance. A request that names an instance runs under that one.
    /// Another request of a single function runs under an instance that the daemon chooses, and a
    /// chain of functions under the share of its tenant.
    pub(crate) fn route<'a>(
        &'a self,
        function: &'a FunctionKey,
        urgency: Urgency,
        named: Option<String>,
        functions: usize,
    ) -> Route<'a> {
        let chooses = named.is_none() && functions == 1;
        Route {
            instances: self,
            function,
            urgency,
            device: None,
            named,
            chooses,
            last: None,
            refused: Vec::new(),
            has_lost_device: false,
        }
    }
}
