//! The access log: one line for each request on the HTTP and gRPC ports. Off by default.
//!
//! Each request has an [`Entry`] in its task's local storage, which handlers fill in. A separate
//! thread writes the lines. If the thread falls behind, lines are dropped and counted; requests
//! never wait for it.

use crate::limits::{ACCESS_LOG_LINES_MAX, ACCESS_LOG_STOP_MAX};
use crate::otlp::Context;
use atoll_engine::{Class, Tenant};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Body as _;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest text from a client in a line, in characters.
const TEXT_MAX: usize = 256;

/// Lines are written when they reach this many bytes in total, or when no line waits.
const WRITE_BYTES: usize = 64 << 10;

/// The target and the format of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The file, to which lines are appended; `None` for standard output.
    pub file: Option<PathBuf>,
    /// The form of the lines.
    pub format: AccessLogFormat,
}

/// The form of the lines of an access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// An object of JSON.
    #[default]
    Json,
    /// Text with names and values.
    Text,
}

/// The fields of a line.
#[derive(Debug, Default, Serialize)]
struct Line {
    /// Seconds since 1970.
    at_s: f64,
    protocol: &'static str,
    method: String,
    path: String,
    /// The id of the request: that of its body, or else the header `X-Request-Id`.
    id: Option<String>,
    /// The trace that the request is part of (the header `traceparent`).
    trace_id: Option<String>,
    tenant: Option<String>,
    model: Option<String>,
    class: Option<Class>,
    /// The value of the header `Content-Length`.
    request_bytes: Option<u64>,
    response_bytes: Option<u64>,
    /// The HTTP status, or the number of the gRPC code; `None` if the client did not wait for it.
    status: Option<u16>,
    /// Time from the head of the request to the head of the answer.
    ms: f64,
}

/// The facts about a request that its handlers note.
#[derive(Default)]
struct Entry(Mutex<Known>);

#[derive(Default)]
struct Known {
    id: Option<String>,
    tenant: Option<String>,
    model: Option<String>,
    class: Option<Class>,
}

tokio::task_local! {
    static ENTRY: Arc<Entry>;
}

impl AccessLogConfig {
    /// Reads the settings of the configuration. `-` stands for standard output.
    pub(crate) fn parse(file: &str, format: Option<&str>) -> Result<AccessLogConfig, String> {
        let format = match format {
            None | Some("json") => AccessLogFormat::Json,
            Some("text") => AccessLogFormat::Text,
            Some(other) => return Err(format!("access_log_format is `{other}`; choose `json` or `text`")),
        };
        Ok(AccessLogConfig { file: (file != "-").then(|| file.into()), format })
    }
}

