//! The listener, sessions and their ends.

use crate::backend::CudaBackend;
use crate::outgoing::Outgoing;
use crate::recording::Recordings;
use atoll_cuda::Gpu;
use atoll_session::{
    Backend, Code, FRAME_BYTES, Frame, HELLO_BYTES, Hello, Output, Refused, Replayer, Report, Span, Terms, Welcome,
    limits,
};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time in which a client must send its greeting.
const HELLO_TIME: Duration = Duration::from_secs(10);

/// Number of ended sessions whose reports are kept.
const ENDED_MAX: usize = 1024;

/// A buffer of records above this size is freed after its message.
const BODY_BYTES_KEPT: usize = 8 << 20;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device of all sessions.
    pub gpu: Gpu,
    /// Device memory of a session in bytes. Half of the free memory if not set.
    pub session_bytes: Option<u64>,
    /// Maximum number of sessions at once.
    pub sessions_max: usize,
    /// The files into which sessions are recorded, if they are.
    pub recordings: Option<Arc<Recordings>>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The socket cannot be used.
    #[error("cannot listen on unix:{}: {error}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// The end of a session.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What it did.
    pub report: Report,
    /// Why it ended; `None` if the client closed the connection.
    pub why: Option<String>,
}

/// A running server. It stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_stopping: bool,
    next: u64,
    open: HashMap<u64, (UnixStream, Option<JoinHandle<()>>)>,
    ended: VecDeque<Ended>,
    ended_count: u64,
}

impl Server {
    /// Listens on a Unix socket. Replaces one that a stopped server has left.
    pub fn start(options: Options, path: &Path) -> Result<Server, StartError> {
        let shared = Arc::new(Shared { options, state: Mutex::default(), changed: Condvar::new() });
        let failed = |error: io::Error| StartError::Listen { path: path.to_owned(), error };
        let listener = bind(path).map_err(failed)?;
        let accepting = listener.try_clone().map_err(failed)?;
        let mut server = Server { shared: shared.clone(), listener, thread: None, path: path.to_owned() };
        let run = move || accept(&shared, &accepting);
        let thread = std::thread::Builder::new().name("session-accept".to_owned()).spawn(run);
        server.thread = Some(thread.map_err(failed)?);
        Ok(server)
    }

    /// Number of open sessions.
    pub fn sessions(&self) -> usize {
        self.shared.lock().open.len()
    }

    /// Number of sessions that have ended.
    pub fn ended(&self) -> u64 {
        self.shared.lock().ended_count
    }

    /// Waits until this many sessions have ended, or until the time has passed. Returns the ended
    /// sessions that are kept.
    pub fn wait_ended(&self, count: u64, time: Duration) -> Vec<Ended> {
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, time, |state| state.ended_count < count);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended.iter().cloned().collect()
    }
}

