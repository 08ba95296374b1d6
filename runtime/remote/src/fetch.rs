//! Reads one object or listing over HTTP, with retries.

use crate::error::RemoteError;
use crate::listing::{self, Object, Page};
use crate::location::{Location, MANIFEST};
use crate::{Options, sign};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};
use ureq::http::Response;
use ureq::{Agent, Body};

/// Maximum number of times that a request is sent.
const ATTEMPTS: u32 = 6;

/// Minimum transfer rate in bytes per second; the timeout of a request allows for it.
const RATE_MIN: u64 = 64 << 10;

/// Maximum number of pages of a listing: those of the most objects, with a hundred on each page.
/// Servers put up to a thousand on a page.
const PAGES_MAX: usize = listing::OBJECTS_MAX / 100;

/// Largest listing, or page of one, in bytes.
const LISTING_BYTES_MAX: u64 = 64 << 20;

/// Characters that are percent-encoded in addresses: all but the unreserved ones (RFC 3986 §2.3), as
/// signatures require.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why an attempt failed.
enum Failed {
    /// No complete answer arrived; another attempt may succeed.
    Again(String),
    /// The digest is not the stated one; another attempt may succeed.
    Digest {
        found: String,
        stated: String,
    },
    Final(RemoteError),
}

/// The result of fetching an object.
pub(crate) enum Fetched {
    /// The file contains the object.
    Done,
    /// The object differs from the listing, or is gone.
    Changed(String),
}

/// Sends requests to the server of a repository.
pub(crate) struct Client {
    agent: Agent,
    location: Location,
    options: Options,
}

/// A request: the path and the query, both encoded.
#[derive(Clone)]
struct Target {
    origin: String,
    path: String,
    query: String,
}

impl Target {
    fn url(&self) -> String {
        let Target { origin, path, query } = self;
        if query.is_empty() { format!("{origin}{path}") } else { format!("{origin}{path}?{query}") }
    }
}

