//! An HTTP client for the daemon.

use crate::credentials::CredentialArgs;
use crate::failure::user_error;
use anyhow::{Context, Result, anyhow};
use atoll_protocol::{
    ErrorBody, IndexEntry, InferRequest, InferResponse, JSON_LENGTH_HEADER, ModelExplanation, ModelMetadata,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::time::Duration;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, RequestBuilder};

/// Default address of a daemon.
pub const URL_DEFAULT: &str = "127.0.0.1:8000";

/// Largest answer to read: larger than any answer of a daemon with default limits.
const ANSWER_BYTES_MAX: u64 = 4 << 30;

/// Timeout of a request; the first request to a model may wait for others.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Characters to encode in a path segment: all but the unreserved ones (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A client of a daemon; keeps its connection open between requests.
pub struct Client {
    agent: Agent,
    base: String,
    /// Value of the header `Authorization`.
    authorization: Option<String>,
}

impl Client {
    /// `url` is `HOST:PORT` for HTTP, or begins with `http://` or `https://`.
    pub fn new(url: &str, credentials: &CredentialArgs) -> Result<Client> {
        let (scheme, authority) = url.split_once("://").unwrap_or(("http", url));
        let authority = authority.trim_end_matches('/');
        let tls = match scheme {
            "http" => None,
            "https" => Some(credentials.tls()?),
            other => return Err(user_error(format!("unknown scheme {other}:// in --url; use http:// or https://"))),
        };
        let authorization = credentials.token()?.map(|token| format!("Bearer {token}"));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            // Daemons are contacted directly, ignoring proxies in the environment.
            .proxy(None)
            .max_redirects(0);
        let config = match tls {
            Some(tls) => config.tls_config(tls).build(),
            None => config.build(),
        };
        Ok(Client { agent: Agent::new_with_config(config), base: format!("{scheme}://{authority}"), authorization })
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }

    /// The inputs and outputs of a model.
    pub fn metadata(&self, model: &str) -> Result<ModelMetadata> {
        let response = self.authorized(self.agent.get(self.model(model, ""))).call();
        self.json(response)
    }

    /// The models of the repository.
    pub fn index(&self) -> Result<Vec<IndexEntry>> {
        let response = self.authorized(self.agent.post(format!("{}/v2/repository/index", self.base))).send(&b"{}"[..]);
        self.json(response)
    }

    /// What the daemon reads of the folder of a model.
    pub fn explain(&self, model: &str) -> Result<ModelExplanation> {
        let route = format!("{}/v2/repository/models/{}/explain", self.base, percent_encoded(model));
        let response = self.authorized(self.agent.get(route)).call();
        self.json(response)
    }

    /// Invokes a model.
    pub fn infer(&self, model: &str, request: &InferRequest) -> Result<InferResponse> {
        let encoded = request.encode();
        let mut call = self.authorized(self.agent.post(self.model(model, "/infer")));
        if let Some(json_bytes) = encoded.json_bytes {
            call = call.header(JSON_LENGTH_HEADER, json_bytes.to_string());
        }
        let (response, body) = self.read(call.send(&encoded.bytes[..]))?;
        let json_bytes = response.headers().get(JSON_LENGTH_HEADER).and_then(|v| v.to_str().ok()?.parse().ok());
        Ok(InferResponse::decode(&body, json_bytes)?)
    }

