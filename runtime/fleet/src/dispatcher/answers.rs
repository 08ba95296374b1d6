//! Answers of engines, and devices and executors that are lost.
//!
//! A request that another device can run is submitted so that its engine gives it back if the
//! executor of the device was killed or hung and is being replaced. The device then gets no requests
//! of the function for a while, and the request goes to another device. If it may have run, it goes
//! to one other device only, which waits for its own executor if that is lost as well.

use super::requests::{Attempt, is_given_back, refusal_end};
use super::steps::Step;
use super::{Answer, Dispatcher, Inner, POOLED, State, ids};
use atoll_core::placement::{FunctionId, PoolEvent, RequestEnd};
use atoll_core::{DeviceId, Nanos, TaskId};
use atoll_engine::{ChainRequest, InvocationId, InvokeError, Reply};

impl Dispatcher {
    /// Handles the answer of an attempt.
    pub(super) fn answered(&self, attempt: Attempt, answer: Answer) {
        let mut state = self.lock();
        let unloaded = answer.as_ref().err().and_then(|_| self.0.never_loaded(&state, &attempt));
        // Kept for the client in case the device is lost and no other one can run the request.
        if let Err(error) = &answer {
            state.requests.note_error(&attempt, error);
        }
        self.with_state(state, |state, now, steps| {
            unloaded.iter().for_each(|function| state.set_resident(now, attempt.device, function, false, steps));
            state.answered(now, attempt, answer, steps);
        });
    }
}

impl Inner {
    /// Submits a request to the engine of a device.
    pub(super) fn submit(&self, device: DeviceId, may_move: bool, request: ChainRequest, reply: Reply) -> InvocationId {
        let member = self.member(device);
        if may_move { member.submit_movable(request, reply) } else { member.submit(request, reply) }
    }

    /// Tells the pool of devices that were lost since the last call.
    pub(super) fn note_losses(&self, state: &mut State, now: Nanos, steps: &mut Vec<Step>) {
        let is_new =
            |device: &DeviceId| self.member(*device).is_lost() && !state.devices[usize::from(device.0)].is_lost;
        let lost: Vec<DeviceId> = ids().take(self.members.len()).filter(is_new).collect();
        if !lost.is_empty() {
            state.lose(now, &lost, steps);
        }
    }
}

impl State {
    fn answered(&mut self, now: Nanos, attempt: Attempt, mut answer: Answer, steps: &mut Vec<Step>) {
        let Attempt { request, device, .. } = attempt;
        let is_loss = matches!(answer, Err(InvokeError::ExecutorLost(_)));
        if answer.as_ref().is_err_and(is_given_back) && self.requests.take_back_one(&attempt, is_loss) {
            let counts = &mut self.devices[usize::from(device.0)];
            counts.in_flight -= 1;
            counts.moved += 1;
            let until = refusal_end(now);
            let function = self.requests.function(request);
            if let Some(function) = function.and_then(|id| self.functions.get_mut(&id)) {
                function.refused.insert(device, until);
            }
            let end = RequestEnd::Refused { until };
            self.handle(now, PoolEvent::Finished { request, device, end }, steps);
            return;
        }
        let Some(reply) = self.requests.finish(&attempt) else { return };
        if let Ok(result) = &mut answer {
            result.placed = Some(TaskId(POOLED.first_id() + request.0));
        }
        self.devices[usize::from(device.0)].in_flight -= 1;
        let end = match &answer {
            Ok(result) => {
                let timing = result.timing;
                let service = Nanos(timing.input_ns + timing.compute_ns + timing.output_ns);
                RequestEnd::Done { service, loaded: result.cold_start.then_some(Nanos(result.load_ns)) }
            }
            Err(_) => RequestEnd::Failed { retryable: false },
        };
        steps.push(Step::Reply { reply, answer });
        self.handle(now, PoolEvent::Finished { request, device, end }, steps);
    }

    /// Removes lost devices from the pool, all at once, so that no request moves from one lost
    /// device to another.
    fn lose(&mut self, now: Nanos, devices: &[DeviceId], steps: &mut Vec<Step>) {
        let mut actions = Vec::new();
        for &device in devices {
            let (moved, spent) = self.requests.take_back(device);
            let state = &mut self.devices[usize::from(device.0)];
            (state.is_lost, state.in_flight) = (true, 0);
            state.moved += moved;
            // The pool does not retry cancelled requests.
            for request in spent {
                self.pool.note(now, PoolEvent::Cancelled { request }, &mut actions);
            }
            self.pool.note(now, PoolEvent::DeviceLost { device }, &mut actions);
        }
        self.pool.decide(now, &mut actions);
        actions.into_iter().for_each(|action| self.act(now, action, steps));
    }

    /// Whether a device other than `beside` takes requests of a function now.
    pub(super) fn has_other(&self, now: Nanos, function: FunctionId, beside: DeviceId) -> bool {
        let Some(function) = self.functions.get(&function) else { return false };
        let takes = |device: &DeviceId| {
            let state = self.devices[usize::from(device.0)];
            let refuses = function.refused.get(device).is_some_and(|until| *until > now);
            *device != beside && !state.is_lost && !state.is_drained && !refuses
        };
        function.devices.iter().any(takes)
    }
}