impl Client {
    pub(crate) fn new(location: Location, options: Options) -> Result<Client, RemoteError> {
        let base = match &location {
            Location::Bucket { endpoint, .. } => endpoint,
            Location::Folder { base } => base,
        };
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0);
        let config = config.timeout_connect(Some(options.timeout));
        let agent = match (&options.tls, base.starts_with("https://")) {
            (Some(tls), _) => config.tls_config(tls.clone()).build().new_agent(),
            (None, false) => config.build().new_agent(),
            (None, true) => {
                let why = "no certificate authorities are known, so its certificate cannot be checked";
                return Err(RemoteError::Address(format!("{base} needs TLS, but {why}")));
            }
        };
        Ok(Client { agent, location, options })
    }

    /// All objects of the repository.
    pub(crate) fn list(&self) -> Result<Vec<Object>, RemoteError> {
        match &self.location {
            Location::Folder { .. } => {
                let target = self.target(MANIFEST);
                let wrong = |reason| RemoteError::Listing { url: target.url(), reason };
                listing::manifest(&self.text(&target)?).map_err(wrong)
            }
            Location::Bucket { endpoint, bucket, prefix, .. } => {
                self.list_bucket(&in_bucket(endpoint, bucket, ""), prefix)
            }
        }
    }

    /// Reads all pages of the listing of a bucket.
    fn list_bucket(&self, bucket: &Target, prefix: &str) -> Result<Vec<Object>, RemoteError> {
        let (mut objects, mut token) = (Vec::new(), None::<String>);
        let mut tokens: BTreeSet<[u8; 32]> = BTreeSet::new();
        loop {
            let target = Target { query: page_query(prefix, token), ..bucket.clone() };
            let text = self.text(&target)?;
            let wrong = |reason| RemoteError::Listing { url: target.url(), reason };
            let text = String::from_utf8(text).map_err(|_| wrong("it is not UTF-8".into()))?;
            let Page { objects: more, next } = listing::page(&text, prefix).map_err(wrong)?;
            objects.extend(more);
            let Some(next) = next.filter(|_| objects.len() <= listing::OBJECTS_MAX) else {
                return Ok(objects);
            };
            if !tokens.insert(Sha256::digest(&next).into()) {
                return Err(wrong("it repeats a continuation token".into()));
            }
            if tokens.len() >= PAGES_MAX {
                return Err(wrong(format!("it has more than {PAGES_MAX} pages")));
            }
            token = Some(next);
        }
    }

    /// Reads an object into a file at `path`, which is empty. After a transfer that ended early, the
    /// next attempt asks for the rest. If the file cannot be written, there is no other attempt.
    pub(crate) fn fetch(&self, object: &Object, file: &mut File, path: &Path) -> Result<Fetched, RemoteError> {
        let target = self.target(&object.path);
        self.repeat(&target, || self.attempt(object, &target, file, path))
    }

    /// Repeats a request until it succeeds or cannot succeed, at most [`ATTEMPTS`] times.
    fn repeat<T>(&self, target: &Target, mut request: impl FnMut() -> Result<T, Failed>) -> Result<T, RemoteError> {
        let mut attempts = 0;
        loop {
            self.pause(attempts);
            attempts += 1;
            let error = match request() {
                Ok(answer) => return Ok(answer),
                Err(Failed::Final(error)) => return Err(error),
                Err(Failed::Again(reason)) => RemoteError::Lost { url: target.url(), attempts, reason },
                Err(Failed::Digest { found, stated }) => RemoteError::Digest { url: target.url(), found, stated },
            };
            if attempts == ATTEMPTS {
                return Err(error);
            }
            tracing::debug!(%error, "a request is sent again");
        }
    }

    /// Asks for the bytes of an object from `offset` on.
    fn request(&self, object: &Object, target: &Target, offset: u64) -> Result<Response<Body>, Failed> {
        let left = object.bytes.saturating_sub(offset);
        let range = format!("bytes={offset}-");
        let mut plain = Vec::new();
        let headers: &[(&str, &str)] = match &self.location {
            Location::Bucket { is_google, .. } => {
                // Only the version that was listed.
                plain.push(("if-match", object.version.as_str()));
                if *is_google { &[] } else { &[("x-amz-checksum-mode", "ENABLED")] }
            }
            Location::Folder { .. } => &[],
        };
        if offset > 0 {
            plain.push(("range", range.as_str()));
        }
        self.send(target, headers, &plain, self.options.timeout + Duration::from_secs(left / RATE_MIN))
    }

    fn attempt(&self, object: &Object, target: &Target, file: &mut File, path: &Path) -> Result<Fetched, Failed> {
        let local = |error: io::Error| Failed::Final(RemoteError::io(path)(error));
        let offset = file.seek(SeekFrom::End(0)).map_err(local)?;
        let answer = self.request(object, target, offset)?;
        match answer.status().as_u16() {
            200 => file.set_len(0).map_err(local)?,
            206 if begins_at(&answer, offset) => {}
            206 | 416 => {
                file.set_len(0).map_err(local)?;
                return Err(Failed::Again("the server sends another range than was asked for".into()));
            }
            404 | 412 => return Ok(Fetched::Changed(format!("{} is gone, or another one", object.path))),
            status => return Err(refused(target, status, answer)),
        }
        let stated = object.digest.clone().or_else(|| checksum(&answer));
        let from = file.seek(SeekFrom::End(0)).map_err(local)?;
        // One more byte, to detect an object that is larger than listed.
        let mut body = answer.into_body().into_reader().take(object.bytes.saturating_sub(from) + 1);
        let copied = copy(&mut body, file, path);
        let bytes = file.seek(SeekFrom::End(0)).map_err(local)?;
        if bytes > object.bytes {
            file.set_len(0).map_err(local)?;
            return Ok(Fetched::Changed(format!("{} has more than {} bytes", object.path, object.bytes)));
        }
        copied?;
        if bytes < object.bytes {
            return Err(Failed::Again(format!("{bytes} of {} bytes have arrived", object.bytes)));
        }
        file.flush().map_err(local)?;
        let Some(stated) = stated else { return Ok(Fetched::Done) };
        let found = digest(file).map_err(local)?;
        if found == stated {
            return Ok(Fetched::Done);
        }
        file.set_len(0).map_err(local)?;
        Err(Failed::Digest { found, stated })
    }

    /// Reads a listing.
    fn text(&self, target: &Target) -> Result<Vec<u8>, RemoteError> {
        self.repeat(target, || self.text_once(target))
    }

    fn text_once(&self, target: &Target) -> Result<Vec<u8>, Failed> {
        let within = self.options.timeout + Duration::from_secs(60);
        let answer = self.send(target, &[], &[], within)?;
        match answer.status().as_u16() {
            200 => {}
            status => return Err(refused(target, status, answer)),
        }
        let stated = answer.body().content_length();
        let read = answer.into_body().into_with_config().limit(LISTING_BYTES_MAX).read_to_vec();
        let text = read.map_err(|error| Failed::Again(error.to_string()))?;
        match stated {
            Some(stated) if stated != text.len() as u64 => Err(Failed::Again("the listing is incomplete".into())),
            _ => Ok(text),
        }
    }

    /// Sends a request. `headers` are signed if there is a key, `plain` are not.
    fn send(
        &self,
        target: &Target,
        headers: &[(&str, &str)],
        plain: &[(&str, &str)],
        within: Duration,
    ) -> Result<Response<Body>, Failed> {
        let mut request = self.agent.get(target.url());
        match (&self.location, &self.options.credentials) {
            (Location::Bucket { region, .. }, Some(credentials)) => {
                let host = target.origin.split_once("://").map_or("", |(_, host)| host);
                let stamp = sign::stamp(SystemTime::now());
                let parts = (host, target.path.as_str(), target.query.as_str());
                for (name, value) in sign::sign(credentials, parts, headers, region, &stamp) {
                    request = request.header(name, value);
                }
            }
            _ => {
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
            }
        }
        for (name, value) in plain {
            request = request.header(*name, *value);
        }
        let answer = request.config().timeout_global(Some(within)).build().call();
        answer.map_err(|error| Failed::Again(error.to_string()))
    }

    fn pause(&self, attempt: u32) {
        if attempt > 0 {
            std::thread::sleep(self.options.pause.saturating_mul(1 << (attempt - 1).min(5)));
        }
    }

    /// The address of an object, or of the listing of a web server.
    fn target(&self, path: &str) -> Target {
        match &self.location {
            Location::Bucket { endpoint, bucket, prefix, .. } => {
                in_bucket(endpoint, bucket, &format!("{prefix}{path}"))
            }
            Location::Folder { base } => {
                let begin = base.find("://").map_or(0, |at| at + 3);
                let split = base[begin..].find('/').map_or(base.len(), |at| begin + at);
                let (origin, folder) = base.split_at(split);
                Target { origin: origin.into(), path: format!("{folder}{}", encoded_path(path)), query: String::new() }
            }
        }
    }
}

