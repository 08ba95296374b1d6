//! Listeners, sessions and their ends.

use crate::backend::CudaBackend;
use crate::connection::{Connection, Outgoing};
use atoll_cuda::Gpu;
use atoll_session::{
    Address, Backend, Code, FRAME_BYTES, Frame, HELLO_BYTES, Hello, Lost, Output, Refused, Replayer, Report, Span,
    Welcome, limits,
};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
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
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Sessions over TCP are not encrypted.
    #[error(
        "{0} is not a loopback address: sessions over TCP are neither encrypted nor authenticated; \
         listen on 127.0.0.1 and forward the port, for example by ssh -L"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be used.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: Address,
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
    listeners: Vec<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    tcp: Option<SocketAddr>,
    socket: Option<PathBuf>,
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
    open: HashMap<u64, (Connection, Option<JoinHandle<()>>)>,
    ended: VecDeque<Ended>,
    ended_count: u64,
}

impl Server {
    /// Listens on an address. Replaces a Unix socket that a stopped server has left.
    pub fn start(options: Options, address: &Address) -> Result<Server, StartError> {
        let shared = Arc::new(Shared { options, state: Mutex::default(), changed: Condvar::new() });
        let failed = |error: io::Error| StartError::Listen { address: address.clone(), error };
        let mut server = Server { shared, listeners: Vec::new(), threads: Vec::new(), tcp: None, socket: None };
        match address {
            Address::Unix(path) => {
                let listener = bind(path).map_err(failed)?;
                server.socket = Some(path.clone());
                server.listeners.push(listener.as_fd().try_clone_to_owned().map_err(failed)?);
                server.accept(move || Ok(Connection::Unix(listener.accept()?.0))).map_err(failed)?;
            }
            Address::Tcp(text) => {
                let first = text.to_socket_addrs().map_err(failed)?.next();
                let first = first.ok_or_else(|| failed(io::Error::other("the host has no address")))?;
                if !first.ip().is_loopback() {
                    return Err(StartError::NotLoopback(first));
                }
                let listener = TcpListener::bind(first).map_err(failed)?;
                server.tcp = Some(listener.local_addr().map_err(failed)?);
                server.listeners.push(listener.as_fd().try_clone_to_owned().map_err(failed)?);
                let accept = move || {
                    let stream = listener.accept()?.0;
                    stream.set_nodelay(true)?;
                    Ok(Connection::Tcp(stream))
                };
                server.accept(accept).map_err(failed)?;
            }
        }
        Ok(server)
    }

    /// The TCP address that the server listens on. It has the port that the system chose if the
    /// given port was 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
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

