//! Steps: calls of the dispatcher to engines and clients, made without its lock.

use super::requests::Attempt;
use super::{Answer, Dispatcher};
use atoll_core::{Class, DeviceId};
use atoll_engine::{ChainRequest, FunctionKey, InvocationId, Reply};
use std::cell::RefCell;
use std::collections::VecDeque;

/// A call to an engine or a client that follows from a change of the state.
pub(super) enum Step {
    /// Submit a request to the engine of its device. With `may_move` the engine gives it back if its
    /// executor is lost.
    Submit { attempt: Attempt, request: ChainRequest, may_move: bool },
    /// Cancel an invocation.
    Cancel { device: DeviceId, invocation: InvocationId },
    /// Load the constants of a function onto a device, or reclaim them from it.
    Constants { device: DeviceId, function: FunctionKey, is_load: bool },
    /// Answer a client.
    Reply { reply: Reply, answer: Answer },
}

/// The queue of this thread's steps.
///
/// An engine may answer while a request is being submitted to it, and the answer may cause further
/// steps. These are queued behind the current step. If they ran inside it, the stack would grow
/// with each request that fails.
pub(super) struct Steps;

thread_local! {
    static QUEUE: RefCell<Option<VecDeque<(Dispatcher, Step)>>> = const { RefCell::new(None) };
}

impl Steps {
    /// Runs the steps in order, or queues them if this thread is already running a step.
    pub(super) fn run(dispatcher: &Dispatcher, steps: Vec<Step>) {
        let is_outermost = QUEUE.with_borrow_mut(|queue| {
            let is_outermost = queue.is_none();
            queue.get_or_insert_default().extend(steps.into_iter().map(|step| (dispatcher.clone(), step)));
            is_outermost
        });
        if !is_outermost {
            return;
        }
        let _end = End;
        while let Some((dispatcher, step)) = QUEUE.with_borrow_mut(|queue| queue.as_mut()?.pop_front()) {
            dispatcher.step(step);
        }
    }
}

/// Clears the queue of the thread, even if a step panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        QUEUE.take();
    }
}

impl Dispatcher {
    fn step(&self, step: Step) {
        match step {
            Step::Reply { reply, answer } => reply(answer),
            Step::Cancel { device, invocation } => self.0.member(device).cancel(invocation),
            Step::Constants { device, function, is_load: true } => self.0.member(device).preload(&function),
            Step::Constants { device, function, is_load: false } => self.0.member(device).reclaim(&function),
            Step::Submit { attempt, request, may_move } if self.0.member(attempt.device).encodes(&request) => {
                let (dispatcher, class) = (self.clone(), request.class.unwrap_or(Class::BestEffort));
                let submit = move || dispatcher.submit_attempt(attempt, request, may_move);
                self.0.encoding.run(class, Box::new(submit));
            }
            Step::Submit { attempt, request, may_move } => self.submit_attempt(attempt, request, may_move),
        }
    }

    fn submit_attempt(&self, attempt: Attempt, request: ChainRequest, may_move: bool) {
        let dispatcher = self.clone();
        let reply: Reply = Box::new(move |answer| dispatcher.answered(attempt, answer));
        let invocation = self.0.submit(attempt.device, may_move, request, reply);
        if self.lock().requests.submitted(&attempt, invocation) {
            self.0.member(attempt.device).cancel(invocation);
        }
    }
}
