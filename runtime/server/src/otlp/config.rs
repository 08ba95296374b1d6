//! Settings of traces, and counts of what became of spans.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where traces are sent, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The collector, for example `http://127.0.0.1:4318`.
    pub endpoint: String,
    /// The part of the requests without a parent that is traced, from 0 to 1.
    pub sample_rate: f64,
}

impl OtlpConfig {
    /// Settings, checked.
    ///
    /// # Errors
    /// If the endpoint is no URL of HTTP, or the rate is not from 0 to 1. The text says what to do.
    pub fn new(endpoint: &str, sample_rate: f64) -> Result<OtlpConfig, String> {
        let is_plain = |byte: u8| byte.is_ascii_graphic();
        let host = endpoint.strip_prefix("http://").unwrap_or_default();
        if host.is_empty() || host.starts_with(['/', ':']) || !endpoint.bytes().all(is_plain) {
            return Err(format!(
                "OTLP endpoint {endpoint:?} is not a URL of HTTP; write for example http://127.0.0.1:4318. A collector \
                beside the daemon sends traces on, also over TLS"
            ));
        }
        if !(0.0..=1.0).contains(&sample_rate) {
            return Err(format!("OTLP sample rate {sample_rate} is not from 0 to 1; 0.1 traces every tenth request"));
        }
        Ok(OtlpConfig { endpoint: endpoint.trim_end_matches('/').into(), sample_rate })
    }

    /// The URL of traces: by the specification of OTLP, a path is added to the endpoint.
    pub(super) fn url(&self) -> String {
        if self.endpoint.ends_with("/v1/traces") {
            self.endpoint.clone()
        } else {
            format!("{}/v1/traces", self.endpoint)
        }
    }
}

/// Spans that were sent, and that were dropped.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) exported: AtomicU64,
    /// Since the queue was full.
    pub(crate) overflowed: AtomicU64,
    /// Since the collector could not be reached, or refused them.
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
        for wrong in ["", "localhost:4318", "http://", "http:///x", "http://:1", "https://c", "http://a b", "grpc://c"]
        {
            assert!(url(wrong).unwrap_err().contains("http://127.0.0.1:4318"), "{wrong}");
        }
        for rate in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(OtlpConfig::new("http://c", rate).unwrap_err().contains("from 0 to 1"), "{rate}");
        }
    }
}
