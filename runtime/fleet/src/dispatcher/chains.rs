//! Chains of functions, which go to a device at once. A chain whose device or executor is lost is
//! submitted to another device once.

use super::requests::{POOLED, is_given_back, may_retry, refusal_end};
use super::{Answer, Dispatcher, State};
use atoll_core::placement::{FunctionId, RequestId};
use atoll_core::{DeviceId, Nanos};
use atoll_engine::{ChainRequest, InvocationId, InvokeError, Reply};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Added to the chains of a device that is chosen for a chain only if there is no other.
const LAST: u64 = 1 << 32;

/// The chains in flight.
pub(super) struct Chains {
    /// Their number by device.
    on: Vec<u64>,
    /// Until when a device that gave back a chain gets chains only if there is no other.
    avoided: Vec<Nanos>,
    places: HashMap<RequestId, Place>,
}

/// Where a chain is.
struct Place {
    device: DeviceId,
    /// `None` while it is being submitted.
    invocation: Option<InvocationId>,
    is_cancelled: bool,
}

/// The submission of a chain to a device.
struct Chain {
    id: RequestId,
    functions: Arc<[FunctionId]>,
    device: DeviceId,
    deadline: Option<Nanos>,
    /// Whether it can be submitted to another device.
    may_move: bool,
}

impl Chains {
    pub(super) fn new(devices: usize) -> Chains {
        Chains { on: vec![0; devices], avoided: vec![Nanos(0); devices], places: HashMap::new() }
    }

    /// The device of a chain.
    pub(super) fn place_of(&self, id: RequestId) -> Option<DeviceId> {
        self.places.get(&id).map(|place| place.device)
    }

    /// Cancels a chain. Returns its invocation, which the caller has to cancel.
    pub(super) fn cancel(&mut self, id: RequestId) -> Option<(DeviceId, InvocationId)> {
        let place = self.places.get_mut(&id)?;
        place.is_cancelled = true;
        Some((place.device, place.invocation?))
    }

    fn begin(&mut self, id: RequestId, device: DeviceId) {
        self.on[usize::from(device.0)] += 1;
        self.places.insert(id, Place { device, invocation: None, is_cancelled: false });
    }

    /// Notes the invocation of a chain. Returns whether it was cancelled meanwhile.
    fn submitted(&mut self, id: RequestId, device: DeviceId, invocation: InvocationId) -> bool {
        let Some(place) = self.places.get_mut(&id).filter(|place| place.device == device) else { return false };
        place.invocation = Some(invocation);
        place.is_cancelled
    }

    /// Takes a chain off its device. Returns whether it was cancelled.
    fn end(&mut self, id: RequestId) -> bool {
        let Some(place) = self.places.remove(&id) else { return false };
        self.on[usize::from(place.device.0)] -= 1;
        place.is_cancelled
    }
}

impl Dispatcher {
    /// Submits a chain of functions of the pool to a device; gives it back if no device takes
    /// requests for all of them.
    pub(crate) fn submit_chain(
        &self,
        functions: Vec<FunctionId>,
        request: ChainRequest,
        reply: Reply,
    ) -> Result<InvocationId, (ChainRequest, Reply)> {
        let deadline = request.deadline.map(|after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        let chain = self.with(|state, now, _| {
            let device = state.device_of_chain(now, &functions, None)?;
            let id = state.requests.next_id();
            state.chains.begin(id, device);
            let deadline = deadline.map(|after| Nanos(now.0.saturating_add(after)));
            let may_move = may_retry(&request)
                && state.device_of_chain(now, &functions, Some(device)).is_some_and(|other| other != device);
            Some(Chain { id, functions: functions.into(), device, deadline, may_move })
        });
        let Some(chain) = chain else { return Err((request, reply)) };
        let id = InvocationId(POOLED.first_id() + chain.id.0);
        self.send(chain, request, reply);
        Ok(id)
    }

    fn send(&self, chain: Chain, request: ChainRequest, reply: Reply) {
        let Chain { id, device, may_move, .. } = chain;
        let again = may_move.then(|| request.clone());
        let dispatcher = self.clone();
        let answered: Reply = Box::new(move |answer| dispatcher.chain_answered(chain, again, answer, reply));
        let invocation = self.0.submit(device, may_move, request, answered);
        if self.lock().chains.submitted(id, device, invocation) {
            self.0.member(device).cancel(invocation);
        }
    }

    fn chain_answered(&self, chain: Chain, again: Option<ChainRequest>, answer: Answer, reply: Reply) {
        let is_lost = answer.as_ref().is_err_and(|error| is_given_back(error) || self.0.member(chain.device).is_lost());
        let moved = self.with(|state, now, _| {
            let was_cancelled = state.chains.end(chain.id);
            let request = again.filter(|_| is_lost && !was_cancelled)?;
            Some(state.move_chain(now, &chain, request))
        });
        match moved {
            Some(Ok((chain, request))) => self.send(chain, request, reply),
            Some(Err(Some(error))) => reply(Err(error)),
            Some(Err(None)) | None => reply(answer),
        }
    }
}

impl State {
    /// The device for a chain: the device `last` only if there is no other.
    fn device_of_chain(&self, now: Nanos, functions: &[FunctionId], last: Option<DeviceId>) -> Option<DeviceId> {
        self.pool.device_of_chain(functions, |device| {
            let (on, avoided) = (&self.chains.on, &self.chains.avoided);
            let at = usize::from(device.0);
            let is_last = last == Some(device) || avoided[at] > now;
            on[at] + if is_last { LAST } else { 0 }
        })
    }

    /// Begins the second attempt of a chain. The error is that of the chain, or `None` for the answer
    /// of the first attempt.
    fn move_chain(
        &mut self,
        now: Nanos,
        chain: &Chain,
        request: ChainRequest,
    ) -> Result<(Chain, ChainRequest), Option<InvokeError>> {
        let left = chain.deadline.map(|deadline| Duration::from_nanos(deadline.0.saturating_sub(now.0)));
        if left == Some(Duration::ZERO) {
            return Err(Some(InvokeError::DeadlineExceeded));
        }
        let device = self.device_of_chain(now, &chain.functions, Some(chain.device)).ok_or(None)?;
        let from = usize::from(chain.device.0);
        self.devices[from].moved += 1;
        self.chains.avoided[from] = refusal_end(now);
        self.chains.begin(chain.id, device);
        let functions = Arc::clone(&chain.functions);
        let again = Chain { id: chain.id, functions, device, deadline: chain.deadline, may_move: false };
        Ok((again, ChainRequest { deadline: left, ..request }))
    }
}
