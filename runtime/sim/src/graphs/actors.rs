//! The components: the source sends requests, the controller decides, and nodes load and run.

use atoll_core::Nanos;
use atoll_core::graphs::{Action, Arrival, Event, FunctionId, NodeId};
use std::collections::VecDeque;

/// A message between components.
#[derive(Debug)]
pub(super) enum Message {
    /// To the controller.
    Event(Event),
    /// To a node: run for `takes` nanoseconds.
    Run { node: NodeId, takes: u64 },
    /// To a node: load constants, which takes `takes` nanoseconds.
    Load { node: NodeId, function: FunctionId, takes: u64 },
    /// To a node: fail permanently.
    Fail { node: NodeId },
    /// To the world: an action of the controller's policy.
    Done(Action),
}

/// A component of the simulation. In each step it receives messages, computes, and sends messages.
pub(super) trait Component {
    /// Takes a message into the inbox.
    fn input(&mut self, message: Message);

    /// Handles the messages in the inbox and puts messages into the outbox.
    fn exec(&mut self, now: Nanos);

    /// The messages to send.
    fn output(&mut self) -> Vec<Message>;
}

/// Takes the first entry if its time has come.
fn pop_if<T>(queue: &mut VecDeque<T>, is_due: impl Fn(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(is_due) { queue.pop_front() } else { None }
}

/// Sends each request and each failure of a node at its time.
pub(super) struct Source {
    pub(super) requests: VecDeque<(Nanos, Arrival)>,
    pub(super) losses: VecDeque<(Nanos, NodeId)>,
    pub(super) outbox: Vec<Message>,
}

impl Component for Source {
    fn input(&mut self, _: Message) {}

    fn exec(&mut self, now: Nanos) {
        while let Some((_, node)) = pop_if(&mut self.losses, |(at, _)| *at <= now) {
            self.outbox.push(Message::Fail { node });
            self.outbox.push(Message::Event(Event::Lost { node }));
        }
        while let Some((_, arrival)) = pop_if(&mut self.requests, |(at, _)| *at <= now) {
            self.outbox.push(Message::Event(Event::Arrived(arrival)));
        }
    }

    fn output(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outbox)
    }
}

/// Passes each event to the policy.
pub(super) struct Controller<'a> {
    pub(super) policy: &'a mut dyn super::GraphPolicy,
    pub(super) inbox: Vec<Event>,
    pub(super) outbox: Vec<Message>,
}

impl Component for Controller<'_> {
    fn input(&mut self, message: Message) {
        if let Message::Event(event) = message {
            self.inbox.push(event);
        }
    }

    fn exec(&mut self, now: Nanos) {
        for event in std::mem::take(&mut self.inbox) {
            self.outbox.extend(self.policy.handle(event, now).into_iter().map(Message::Done));
        }
    }

    fn output(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outbox)
    }
}

/// A node: executes one run at a time, and loads constants one after the other.
pub(super) struct SimNode {
    pub(super) id: NodeId,
    pub(super) is_lost: bool,
    /// The end of the current run.
    pub(super) runs_until: Option<u64>,
    /// Pending loads, each with the time of its end.
    pub(super) loads: VecDeque<(u64, FunctionId)>,
    pub(super) inbox: Vec<Message>,
    pub(super) outbox: Vec<Message>,
}

impl SimNode {
    pub(super) fn new(id: NodeId) -> SimNode {
        let (loads, inbox, outbox) = (VecDeque::new(), Vec::new(), Vec::new());
        SimNode { id, is_lost: false, runs_until: None, loads, inbox, outbox }
    }
}

impl Component for SimNode {
    fn input(&mut self, message: Message) {
        self.inbox.push(message);
    }

    fn exec(&mut self, now: Nanos) {
        for message in std::mem::take(&mut self.inbox) {
            match message {
                Message::Fail { .. } => {
                    *self = SimNode { is_lost: true, ..SimNode::new(self.id) };
                }
                _ if self.is_lost => {}
                Message::Run { takes, .. } => {
                    assert!(self.runs_until.is_none(), "{} was given a run while another one is running", self.id);
                    self.runs_until = Some(now.0 + takes);
                }
                Message::Load { function, takes, .. } => {
                    let after = self.loads.back().map_or(now.0, |(end, _)| now.0.max(*end));
                    self.loads.push_back((after + takes, function));
                }
                Message::Event(_) | Message::Done(_) => {}
            }
        }
        while let Some((_, function)) = pop_if(&mut self.loads, |(end, _)| *end <= now.0) {
            self.outbox.push(Message::Event(Event::Loaded { node: self.id, function }));
        }
        if self.runs_until.take_if(|end| *end <= now.0).is_some() {
            self.outbox.push(Message::Event(Event::Ended { node: self.id }));
        }
    }

    fn output(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outbox)
    }
}