impl Entry {
    fn note(&self, note: impl FnOnce(&mut Known)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Notes who sent the request of this task.
pub(crate) fn note_sender(tenant: &Tenant) {
    let _ = ENTRY.try_with(|entry| entry.note(|known| known.tenant = Some(tenant.to_string())));
}

/// Notes the model, class and id of the request of this task.
pub(crate) fn note_inference(model: &str, class: Class, id: &str) {
    let note = |known: &mut Known| {
        (known.model, known.class) = (Some(cut(model)), Some(class));
        if !id.is_empty() {
            known.id = Some(cut(id));
        }
    };
    let _ = ENTRY.try_with(|entry| entry.note(note));
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// The access log of a daemon. Dropping it writes the remaining lines, for at most `patience`:
/// standard output may be a pipe that is not read.
pub(crate) struct AccessLog {
    format: AccessLogFormat,
    /// `None` only while it is being dropped.
    lines: Option<SyncSender<String>>,
    /// Disconnects when the thread has written all lines.
    written: Mutex<Receiver<()>>,
    /// How long `drop` waits for the thread.
    patience: Duration,
    /// Whether the writer opens the file again before the next line.
    reopens: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Opens the log. Adds the number of dropped lines to `dropped`.
    pub(crate) fn open(config: &AccessLogConfig, dropped: Arc<AtomicU64>) -> io::Result<AccessLog> {
        AccessLog::to(open(config)?, config, dropped, ACCESS_LOG_STOP_MAX)
    }

    fn to(
        target: Box<dyn Write + Send>,
        config: &AccessLogConfig,
        dropped: Arc<AtomicU64>,
        patience: Duration,
    ) -> io::Result<AccessLog> {
        let (lines, receiver) = sync_channel(ACCESS_LOG_LINES_MAX);
        let (writes, written) = channel::<()>();
        let reopens = Arc::<AtomicBool>::default();
        let (config, format) = (config.clone(), config.format);
        let writer = Writer {
            target,
            config,
            reopens: reopens.clone(),
            dropped: dropped.clone(),
            text: String::new(),
            lines: 0,
            fails: false,
        };
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            writer.write(&receiver);
            drop(writes);
        })?;
        Ok(AccessLog { format, lines: Some(lines), written: Mutex::new(written), patience, reopens, dropped })
    }

    /// Makes the writer open the file again before the next line, since another program may have
    /// renamed it.
    pub(crate) fn reopen(&self) {
        self.reopens.store(true, Ordering::Relaxed);
    }

    /// Serves a request, and logs it.
    pub(crate) async fn around(&self, protocol: &'static str, request: Request, next: Next) -> Response {
        let entry = Arc::<Entry>::default();
        let (line, began) = (line(protocol, &request), Instant::now());
        let mut pending = Pending { log: self, line, entry: entry.clone(), began };
        let response = ENTRY.scope(entry, next.run(request)).await;
        pending.line.status = Some(status(&response));
        pending.line.response_bytes = response.body().size_hint().exact();
        response
    }

    fn put(&self, line: &Line) {
        let text = match self.format {
            AccessLogFormat::Json => serde_json::to_string(line).unwrap_or_default(),
            AccessLogFormat::Text => text(line),
        };
        let sent = self.lines.as_ref().is_some_and(|lines| lines.try_send(text).is_ok());
        if !sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.lines = None;
        let written = self.written.get_mut().unwrap_or_else(PoisonError::into_inner);
        if written.recv_timeout(self.patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last lines of the access log could not be written in time and are lost");
        }
    }
}

/// A request on its way. It is logged when it is dropped, so that requests of disconnected clients
/// are logged, too.
struct Pending<'l> {
    log: &'l AccessLog,
    line: Line,
    entry: Arc<Entry>,
    began: Instant,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let line = &mut self.line;
        self.entry.note(|known| {
            line.id = known.id.take().or(line.id.take());
            (line.tenant, line.model) = (known.tenant.take(), known.model.take());
            line.class = known.class;
        });
        line.ms = self.began.elapsed().as_secs_f64() * 1e3;
        self.log.put(line);
    }
}

/// A line with the fields that the head of a request has.
fn line(protocol: &'static str, request: &Request) -> Line {
    let text = |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| Some(cut(value.to_str().ok()?)));
    let length = text(request.headers(), header::CONTENT_LENGTH.as_str());
    Line {
        at_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        protocol,
        method: request.method().to_string(),
        path: cut(request.uri().path()),
        id: text(request.headers(), "x-request-id"),
        trace_id: Context::of(request.headers()).map(|context| context.trace_id()),
        request_bytes: length.and_then(|length| length.parse().ok()),
        ..Line::default()
    }
}

/// The HTTP status, or for gRPC the number of its code. A gRPC answer whose headers have no code
/// counts as 0: its code comes in the trailers.
fn status(response: &Response) -> u16 {
    let headers = response.headers();
    let is_grpc =
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    match headers.get("grpc-status").map(|code| tonic::Code::from_bytes(code.as_bytes())) {
        Some(code) => code as u16,
        None if is_grpc => 0,
        None => response.status().as_u16(),
    }
}

/// A line as text. Texts from clients are quoted and escaped, so that they cannot break the line.
fn text(line: &Line) -> String {
    let mut text = format!("{:.3} {} {} {:?}", line.at_s, line.protocol, line.method, line.path);
    let texts = [("tenant", &line.tenant), ("model", &line.model), ("id", &line.id), ("trace_id", &line.trace_id)];
    for (name, value) in texts {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(text, " {name}={value:?}");
        }
    }
    let numbers = [
        ("status", line.status.map(u64::from)),
        ("request_bytes", line.request_bytes),
        ("response_bytes", line.response_bytes),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            let _ = write!(text, " {name}={value}");
        }
    }
    let class = |class: Class| if class == Class::RealTime { "real-time" } else { "best-effort" };
    let _ = line.class.map(|of| write!(text, " class={}", class(of)));
    let _ = write!(text, " ms={:.3}", line.ms);
    text
}

/// Opens the target. A new file is readable for the daemon's user only: lines name tenants and ids.
fn open(config: &AccessLogConfig) -> io::Result<Box<dyn Write + Send>> {
    let append = |path: &Path| OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    Ok(match &config.file {
        Some(path) => Box::new(append(path)?),
        None => Box::new(io::stdout()),
    })
}

