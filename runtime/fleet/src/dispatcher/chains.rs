//! Chains of functions, which go to a device at once.

use super::{Dispatcher, State};
use atoll_core::DeviceId;
use atoll_core::placement::FunctionId;
use atoll_engine::Reply;

impl Dispatcher {
    /// The device for a chain of functions of the pool, and the reply with which to submit it there;
    /// or the reply as it was, if no device takes requests for all of them.
    pub(crate) fn place_chain(&self, functions: &[FunctionId], reply: Reply) -> Result<(DeviceId, Reply), Reply> {
        let device = self.with(|state, _, _| state.begin_chain(functions));
        let Some(device) = device else { return Err(reply) };
        let dispatcher = self.clone();
        let counted: Reply = Box::new(move |answer| {
            dispatcher.lock().chains[usize::from(device.0)] -= 1;
            reply(answer);
        });
        Ok((device, counted))
    }
}

impl State {
    fn begin_chain(&mut self, functions: &[FunctionId]) -> Option<DeviceId> {
        let chains = &self.chains;
        let device = self.pool.device_of_chain(functions, |device| chains[usize::from(device.0)])?;
        self.chains[usize::from(device.0)] += 1;
        Some(device)
    }
}
