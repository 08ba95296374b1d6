//! Settings of traces, and counts of spans that were sent and dropped.

use axum::http::Uri;
use std::sync::atomic::{AtomicU64, Ordering};

/// The collector of traces, and the rate of sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The collector, for example `http://127.0.0.1:4318`.
    pub endpoint: String,
    /// The fraction of the requests without a parent span that is traced, from 0 to 1. With 0, no
    /// request is traced.
    pub sample_rate: f64,
}

impl OtlpConfig {
    /// Settings, checked.
    ///
    /// # Errors
    /// If the endpoint is not an HTTP URL, or the rate is not from 0 to 1. The text says what to
    /// do.
    pub fn new(endpoint: &str, sample_rate: f64) -> Result<OtlpConfig, String> {
        check(endpoint).map_err(|reason| {
            format!(
                "OTLP endpoint {reason}; write for example http://127.0.0.1:4318. A collector beside the daemon sends \
                traces on, also over TLS or with a password"
            )
        })?;
        if !(0.0..=1.0).contains(&sample_rate) {
            return Err(format!("OTLP sample rate {sample_rate} is not from 0 to 1; 0.1 traces every tenth request"));
        }
        Ok(OtlpConfig { endpoint: endpoint.trim_end_matches('/').into(), sample_rate })
    }

    /// The URL for traces. The specification of OTLP adds the path `/v1/traces` to the endpoint.
    pub(super) fn url(&self) -> String {
        if self.endpoint.ends_with("/v1/traces") {
            self.endpoint.clone()
        } else {
            format!("{}/v1/traces", self.endpoint)
        }
    }
}

/// Checks that a URL can be an endpoint. The error is the reason why not.
fn check(endpoint: &str) -> Result<(), String> {
    if endpoint.contains('@') {
        // The message does not show the URL, since it may contain a password.
        return Err("contains an @; a user or a password is not supported".into());
    }
    if endpoint.contains(['?', '#']) {
        return Err(format!("{endpoint:?} has a query or a fragment"));
    }
    let url = endpoint.parse::<Uri>().ok().filter(|url| url.scheme_str() == Some("http"));
    let Some(authority) = url.as_ref().and_then(Uri::authority).filter(|_| endpoint.is_ascii()) else {
        return Err(format!("{endpoint:?} is not an HTTP URL"));
    };
    let has_port = authority.as_str() != authority.host();
    if authority.host().is_empty() || (has_port && authority.port_u16().is_none_or(|port| port == 0)) {
        return Err(format!("{endpoint:?} has no host, or a port that is not from 1 to 65535"));
    }
    Ok(())
}

/// Spans that were sent, and that were dropped.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) exported: AtomicU64,
    /// Dropped because the queue was full.
    pub(crate) overflowed: AtomicU64,
    /// Dropped because the collector could not be reached or did not accept them.
    pub(crate) refused: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64, spans: usize) {
        counter.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_rates_are_checked() {
        let url = |endpoint| OtlpConfig::new(endpoint, 1.0).map(|config| config.url());
        assert_eq!(url("http://localhost:4318").as_deref(), Ok("http://localhost:4318/v1/traces"));
        assert_eq!(url("http://[::1]:4318/otlp/").as_deref(), Ok("http://[::1]:4318/otlp/v1/traces"));
        assert_eq!(url("http://c/v1/traces").as_deref(), Ok("http://c/v1/traces"));
        for wrong in [
            "",
            "localhost:4318",
            "http://",
            "http:///x",
            "http://:1",
            "https://c",
            "http://a b",
            "http://ü",
            "grpc://c",
            "http://c?x",
            "http://c/#x",
            "http://c:",
            "http://c:0",
            "http://c:65536",
            "http://c:port",
            "http://[::1]:x",
        ] {
            assert!(url(wrong).unwrap_err().contains("http://127.0.0.1:4318"), "{wrong}");
        }
        for with_password in ["http://user:secret@c", "http://secret@c:4318", "user:secret@c"] {
            assert!(!url(with_password).unwrap_err().contains("secret"), "{with_password}");
        }
        for rate in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(OtlpConfig::new("http://c", rate).unwrap_err().contains("from 0 to 1"), "{rate}");
        }
    }
}
