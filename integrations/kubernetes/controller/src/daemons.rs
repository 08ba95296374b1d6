//! Sends requests to daemons. Each node has threads of its own, so a daemon that hangs delays no
//! other one.

use crate::controller::Call;
use atoll_kubernetes::daemon::{Answer, DaemonClient};
use atoll_kubernetes::request::Refused;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Requests to a daemon that are sent at the same time.
const THREADS: usize = 4;

/// Reports the answer to a call: when it was sent, the call, and the answer.
type Report = Arc<dyn Fn(Duration, Call, Result<Answer, Refused>) + Send + Sync>;

/// The threads that send requests.
pub(crate) struct Daemons {
    client: DaemonClient,
    clock: fn() -> Duration,
    report: Report,
    nodes: HashMap<String, Sender<Call>>,
}

impl Daemons {
    /// `tokens` is the folder with a token for each namespace.
    pub(crate) fn new(tokens: Option<PathBuf>, clock: fn() -> Duration, report: Report) -> Daemons {
        Daemons { client: DaemonClient::new(tokens), clock, report, nodes: HashMap::new() }
    }

    /// Sends a request in the background.
    pub(crate) fn send(&mut self, call: Call) {
        let node = call.daemon.node.clone();
        if !self.nodes.contains_key(&node) {
            let sender = self.start(&node);
            self.nodes.insert(node.clone(), sender);
        }
        if let Some(sender) = self.nodes.get(&node)
            && let Err(SendError(call)) = sender.send(call)
        {
            self.nodes.remove(&node);
            (self.report)(
                (self.clock)(),
                call,
                Err(Refused { status: None, message: "no thread can be started".into() }),
            );
        }
    }

    /// Ends the threads of nodes that have no daemon any more, when their requests are answered.
    pub(crate) fn keep(&mut self, has_daemon: impl Fn(&str) -> bool) {
        self.nodes.retain(|node, _| has_daemon(node));
    }

    fn start(&self, node: &str) -> Sender<Call> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..THREADS {
            let worker = Worker {
                client: self.client.clone(),
                clock: self.clock,
                report: self.report.clone(),
                calls: receiver.clone(),
            };
            let started = std::thread::Builder::new().name("daemon".into()).spawn(move || worker.run());
            if let Err(error) = started {
                tracing::error!(node, %error, "a thread cannot be started");
            }
        }
        sender
    }
}

struct Worker {
    client: DaemonClient,
    clock: fn() -> Duration,
    report: Report,
    calls: Arc<Mutex<Receiver<Call>>>,
}

impl Worker {
    fn run(&self) {
        loop {
            let call = self.calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(call) = call else { return };
            let sent = (self.clock)();
            let answer = self.client.ask(&call.daemon.url, &call.namespace, &call.ask);
            (self.report)(sent, call, answer);
        }
    }
}