/// The address of an object of a bucket by its whole name; empty for the bucket.
fn in_bucket(endpoint: &str, bucket: &str, name: &str) -> Target {
    let name = if name.is_empty() { String::new() } else { encoded_path(name) };
    Target { origin: endpoint.into(), path: format!("/{bucket}{name}"), query: String::new() }
}

/// The query for a page of the listing of a bucket. Signatures require that parameters are sorted.
fn page_query(prefix: &str, token: Option<String>) -> String {
    let mut parts = vec![("encoding-type", "url".to_owned()), ("list-type", "2".to_owned())];
    parts.push(("max-keys", "1000".to_owned()));
    parts.push(("prefix", prefix.to_owned()));
    parts.extend(token.map(|token| ("continuation-token", token)));
    parts.sort_unstable();
    let pairs: Vec<String> = parts.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    pairs.join("&")
}

/// Copies an answer to a file at `path`. An answer that breaks off may be asked for again; a file
/// that cannot be written fails at once.
fn copy(from: &mut impl Read, to: &mut impl Write, path: &Path) -> Result<(), Failed> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failed::Again(error.to_string())),
        };
        to.write_all(&buffer[..count]).map_err(|error| Failed::Final(RemoteError::io(path)(error)))?;
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// A path with a slash before each of its parts.
fn encoded_path(path: &str) -> String {
    path.split('/').map(|part| format!("/{}", encoded(part))).collect()
}

/// Whether the answer is the part of the object that begins at `offset`.
fn begins_at(answer: &Response<Body>, offset: u64) -> bool {
    let range = answer.headers().get("content-range").and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {offset}-")))
}

/// SHA-256 of the whole object, in hexadecimal digits, if the answer states it. That of an object
/// that was written in parts is not a digest of its bytes, and has another form.
fn checksum(answer: &Response<Body>) -> Option<String> {
    let value = answer.headers().get("x-amz-checksum-sha256")?.to_str().ok()?;
    let bytes = STANDARD.decode(value).ok().filter(|bytes| bytes.len() == 32)?;
    Some(sign::hex(&bytes))
}

fn digest(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sign::hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// The failure for a status other than success.
fn refused(target: &Target, status: u16, answer: Response<Body>) -> Failed {
    // Only the beginning: the body may be a whole document.
    let mut text = Vec::new();
    let _ = answer.into_body().into_reader().take(500).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let reason = text.find("<Message>").map(|at| &text[at + "<Message>".len()..]);
    let reason = reason.and_then(|text| text.split('<').next()).unwrap_or_default();
    let message: String = reason.chars().take(200).flat_map(char::escape_debug).collect();
    let message = if message.is_empty() { message } else { format!(": {message}") };
    match status {
        408 | 429 | 500 | 502 | 503 | 504 => Failed::Again(format!("status {status}{message}")),
        _ => Failed::Final(RemoteError::Refused { url: target.url(), status, message }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_at_once_and_a_broken_answer_is_asked_for_again() {
        let path = Path::new("/dev/full");
        let mut full = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        let failed = copy(&mut io::Cursor::new(b"bytes"), &mut full, path);
        assert!(matches!(&failed, Err(Failed::Final(RemoteError::Io { path, source }))
                if path.ends_with("full") && source.kind() == ErrorKind::StorageFull));
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::from(ErrorKind::ConnectionReset))
            }
        }
        let mut file = Vec::new();
        let failed = copy(&mut io::Cursor::new(b"bytes").chain(Broken), &mut file, path);
        assert!(matches!(failed, Err(Failed::Again(_))));
        assert_eq!(file, b"bytes");
    }
}
