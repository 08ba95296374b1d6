//! The client of daemons: leases and capacity over HTTP, with the token of a namespace.

use crate::request::{Ask, Refused};
use atoll_client::{CapacityReport, LeaseHold, LeaseReport};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Agent;

/// Time for a request: a lease with the shortest time to live can be renewed again after it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Largest answer of a daemon in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The answer of a daemon.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a grant, a renewal or a release, which has no lease.
    Lease(Option<Box<LeaseReport>>),
    /// To a request for the capacity.
    Capacity(CapacityReport),
}

/// Sends requests to daemons.
#[derive(Clone, Debug)]
pub struct DaemonClient {
    agent: Agent,
    tokens: Option<PathBuf>,
}

impl DaemonClient {
    /// `tokens` is the folder with a token for each namespace. Without it no token is sent.
    #[must_use]
    pub fn new(tokens: Option<PathBuf>) -> DaemonClient {
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let config = config.timeout_global(Some(TIMEOUT)).timeout_connect(Some(TIMEOUT / 2)).build();
        DaemonClient { agent: config.new_agent(), tokens }
    }

    /// The namespaces that have a token, in order. None without a folder of tokens.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let Some(folder) = &self.tokens else { return Vec::new() };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        // A volume of a secret has more files, whose names begin with a dot.
        let mut names: Vec<String> = names.filter(|name| is_namespace(name)).collect();
        names.sort_unstable();
        names
    }

    /// Sends a request of a namespace to the daemon at an address, as in `http://10.0.0.1:8000`.
    ///
    /// # Errors
    /// Fails if the namespace has no token, if no answer arrives in 3 s, or with the status and the
    /// message of a refusal.
    pub fn ask(&self, url: &str, namespace: &str, ask: &Ask) -> Result<Answer, Refused> {
        let about = |hold: &LeaseHold, verb: &str| {
            let body = json!({ "epoch": hold.epoch, "holder": hold.holder });
            (format!("/v2/leases/{}/{verb}", hold.lease), Some(body))
        };
        let (route, body) = match ask {
            Ask::Capacity => ("/v2/capacity".to_owned(), None),
            Ask::Grant(spec) => ("/v2/leases".to_owned(), Some(serde_json::to_value(spec).map_err(failed)?)),
            Ask::Renew(hold) => about(hold, "renew"),
            Ask::Release(hold) => about(hold, "release"),
        };
        let answer = self.exchange(url, namespace, &route, body.as_ref())?;
        match ask {
            Ask::Capacity => read(&answer).map(Answer::Capacity),
            Ask::Grant(_) | Ask::Renew(_) => read(&answer).map(|lease| Answer::Lease(Some(Box::new(lease)))),
            Ask::Release(_) => Ok(Answer::Lease(None)),
        }
    }

    fn exchange(&self, url: &str, namespace: &str, route: &str, body: Option<&Value>) -> Result<Vec<u8>, Refused> {
        let address = format!("{}{route}", url.trim_end_matches('/'));
        let token = self.tokens.as_deref().map(|folder| token(folder, namespace)).transpose()?;
        let authorization = token.map(|token| format!("Bearer {token}")).unwrap_or_default();
        // An absent header and an empty one are not the same to a daemon with keys.
        let answer = match body {
            None if authorization.is_empty() => self.agent.get(address).call(),
            None => self.agent.get(address).header("Authorization", authorization).call(),
            Some(body) => {
                let mut request = self.agent.post(address).header("Content-Type", "application/json");
                if !authorization.is_empty() {
                    request = request.header("Authorization", authorization);
                }
                request.send(body.to_string().as_bytes())
            }
        };
        let mut answer = answer.map_err(|error| failed(format!("{url}: {error}")))?;
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

/// Whether a namespace can have this name: one with neither a slash nor a dot.
fn is_namespace(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The token of a namespace: the file of its name.
fn token(folder: &Path, namespace: &str) -> Result<String, Refused> {
    let none = |why: &str| Refused {
        status: Some(401),
        message: format!("there is no token for the namespace {namespace}: {why}"),
    };
    if !is_namespace(namespace) {
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
        std::fs::write(folder.path().join("..data"), "x").unwrap();
        assert_eq!(token(folder.path(), "apps").unwrap(), "atoll_1_2");
        for wrong in ["other", "empty", "../apps", "", "."] {
            let refused = token(folder.path(), wrong).unwrap_err();
            assert_eq!(refused.status, Some(401), "{wrong}");
            assert!(refused.message.contains("there is no token"), "{}", refused.message);
        }
        assert_eq!(DaemonClient::new(Some(folder.path().into())).namespaces(), ["apps", "empty"]);
        assert!(DaemonClient::new(None).namespaces().is_empty());
    }
}