/// The state of the writer thread.
struct Writer {
    target: Box<dyn Write + Send>,
    config: AccessLogConfig,
    reopens: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    /// Complete lines that are not written yet.
    text: String,
    /// Their number.
    lines: u64,
    /// Whether the last attempt to write failed.
    fails: bool,
}

impl Writer {
    /// Writes lines until the log is dropped. Flushes whenever no line waits.
    fn write(mut self, lines: &Receiver<String>) {
        loop {
            let next = match lines.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.flush();
                    lines.recv().ok()
                }
                other => other.ok(),
            };
            let Some(line) = next else { return self.flush() };
            if self.reopens.swap(false, Ordering::Relaxed) {
                self.reopen();
            }
            self.text.push_str(&line);
            self.text.push('\n');
            self.lines += 1;
            if self.text.len() >= WRITE_BYTES {
                self.flush();
            }
        }
    }

    /// Writes all lines with one call, so that lines of several processes do not mix. Lines that
    /// cannot be written are counted as dropped.
    fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        let result = self.target.write_all(self.text.as_bytes()).and_then(|()| self.target.flush());
        match &result {
            Ok(()) if self.fails => tracing::info!("the access log is written again"),
            Err(error) if !self.fails => tracing::warn!(%error, "cannot write the access log; its lines are dropped"),
            _ => {}
        }
        self.fails = result.is_err();
        if self.fails {
            self.dropped.fetch_add(self.lines, Ordering::Relaxed);
        }
        self.text.clear();
        self.lines = 0;
    }

    fn reopen(&mut self) {
        self.flush();
        match open(&self.config) {
            Ok(opened) => self.target = opened,
            Err(error) => tracing::error!(%error, "cannot open the access log again; the old file stays in use"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn example() -> Line {
        Line {
            at_s: 1.5,
            protocol: "http",
            method: "POST".into(),
            path: "/v2/a\nb".into(),
            id: Some("r \"1\"".into()),
            tenant: Some("local".into()),
            class: Some(Class::RealTime),
            status: Some(200),
            ms: 2.0,
            ..Line::default()
        }
    }

    #[test]
    fn a_text_line_stays_one_line() {
        let expected = r#"1.500 http POST "/v2/a\nb" tenant="local" id="r \"1\"" status=200 class=real-time ms=2.000"#;
        assert_eq!(text(&example()), expected);
    }

    #[test]
    fn lines_are_written_when_the_log_ends_and_after_the_file_was_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("access.log"), folder.path().join("old.log"));
        let config = AccessLogConfig { file: Some(path.clone()), format: AccessLogFormat::Json };
        let dropped = Arc::new(AtomicU64::new(0));
        let log = AccessLog::open(&config, dropped.clone()).unwrap();
        log.put(&example());
        while std::fs::read_to_string(&path).unwrap().is_empty() {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &old).unwrap();
        log.reopen();
        log.put(&example());
        drop(log);
        for path in [old, path] {
            let text = std::fs::read_to_string(path).unwrap();
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&line["status"], &line["tenant"]), (&200.into(), &"local".into()));
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_new_file_is_for_the_user_of_the_daemon_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let config = AccessLogConfig { file: Some(path.clone()), format: AccessLogFormat::Text };
        drop(AccessLog::open(&config, Arc::default()).unwrap());
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o077, 0);
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted() {
        let config = AccessLogConfig { file: Some("/dev/full".into()), format: AccessLogFormat::Json };
        let dropped = Arc::new(AtomicU64::new(0));
        let log = AccessLog::open(&config, dropped.clone()).unwrap();
        log.put(&example());
        log.put(&example());
        drop(log);
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_end_does_not_wait_for_a_pipe_that_is_not_read() {
        let (unread, pipe) = io::pipe().unwrap();
        let config = AccessLogConfig { file: None, format: AccessLogFormat::Json };
        let log = AccessLog::to(Box::new(pipe), &config, Arc::default(), Duration::from_millis(50)).unwrap();
        // A pipe of Linux holds 64 KiB, and a line has over a hundred bytes.
        for _ in 0..2000 {
            log.put(&example());
        }
        drop(log);
        drop(unread);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let config = AccessLogConfig { file: Some("/nowhere/at/all".into()), format: AccessLogFormat::Text };
        assert!(AccessLog::open(&config, Arc::default()).is_err());
    }
}