    /// Starts the thread that accepts connections until the listener is shut down.
    fn accept(&mut self, accept: impl Fn() -> io::Result<Connection> + Send + 'static) -> io::Result<()> {
        let shared = self.shared.clone();
        let run = move || {
            loop {
                match accept() {
                    Ok(connection) => shared.begin(connection),
                    Err(_) if shared.lock().is_stopping => return,
                    // The client is gone, or too many files are open. Later connections may
                    // succeed.
                    Err(_) => std::thread::sleep(Duration::from_millis(10)),
                }
                if shared.lock().is_stopping {
                    return;
                }
            }
        };
        self.threads.push(std::thread::Builder::new().name("session-accept".to_owned()).spawn(run)?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_stopping = true;
        let mut threads: Vec<JoinHandle<()>> = std::mem::take(&mut self.threads);
        for (connection, thread) in state.open.values_mut() {
            connection.shutdown();
            threads.extend(thread.take());
        }
        drop(state);
        for listener in &self.listeners {
            // Wakes the thread that waits for connections.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        for thread in threads {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of a session.
    fn begin(self: &Arc<Shared>, connection: Connection) {
        if !is_own_user(&connection) {
            return;
        }
        let Ok(kept) = connection.try_clone() else { return };
        let mut state = self.lock();
        if state.is_stopping {
            return;
        }
        let number = state.next;
        state.next += 1;
        let is_full = state.open.len() >= self.options.sessions_max;
        let shared = self.clone();
        let run = move || shared.serve(number, connection, is_full);
        let thread = std::thread::Builder::new().name("session".to_owned()).spawn(run);
        if let Ok(thread) = thread {
            // The session's thread needs the lock held here to remove this entry, so the entry
            // exists by then.
            state.open.insert(number, (kept, Some(thread)));
        }
    }

    fn serve(&self, number: u64, connection: Connection, is_full: bool) {
        let session = || serve(connection, |hello, _| admit(hello, &self.options, is_full));
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

/// Whether the client of a Unix socket is the server's user or root.
fn is_own_user(connection: &Connection) -> bool {
    let Connection::Unix(stream) = connection else { return true };
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

/// A backend with its memory, and the encoded facts about its device; or why a session is refused.
pub type Admission<B> = Result<(B, Span, Vec<u8>), (Code, String)>;

/// Serves a session from its greeting to its end, on this thread. `admit` gets the greeting and the
/// terms; the version has been checked.
pub fn serve<B: Backend>(mut connection: Connection, admit: impl FnOnce(Hello, &str) -> Admission<B>) -> Ended {
    let ended = |why: String| Ended { report: Report::default(), why: Some(why) };
    let mut replayer = match greet(&mut connection, admit) {
        Ok(replayer) => replayer,
        Err(why) => return ended(why),
    };
    let why = match connection.try_clone() {
        Ok(other) => run(&mut connection, &mut Outgoing::new(other), &mut replayer).err(),
        Err(error) => Some(error.to_string()),
    };
    connection.shutdown();
    let report = replayer.report();
    // Releases all that the session has on the device before the session counts as ended.
    drop(replayer);
    Ended { report, why }
}

/// Reads the greeting, and answers it with facts about the device or with a refusal.
fn greet<B: Backend>(
    connection: &mut Connection,
    admit: impl FnOnce(Hello, &str) -> Admission<B>,
) -> Result<Replayer<B>, String> {
    let text = |error: io::Error| format!("no greeting came: {error}");
    connection.set_read_timeout(Some(HELLO_TIME)).map_err(text)?;
    let mut bytes = [0; HELLO_BYTES];
    connection.read_exact(&mut bytes).map_err(text)?;
    let hello = Hello::read(&bytes).map_err(|error| format!("not a session client: {error}"))?;
    let has_version = hello.version == limits::VERSION;
    // The greeting of another version may end here.
    let mut terms = vec![0; if has_version { hello.terms_bytes as usize } else { 0 }];
    connection.read_exact(&mut terms).map_err(text)?;
    connection.set_read_timeout(None).map_err(text)?;
    let terms = String::from_utf8_lossy(&terms);
    let mut outgoing = Outgoing::new(connection.try_clone().map_err(text)?);
    let admitted = if has_version { admit(hello, &terms) } else { Err(other_version(hello.version)) };
    match admitted {
        Ok((backend, memory, facts)) => {
            welcome(&mut outgoing, None, (memory.at, memory.bytes), &facts).map_err(|lost| lost.to_string())?;
            Ok(Replayer::new(backend, memory))
        }
        Err((code, why)) => {
            // The client may have closed the connection; the reason of the refusal is returned in
            // any case.
            let _ = welcome(&mut outgoing, Some(code), (0, 0), why.as_bytes());
            Err(why)
        }
    }
}

fn other_version(version: u32) -> (Code, String) {
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
    let backend = CudaBackend::new(&options.gpu, wanted).map_err(failed)?;
    let facts = backend.facts().map_err(failed)?.write();
    let memory = backend.memory();
    Ok((backend, memory, facts))
}

fn welcome(
    outgoing: &mut Outgoing,
    refusal: Option<Code>,
    (memory_at, memory_bytes): (u64, u64),
    facts: &[u8],
) -> Result<(), Lost> {
    let facts = &facts[..facts.len().min(limits::FACTS_BYTES_MAX as usize)];
    let facts_bytes = facts.len() as u32;
    let welcome = Welcome { version: limits::VERSION, refusal, memory_at, memory_bytes, facts_bytes };
    outgoing.write(&welcome.write())?;
    outgoing.write(facts)?;
    outgoing.flush()
}

/// Carries out messages until the client closes the connection. Between two messages that is no
/// error.
fn run<B: Backend>(
    connection: &mut Connection,
    outgoing: &mut Outgoing,
    replayer: &mut Replayer<B>,
) -> Result<(), String> {
    let mut body = Vec::new();
    loop {
        let mut head = [0; FRAME_BYTES];
        if !read_head(connection, &mut head)? {
            return Ok(());
        }
        let frame = Frame::read(&head).map_err(|error| format!("the client sent an invalid message: {error}"))?;
        body.clear();
        body.shrink_to(BODY_BYTES_KEPT);
        // The buffer grows with the bytes that arrive, not with the announced size.
        let read = connection.take(frame.bytes).read_to_end(&mut body).map_err(|error| error.to_string())?;
        if (read as u64) < frame.bytes {
            return Err(format!("the client left after {read} of {} bytes of a message", frame.bytes));
        }
        replayer.run(frame, &body, outgoing).map_err(|refused: Refused| refused.to_string())?;
        outgoing.flush().map_err(|lost| lost.to_string())?;
    }
}

/// Reads the head of a message. Returns false if the client closed the connection before it.
fn read_head(connection: &mut Connection, head: &mut [u8; FRAME_BYTES]) -> Result<bool, String> {
    let mut read = 0;
    while read < head.len() {
        match connection.read(&mut head[read..]) {
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
