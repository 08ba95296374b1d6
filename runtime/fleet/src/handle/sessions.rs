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
        let first = || self.placements().get(function).and_then(|placement| placement.devices.first().copied());
        let device = if self.0.members.len() == 1 { Some(DeviceId(0)) } else { first() };
        let device = device.map(|device| self.usable(&[device])).transpose()?;
        device.and_then(|device| self.member(device)).ok_or(InvokeError::UnknownFunction)
    }

    /// Opens a session with the contents of a suspended one, on the device of a function.
    pub(super) fn reopen(&self, function: &FunctionKey, contents: SuspendedSession) -> Reopened {
        match self.home(function) {
            Ok(member) => member.open_suspended(function, contents),
            Err(error) => Err(Box::new((error, contents))),
        }
    }
}

/// Refuses a step of a session of a device that does not exist.
pub(super) fn refuse(reply: Reply) -> InvocationId {
    reply(Err(InvokeError::NoSession));
    REFUSED
}
