//! The trace context that a client sends: the header `traceparent` of W3C Trace Context, or over
//! gRPC the metadata of the same name.

use axum::http::HeaderMap;
use std::time::Instant;

/// The trace that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace: [u8; 16],
    /// The id of the client's span.
    pub(crate) parent: [u8; 8],
    /// Whether the client samples the trace.
    pub(crate) is_sampled: bool,
}

/// When and how a request arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// `http`, `grpc` or `ring`.
    pub(crate) protocol: &'static str,
    pub(crate) context: Option<Context>,
}

impl Arrival {
    /// A request that arrives now.
    pub(crate) fn now(protocol: &'static str, headers: &HeaderMap) -> Arrival {
        Arrival { at: Instant::now(), protocol, context: Context::of(headers) }
    }
}

impl Context {
    /// The context in the headers of a request. `None` if there is none, it is not valid, or there
    /// are several: the request then starts a new trace.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Context> {
        let mut given = headers.get_all("traceparent").iter();
        let text = given.next()?.to_str().ok()?;
        if given.next().is_some() { None } else { Context::parse(text) }
    }

    /// Parses `VERSION-TRACE-PARENT-FLAGS`. Versions after 00 may have further fields.
    pub(crate) fn parse(text: &str) -> Option<Context> {
        let mut parts = text.split('-');
        let version = bytes::<1>(parts.next()?)?[0];
        let (trace, parent) = (bytes::<16>(parts.next()?)?, bytes::<8>(parts.next()?)?);
        let flags = bytes::<1>(parts.next()?)?[0];
        let is_known = match version {
            0 => parts.next().is_none(),
            0xff => false,
            _ => true,
        };
        let is_valid = is_known && trace != [0; 16] && parent != [0; 8];
        is_valid.then_some(Context { trace, parent, is_sampled: flags & 1 == 1 })
    }

    /// The id of the trace in hexadecimal.
    pub(crate) fn trace_id(&self) -> String {
        self.trace.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Parses exactly this many bytes in lower-case hexadecimal digits.
fn bytes<const COUNT: usize>(text: &str) -> Option<[u8; COUNT]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != COUNT || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; COUNT];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    #[test]
    fn contexts_are_read_as_the_w3c_says() {
        let read = Context::parse(&format!("00-{TRACE}-{PARENT}-01")).unwrap();
        assert_eq!((read.trace_id().as_str(), read.parent[1], read.is_sampled), (TRACE, 0xf0, true));
        let is_sampled = |text: &str| Context::parse(text).map(|context| context.is_sampled);
        assert_eq!(is_sampled(&format!("00-{TRACE}-{PARENT}-00")), Some(false));
        assert_eq!(is_sampled(&format!("00-{TRACE}-{PARENT}-fe")), Some(false), "other flags do not count");
        assert_eq!(is_sampled(&format!("01-{TRACE}-{PARENT}-03-more")), Some(true), "a later version");
        let (zeros, upper) = ("0".repeat(32), TRACE.to_uppercase());
        for wrong in [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-01-more"),
            format!("00-{TRACE}-{PARENT}-1"),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{zeros}-{PARENT}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{upper}-{PARENT}-01"),
            format!("00-{TRACE}0-{PARENT}-01"),
            format!("0-{TRACE}-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-0ü"),
        ] {
            assert_eq!(Context::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn several_contexts_are_none() {
        let mut headers = HeaderMap::new();
        assert_eq!(Context::of(&headers), None);
        let value = HeaderValue::from_str(&format!("00-{TRACE}-{PARENT}-01")).unwrap();
        headers.append("traceparent", value.clone());
        assert!(Context::of(&headers).is_some());
        headers.append("traceparent", value);
        assert_eq!(Context::of(&headers), None);
    }
}
