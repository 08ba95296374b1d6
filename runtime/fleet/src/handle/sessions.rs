//! Sessions, each of which is on one device at a time.

use super::{FleetHandle, REFUSED};
use crate::member::{Member, Reopened};
use atoll_core::DeviceId;
use atoll_engine::{FunctionKey, InvocationId, InvokeError, Reply, SessionId, SuspendedSession};

impl FleetHandle {
    /// The device of a session.
    pub(super) fn of_session(&self, session: SessionId) -> Option<&dyn Member> {
        self.member(DeviceId::of_id(session.0))
    }

    /// The device that holds the sessions of a function.
    pub(super) fn home(&self, function: &FunctionKey) -> Result<&dyn Member, InvokeError> {
        let device = self.first_of(function).map(|device| self.usable(&[device])).transpose()?;
        device.and_then(|device| self.member(device)).ok_or(InvokeError::UnknownFunction)
    }

    /// The first device of a function.
    fn first_of(&self, function: &FunctionKey) -> Option<DeviceId> {
        match self.0.members.len() {
            1 => Some(DeviceId(0)),
            _ => self.placements().get(function).and_then(|placement| placement.devices.first().copied()),
        }
    }

    /// Opens a session with the contents of a suspended one, on the device of a function. The device
    /// may be drained: the contents take no memory there yet.
    pub(super) fn reopen(&self, function: &FunctionKey, contents: SuspendedSession) -> Reopened {
        match self.first_of(function).and_then(|device| self.member(device)) {
            Some(member) => member.open_suspended(function, contents),
            None => Err(Box::new((InvokeError::UnknownFunction, contents))),
        }
    }
}

/// Refuses a step of a session of a device that does not exist.
pub(super) fn refuse(reply: Reply) -> InvocationId {
    reply(Err(InvokeError::NoSession));
    REFUSED
}