/// Accepts connections until the listener is shut down.
fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => shared.begin(stream),
            Err(_) if shared.lock().is_stopping => return,
            // The client is gone, or too many files are open. Later connections may succeed.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        if shared.lock().is_stopping {
            return;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_stopping = true;
        let mut threads: Vec<JoinHandle<()>> = self.thread.take().into_iter().collect();
        for (stream, thread) in state.open.values_mut() {
            shut_down(stream);
            threads.extend(thread.take());
        }
        drop(state);
        // Wakes the thread that waits for connections.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for thread in threads {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of a session.
    fn begin(self: &Arc<Shared>, stream: UnixStream) {
        if !is_own_user(&stream) {
            return;
        }
        let Ok(kept) = stream.try_clone() else { return };
        let mut state = self.lock();
        if state.is_stopping {
            return;
        }
        let number = state.next;
        state.next += 1;
        let is_full = state.open.len() >= self.options.sessions_max;
        let shared = self.clone();
        let run = move || shared.serve(number, stream, is_full);
        let thread = std::thread::Builder::new().name("session".to_owned()).spawn(run);
        if let Ok(thread) = thread {
            // The session's thread needs the lock held here to remove this entry, so the entry
            // exists by then.
            state.open.insert(number, (kept, Some(thread)));
        }
    }

    fn serve(&self, number: u64, stream: UnixStream, is_full: bool) {
        let session = || serve(stream, |hello, _| admit(hello, &self.options, is_full));
        // A panic ends this session only.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(session));
        let ended = ended.unwrap_or_else(|_| Ended {
            report: Report::default(),
            why: Some("the session's thread panicked: a bug of the server".to_owned()),
        });
        let mut state = self.lock();
        state.open.remove(&number);
        state.ended.push_back(ended);
        state.ended_count += 1;
        if state.ended.len() > ENDED_MAX {
            state.ended.pop_front();
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// Binds a Unix socket. Replaces a socket file at which no server answers.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let answer = UnixStream::connect(path);
            if !answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                return Err(error);
            }
            // A plain file gives the same errors, and must not be removed.
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Whether the client is the server's user or root.
fn is_own_user(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

/// A backend with its memory, and the encoded facts about its device; or why a session is refused.
pub type Admission<B> = Result<(B, Span, Vec<u8>), (Code, String)>;

/// Serves a session from its greeting to its end, on this thread. `admit` gets the greeting and the
/// terms; the version has been checked.
pub fn serve<B: Backend>(mut stream: UnixStream, admit: impl FnOnce(Hello, &str) -> Admission<B>) -> Ended {
    let ended = |why: String| Ended { report: Report::default(), why: Some(why) };
    let mut replayer = match greet(&mut stream, admit) {
        Ok(replayer) => replayer,
        Err(why) => return ended(why),
    };
    let why = match stream.try_clone() {
        Ok(other) => run(&mut stream, &mut Outgoing::new(other), &mut replayer).err(),
        Err(error) => Some(error.to_string()),
    };
    shut_down(&stream);
    let report = replayer.report();
    // Releases all that the session has on the device before the session counts as ended.
    drop(replayer);
    Ended { report, why }
}

/// Closes a connection in both directions.
fn shut_down(stream: &UnixStream) {
    // The client may have closed it already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Reads the greeting, and answers it with facts about the device or with a refusal.
fn greet<B: Backend>(
    stream: &mut UnixStream,
    admit: impl FnOnce(Hello, &str) -> Admission<B>,
) -> Result<Replayer<B>, String> {
    let text = |error: io::Error| format!("no greeting came: {error}");
    stream.set_read_timeout(Some(HELLO_TIME)).map_err(text)?;
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).map_err(text)?;
    let hello = Hello::read(&bytes).map_err(|error| format!("not a session client: {error}"))?;
    let has_version = hello.version == limits::VERSION;
    // The greeting of another version may end here.
    let mut terms = vec![0; if has_version { hello.terms_bytes as usize } else { 0 }];
    stream.read_exact(&mut terms).map_err(text)?;
    stream.set_read_timeout(None).map_err(text)?;
    let terms = String::from_utf8_lossy(&terms);
    let mut outgoing = Outgoing::new(stream.try_clone().map_err(text)?);
    let admitted = if has_version { admit(hello, &terms) } else { Err(other_version(hello.version)) };
    match admitted {
        Ok((backend, memory, facts)) => {
            let facts = &facts[..facts.len().min(limits::FACTS_BYTES_MAX as usize)];
            let mut replayer = Replayer::new(backend, memory);
            let stores = Terms::read(&terms).is_ok_and(|terms| terms.stored_functions.is_some());
            let offer = if stores { replayer.offer() } else { Vec::new() };
            let welcome = Welcome {
                version: limits::VERSION,
                refusal: None,
                memory_at: memory.at,
                memory_bytes: memory.bytes,
                facts_bytes: facts.len() as u32,
                offer_bytes: offer.len() as u32,
            };
            let head = welcome.write();
            let sent = [&head[..], facts, &offer].iter().try_for_each(|part| outgoing.write(part));
            sent.and_then(|()| outgoing.flush()).map_err(|lost| lost.to_string())?;
            Ok(replayer)
        }
        Err((code, why)) => {
            // The client may have closed the connection; the reason of the refusal is returned in
            // any case.
            let _ = stream.write_all(&Welcome::refusal(code, &why));
            Err(why)
        }
    }
}

/// The refusal of a client that speaks another version.
pub fn other_version(version: u32) -> (Code, String) {
    let text = format!("the client speaks version {version}, the server {}", limits::VERSION);
    (Code::SYSTEM_DRIVER_MISMATCH, text)
}

fn admit(hello: Hello, options: &Options, is_full: bool) -> Admission<CudaBackend> {
    if is_full {
        return Err((Code::DEVICE_UNAVAILABLE, format!("all {} sessions are taken", options.sessions_max)));
    }
    let wanted = match (hello.memory_bytes, options.session_bytes) {
        (0, most) => most,
        (wanted, Some(most)) => Some(wanted.min(most)),
        (wanted, None) => Some(wanted),
    };
    let failed = |error: atoll_cuda::CudaError| (Code(error.code), error.to_string());
    let mut backend = CudaBackend::new(&options.gpu, wanted).map_err(failed)?;
    if let Some(recordings) = &options.recordings {
        let failed = |error: io::Error| (Code::OPERATING_SYSTEM, format!("cannot record the session: {error}"));
        backend.record_into(recordings).map_err(failed)?;
    }
    let facts = backend.facts().map_err(failed)?.write();
    let memory = backend.memory();
    Ok((backend, memory, facts))
}

/// Carries out messages until the client closes the connection. Between two messages that is no
/// error.
fn run<B: Backend>(stream: &mut UnixStream, outgoing: &mut Outgoing, replayer: &mut Replayer<B>) -> Result<(), String> {
    let mut body = Vec::new();
    loop {
        let mut head = [0; FRAME_BYTES];
        if !read_head(stream, &mut head)? {
            return Ok(());
        }
        let frame = Frame::read(&head).map_err(|error| format!("the client sent an invalid message: {error}"))?;
        body.clear();
        body.shrink_to(BODY_BYTES_KEPT);
        // The buffer grows with the bytes that arrive, not with the announced size.
        let read = stream.take(frame.bytes).read_to_end(&mut body).map_err(|error| error.to_string())?;
        if (read as u64) < frame.bytes {
            return Err(format!("the client left after {read} of {} bytes of a message", frame.bytes));
        }
        replayer.run(frame, &body, outgoing).map_err(|refused: Refused| refused.to_string())?;
        outgoing.flush().map_err(|lost| lost.to_string())?;
    }
}

/// Reads the head of a message. Returns false if the client closed the connection before it.
fn read_head(stream: &mut UnixStream, head: &mut [u8; FRAME_BYTES]) -> Result<bool, String> {
    let mut read = 0;
    while read < head.len() {
        match stream.read(&mut head[read..]) {
            Ok(0) if read == 0 => return Ok(false),
            Ok(0) => return Err(format!("the client left after {read} bytes of a message's head")),
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && read == 0 => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(true)
}
