//! Sends requests to daemons. Each node has threads of its own, so a daemon that hangs delays no
//! other one.

use crate::controller::{Answer, Call};
use crate::hold::{Ask, Refused};
use atoll_client::LeaseHold;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use ureq::Agent;

/// Requests to a daemon that are sent at the same time.
const THREADS: usize = 4;

/// Time for a request: a lease with the shortest time to live can be renewed again after it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Largest answer of a daemon in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Reports the answer to a call: when it was sent, the call, and the answer.
type Report = Arc<dyn Fn(Duration, Call, Result<Answer, Refused>) + Send + Sync>;

/// The threads that send requests.
pub(crate) struct Daemons {
    agent: Agent,
    tokens: Option<PathBuf>,
    clock: fn() -> Duration,
    report: Report,
    nodes: HashMap<String, Sender<Call>>,
}

impl Daemons {
    /// `tokens` is the folder with a token for each namespace.
    pub(crate) fn new(tokens: Option<PathBuf>, clock: fn() -> Duration, report: Report) -> Daemons {
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let config = config.timeout_global(Some(TIMEOUT)).timeout_connect(Some(TIMEOUT / 2)).build();
        Daemons { agent: config.new_agent(), tokens, clock, report, nodes: HashMap::new() }
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
            (self.report)((self.clock)(), call, Err(failed("no thread can be started")));
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
                agent: self.agent.clone(),
                tokens: self.tokens.clone(),
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
    agent: Agent,
    tokens: Option<PathBuf>,
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
            let answer = self.ask(&call);
            (self.report)(sent, call, answer);
        }
    }

    fn ask(&self, call: &Call) -> Result<Answer, Refused> {
        let about = |hold: &LeaseHold, verb: &str| {
            let body = json!({ "epoch": hold.epoch, "holder": hold.holder });
            (format!("/v2/leases/{}/{verb}", hold.lease), Some(body))
        };
        let (route, body) = match &call.ask {
            Ask::Capacity => ("/v2/capacity".to_owned(), None),
            Ask::Grant(spec) => ("/v2/leases".to_owned(), Some(serde_json::to_value(spec).map_err(failed)?)),
            Ask::Renew(hold) => about(hold, "renew"),
            Ask::Release(hold) => about(hold, "release"),
        };
        let answer = self.exchange(call, &route, body.as_ref())?;
        match call.ask {
            Ask::Capacity => read(&answer).map(Answer::Capacity),
            Ask::Grant(_) | Ask::Renew(_) => read(&answer).map(|lease| Answer::Lease(Some(Box::new(lease)))),
            Ask::Release(_) => Ok(Answer::Lease(None)),
        }
    }

    fn exchange(&self, call: &Call, route: &str, body: Option<&Value>) -> Result<Vec<u8>, Refused> {
        let url = format!("{}{route}", call.daemon.url);
        let token = self.tokens.as_deref().map(|folder| token(folder, &call.namespace)).transpose()?;
        let authorization = token.map(|token| format!("Bearer {token}")).unwrap_or_default();
        // An absent header and an empty one are not the same to a daemon with keys.
        let answer = match body {
            None if authorization.is_empty() => self.agent.get(url).call(),
            None => self.agent.get(url).header("Authorization", authorization).call(),
            Some(body) => {
                let mut request = self.agent.post(url).header("Content-Type", "application/json");
                if !authorization.is_empty() {
                    request = request.header("Authorization", authorization);
                }
                request.send(body.to_string().as_bytes())
            }
        };
        let mut answer = answer.map_err(|error| failed(format!("{}: {error}", call.daemon.url)))?;
        let content = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(failed)?;
        let status = answer.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(content);
        }
        let error: Option<Value> = serde_json::from_slice(&content).ok();
        let message = error.as_ref().and_then(|error| error["error"].as_str()).unwrap_or("no reason is given");
        Err(Refused { status: Some(status), message: message.into() })
    }
}

/// The token of a namespace: the file of its name.
fn token(folder: &Path, namespace: &str) -> Result<String, Refused> {
    let none = |why: &str| Refused {
        status: Some(401),
        message: format!("the controller has no token for the namespace {namespace}: {why}"),
    };
    // A name of a namespace has neither a slash nor a dot.
    if namespace.is_empty() || !namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(none("its name is not possible"));
    }
    let path = folder.join(namespace);
    let token = std::fs::read_to_string(&path).map_err(|error| none(&format!("{}: {error}", path.display())))?;
    let token = token.trim();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.into()),
        false => Err(none(&format!("{} has none", path.display()))),
    }
}

fn failed(error: impl std::fmt::Display) -> Refused {
    Refused { status: None, message: error.to_string() }
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(answer).map_err(|error| failed(format!("the answer is not one of a daemon: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_token_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("apps"), "atoll_1_2\n").unwrap();
        std::fs::write(folder.path().join("empty"), "\n").unwrap();
        assert_eq!(token(folder.path(), "apps").unwrap(), "atoll_1_2");
        for wrong in ["other", "empty", "../apps", "", "."] {
            let refused = token(folder.path(), wrong).unwrap_err();
            assert_eq!(refused.status, Some(401), "{wrong}");
            assert!(refused.message.contains("has no token"), "{}", refused.message);
        }
    }
}
