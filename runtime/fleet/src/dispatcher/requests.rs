//! The requests of the pool, from their arrival to their answer.

use atoll_core::placement::{FunctionId, RequestId};
use atoll_core::{DeviceId, Nanos};
use atoll_engine::{ChainRequest, InvocationId, InvokeError, Reply, StageInput};
use std::collections::HashMap;
use std::time::Duration;

/// The device part of the ids that the dispatcher assigns. No device of the fleet has this id.
pub(crate) const POOLED: DeviceId = DeviceId(u16::MAX - 1);

/// How long a device that gave back a request of a function gets no more of them, if other devices
/// have it.
const REFUSAL_NS: u64 = 1_000_000_000;

/// Limit on the input bytes of a request that is kept for another attempt. Larger requests are not
/// retried, because a second copy of their inputs would cost more than the client's retry.
const RETRY_BYTES_MAX: usize = 16 << 20;

/// Losses of a device or an executor after which a request that may have been running there is not
/// submitted again: it is the likely cause.
const LOSSES_MAX: u32 = 2;

/// A request that is not on a device.
pub(super) struct Waiting {
    pub(super) function: FunctionId,
    pub(super) request: ChainRequest,
    pub(super) reply: Reply,
    /// When it is rejected if it has not been answered.
    pub(super) deadline: Option<Nanos>,
}

/// One submission of a request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) request: RequestId,
    pub(super) device: DeviceId,
    /// Distinguishes the attempts of a request.
    number: u32,
}

/// The result of cancelling a request.
pub(super) enum Cancelled {
    /// It was waiting and has been removed; the caller answers the client.
    Waiting(Reply),
    /// Its engine must cancel it.
    InFlight { device: DeviceId, invocation: InvocationId },
    /// It is being submitted to its engine and is cancelled right after.
    Handing,
    /// It has ended.
    Unknown,
}

struct Entry {
    function: FunctionId,
    /// `None` while a request that is not retried is on a device.
    request: Option<ChainRequest>,
    reply: Reply,
    deadline: Option<Nanos>,
    attempts: u32,
    /// Attempts that ended with the loss of their device or executor.
    losses: u32,
    place: Place,
    is_cancelled: bool,
    /// The error of its last device.
    error: Option<InvokeError>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Waiting,
    OnDevice { attempt: Attempt, invocation: Option<InvocationId> },
}

impl Entry {
    /// What the client gets if no device answers the request.
    fn last_error(self) -> (Reply, Option<InvokeError>) {
        let cancelled = self.is_cancelled.then_some(InvokeError::Cancelled);
        (self.reply, cancelled.or(self.error))
    }

    fn is_in(&self, attempt: &Attempt) -> bool {
        matches!(self.place, Place::OnDevice { attempt: current, .. } if current == *attempt)
    }
}

/// All unanswered requests.
#[derive(Default)]
pub(super) struct Requests {
    entries: HashMap<RequestId, Entry>,
    waiting_for: HashMap<FunctionId, usize>,
    waiting: u64,
    next: u64,
}

impl Requests {
    pub(super) fn next_id(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    /// The function of an unanswered request.
    pub(super) fn function(&self, id: RequestId) -> Option<FunctionId> {
        self.entries.get(&id).map(|entry| entry.function)
    }

    /// The device of a request in flight.
    pub(super) fn place_of(&self, id: RequestId) -> Option<DeviceId> {
        match self.entries.get(&id)?.place {
            Place::OnDevice { attempt, .. } => Some(attempt.device),
            Place::Waiting => None,
        }
    }

    /// Number of requests that wait for a device.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Number of requests of a function that wait for a device.
    pub(super) fn waiting_for(&self, function: FunctionId) -> usize {
        self.waiting_for.get(&function).copied().unwrap_or(0)
    }

    pub(super) fn insert(&mut self, id: RequestId, waiting: Waiting) {
        let Waiting { function, request, reply, deadline } = waiting;
        self.count(function, 1);
        let (request, place) = (Some(request), Place::Waiting);
        let (attempts, losses, is_cancelled, error) = (0, 0, false, None);
        let entry = Entry { function, request, reply, deadline, attempts, losses, place, is_cancelled, error };
        self.entries.insert(id, entry);
    }

    /// Keeps the error of an attempt, in case the request gets no other answer.
    pub(super) fn note_error(&mut self, attempt: &Attempt, error: &InvokeError) {
        if let Some(entry) = self.entries.get_mut(&attempt.request).filter(|entry| entry.is_in(attempt)) {
            entry.error = Some(error.clone());
        }
    }

    /// Removes a request. Returns its reply, and the error of its last device.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<(Reply, Option<InvokeError>)> {
        let entry = self.entries.remove(&id)?;
        if matches!(entry.place, Place::Waiting) {
            self.count(entry.function, -1);
        }
        Some(entry.last_error())
    }