    /// Sends a prompt to a model that generates. Passes on each token when it arrives.
    pub fn generate(&self, model: &str, prompt: &Prompt<'_>, mut token: impl FnMut(i64)) -> Result<()> {
        let content = serde_json::to_vec(prompt)?;
        let call = self.authorized(self.agent.post(self.model(model, "/generate_stream")));
        let response = match call.header("Content-Type", "application/json").send(&content[..]) {
            Ok(response) if response.status().is_success() => response,
            refused => return self.read(refused).map(drop),
        };
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.with_context(|| format!("the answer of {} is incomplete", self.base))?;
            let Some(event) = line.strip_prefix("data: ") else { continue };
            match serde_json::from_str::<Event>(event)
                .with_context(|| format!("the daemon's event is not a token: {event}"))?
            {
                Event::Token { output_ids } => token(output_ids),
                Event::Failure(failure) => return Err(anyhow!(failure.error)),
            }
        }
        Ok(())
    }

    fn model(&self, model: &str, route: &str) -> String {
        format!("{}/v2/models/{}{route}", self.base, percent_encoded(model))
    }

    fn json<T: DeserializeOwned>(&self, response: Result<Response<Body>, ureq::Error>) -> Result<T> {
        let (_, body) = self.read(response)?;
        serde_json::from_slice(&body).with_context(|| format!("the answer of {} is not valid KServe v2", self.base))
    }

    /// Sends JSON to a route, as in `/v2/leases`, and returns the body of the answer.
    pub fn post(&self, route: &str, body: &impl Serialize, within: Duration) -> Result<Vec<u8>, AskError> {
        let content = serde_json::to_vec(body).map_err(|error| AskError::Failed(error.into()))?;
        let request = self.authorized(self.agent.post(format!("{}{route}", self.base)));
        let request = request.header("Content-Type", "application/json");
        let response = request.config().timeout_global(Some(within)).build().send(&content[..]);
        let (response, body) = self.receive(response).map_err(AskError::Failed)?;
        match refusal(&response, &body) {
            None => Ok(body),
            Some(message) => Err(AskError::Refused { status: response.status().as_u16(), message }),
        }
    }

    /// Reads the body of a successful answer, or the daemon's error.
    fn read(&self, response: Result<Response<Body>, ureq::Error>) -> Result<(Response<Body>, Vec<u8>)> {
        let (response, body) = self.receive(response)?;
        let Some(message) = refusal(&response, &body) else { return Ok((response, body)) };
        let faults = [
            StatusCode::BAD_REQUEST,
            StatusCode::UNAUTHORIZED,
            StatusCode::FORBIDDEN,
            StatusCode::NOT_FOUND,
            StatusCode::PAYLOAD_TOO_LARGE,
        ];
        Err(if faults.contains(&response.status()) { user_error(message) } else { anyhow!(message) })
    }

    /// Reads the body of an answer.
    fn receive(&self, response: Result<Response<Body>, ureq::Error>) -> Result<(Response<Body>, Vec<u8>)> {
        let mut response = response
            .with_context(|| format!("cannot reach a daemon at {}; is `atoll serve` running there?", self.base))?;
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.with_context(|| format!("the answer of {} is incomplete", self.base))?;
        Ok((response, body))
    }
}

/// A request to a model that generates.
#[derive(Debug, Serialize)]
pub struct Prompt<'p> {
    /// Its tokens.
    pub input_ids: &'p [i64],
    /// The largest number of tokens of the answer.
    pub max_tokens: u32,
    /// The token that ends the answer; `None` for that of the model's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_token: Option<i64>,
}

/// An event of the answer to a prompt.
#[derive(Deserialize)]
#[serde(untagged)]
enum Event {
    Token { output_ids: i64 },
    Failure(ErrorBody),
}

/// Why a request has no answer that can be used.
#[derive(Debug)]
pub enum AskError {
    /// The daemon refused it.
    Refused {
        /// Status of HTTP.
        status: u16,
        /// The daemon's reason.
        message: String,
    },
    /// No answer arrived. The daemon may have done what was asked.
    Failed(anyhow::Error),
}

/// The message of an answer that is an error.
fn refusal(response: &Response<Body>, body: &[u8]) -> Option<String> {
    if response.status().is_success() {
        return None;
    }
    let message =
        serde_json::from_slice(body).map_or_else(|_| response.status().to_string(), |body: ErrorBody| body.error);
    Some(match response.status() {
        StatusCode::UNAUTHORIZED => {
            format!("{message} (this client takes a token from --token-file or the variable ATOLL_TOKEN)")
        }
        _ => message,
    })
}

/// Encodes a name as a path segment.
fn percent_encoded(name: &str) -> impl Display {
    utf8_percent_encode(name, ENCODED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_segments() {
        assert_eq!(percent_encoded("res-net_1.5").to_string(), "res-net_1.5");
        assert_eq!(percent_encoded("a b/é").to_string(), "a%20b%2F%C3%A9");
    }
}