    /// Begins an attempt of a waiting request on a device. Returns the request to submit, whose
    /// deadline is the time that is left, and whether it can be submitted to another device if this
    /// one loses its executor.
    pub(super) fn begin(&mut self, id: RequestId, device: DeviceId, now: Nanos) -> (Attempt, ChainRequest, bool) {
        let entry = self.entries.get_mut(&id).expect("the pool dispatches only requests that wait");
        entry.attempts += 1;
        let attempt = Attempt { request: id, device, number: entry.attempts };
        entry.place = Place::OnDevice { attempt, invocation: None };
        let kept = entry.request.take().expect("a waiting request has its inputs");
        entry.request = may_retry(&kept).then(|| kept.clone());
        let left = |deadline: Nanos| Duration::from_nanos(deadline.0.saturating_sub(now.0));
        let request = ChainRequest { deadline: entry.deadline.map(left), ..kept };
        let (function, may_move) = (entry.function, entry.request.is_some() && entry.losses == 0);
        self.count(function, -1);
        (attempt, request, may_move)
    }

    /// Notes the invocation id that the engine gave an attempt. Returns whether the request was
    /// cancelled meanwhile, so that the caller must cancel the invocation.
    pub(super) fn submitted(&mut self, attempt: &Attempt, id: InvocationId) -> bool {
        let Some(entry) = self.entries.get_mut(&attempt.request) else { return false };
        match &mut entry.place {
            Place::OnDevice { attempt: current, invocation } if current == attempt => {
                *invocation = Some(id);
                entry.is_cancelled
            }
            _ => false,
        }
    }

    /// Puts a request that its device refused, or whose executor was lost, back into the queue, if
    /// its inputs are kept for another attempt. Returns whether it waits again; the pool then retries
    /// or rejects it.
    pub(super) fn take_back_one(&mut self, attempt: &Attempt, is_loss: bool) -> bool {
        let Some(entry) = self.entries.get_mut(&attempt.request) else { return false };
        if !entry.is_in(attempt) || entry.request.is_none() {
            return false;
        }
        entry.place = Place::Waiting;
        entry.losses += u32::from(is_loss);
        let function = entry.function;
        self.count(function, 1);
        true
    }

    /// Ends a request whose attempt was answered, and returns its reply. `None` if the request is
    /// no longer in this attempt.
    pub(super) fn finish(&mut self, attempt: &Attempt) -> Option<Reply> {
        let is_current = self.entries.get(&attempt.request)?.is_in(attempt);
        is_current.then(|| self.entries.remove(&attempt.request)).flatten().map(|entry| entry.reply)
    }

    pub(super) fn cancel(&mut self, id: RequestId) -> Cancelled {
        let Some(entry) = self.entries.get_mut(&id) else { return Cancelled::Unknown };
        entry.is_cancelled = true;
        match entry.place {
            Place::Waiting => self.remove(id).map_or(Cancelled::Unknown, |(reply, _)| Cancelled::Waiting(reply)),
            Place::OnDevice { invocation: None, .. } => Cancelled::Handing,
            Place::OnDevice { attempt, invocation: Some(invocation) } => {
                Cancelled::InFlight { device: attempt.device, invocation }
            }
        }
    }

    /// Puts the requests on a lost device back into the queue. The pool then retries or rejects each
    /// of them. Returns their number, and those that must not be retried.
    pub(super) fn take_back(&mut self, device: DeviceId) -> (u64, Vec<RequestId>) {
        let (mut functions, mut spent) = (Vec::new(), Vec::new());
        for (id, entry) in &mut self.entries {
            if matches!(entry.place, Place::OnDevice { attempt, .. } if attempt.device == device) {
                entry.place = Place::Waiting;
                entry.losses += 1;
                functions.push(entry.function);
                spent.extend((entry.losses >= LOSSES_MAX).then_some(*id));
            }
        }
        functions.iter().for_each(|function| self.count(*function, 1));
        (functions.len() as u64, spent)
    }

    fn count(&mut self, function: FunctionId, change: i64) {
        let waiting = self.waiting_for.entry(function).or_default();
        *waiting = waiting.saturating_add_signed(change as isize);
        self.waiting = self.waiting.saturating_add_signed(change);
        if *waiting == 0 {
            self.waiting_for.remove(&function);
        }
    }
}

/// Whether an engine gave a request back, so that another device may run it.
pub(super) fn is_given_back(error: &InvokeError) -> bool {
    matches!(error, InvokeError::Unavailable(_) | InvokeError::ExecutorLost(_))
}

/// Until when a device that gives back a request now gets no more of its function.
pub(super) fn refusal_end(now: Nanos) -> Nanos {
    Nanos(now.0.saturating_add(REFUSAL_NS))
}

/// Whether the inputs of a request are small enough to be kept until it ends, and none is only on
/// its device. The request can then be submitted again if its device is lost, or hedged on a second
/// device.
pub fn may_retry(request: &ChainRequest) -> bool {
    let inputs = || request.stages.iter().flat_map(|stage| &stage.inputs);
    let bytes = |input: &StageInput| match input {
        StageInput::Tensor(tensor) => tensor.bytes.len(),
        StageInput::Output { .. } | StageInput::Retained(_) => 0,
    };
    // Other devices cannot read what is only on one.
    let is_bound = |input: &StageInput| matches!(input, StageInput::Retained(tensor) if tensor.saved().is_none());
    !inputs().any(is_bound) && inputs().map(bytes).sum::<usize>() <= RETRY_BYTES_MAX
}
