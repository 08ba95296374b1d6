//! A TCP proxy whose connections break.

use anyhow::Result;
use atoll_core::rng::Rng;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Least bytes before the first connection breaks: enough for the greeting, without which there is no
/// session to resume.
const GREETING_BYTES: i64 = 4096;

/// Bound of the random bytes before a connection breaks: a third of the programs' largest copy.
const BYTES_MAX: u64 = 12_000;

/// Passes connections on. It stops with the process.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: Mutex<String>,
    /// The random numbers; `None` if connections break on demand only.
    random: Option<Mutex<Rng>>,
    is_down: AtomicBool,
    cuts: AtomicU64,
    /// All pairs of a client's and a daemon's connection.
    open: Mutex<Vec<Arc<Pair>>>,
}

struct Pair {
    client: TcpStream,
    daemon: TcpStream,
    /// Bytes in both directions until the pair breaks.
    left: AtomicI64,
    /// Whether the daemon's connection stays open when the client's is closed.
    is_silent: AtomicBool,
}

impl Proxy {
    /// Passes connections on to an address. With a seed, each breaks after a random number of bytes.
    pub(crate) fn start(to: &str, seed: Option<u64>) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to: Mutex::new(to.to_owned()),
            random: seed.map(|seed| Mutex::new(Rng::new(seed))),
            is_down: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // The client may be gone, or the daemon not be there.
                let _ = accepting.pass_on(client);
            }
        });
        Ok(Proxy { address, shared })
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// How many connections have broken after random numbers of bytes.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(SeqCst)
    }

    /// Passes further connections on to another address.
    pub(crate) fn redirect(&self, to: &str) {
        *self.shared.to.lock().unwrap() = to.to_owned();
    }

    /// Breaks all connections. While it is down, it accepts no others.
    pub(crate) fn cut(&self, is_down: bool) {
        self.shared.is_down.store(is_down, SeqCst);
        for pair in self.shared.open.lock().unwrap().drain(..) {
            pair.close();
        }
    }

    /// Breaks the clients' side of all connections. The daemon's side stays open, and is silent.
    pub(crate) fn cut_silently(&self) {
        for pair in self.shared.open.lock().unwrap().iter() {
            pair.is_silent.store(true, SeqCst);
            // The client may be gone.
            let _ = pair.client.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again.
    pub(crate) fn restore(&self) {
        self.shared.is_down.store(false, SeqCst);
    }
}

impl Shared {
    fn pass_on(self: &Arc<Shared>, client: TcpStream) -> Result<()> {
        if self.is_down.load(SeqCst) {
            return Ok(());
        }
        let to = self.to.lock().unwrap().clone();
        let daemon = TcpStream::connect(to)?;
        client.set_nodelay(true)?;
        daemon.set_nodelay(true)?;
        let mut open = self.open.lock().unwrap();
        let earliest = if open.is_empty() { GREETING_BYTES } else { 0 };
        let left = self.bytes_left().map_or(i64::MAX, |bytes| earliest + bytes as i64);
        let (left, is_silent) = (AtomicI64::new(left), AtomicBool::new(false));
        let pair = Arc::new(Pair { client, daemon, left, is_silent });
        open.push(pair.clone());
        drop(open);
        for to_daemon in [true, false] {
            let (shared, pair) = (self.clone(), pair.clone());
            std::thread::spawn(move || {
                if pair.copy(to_daemon) {
                    shared.cuts.fetch_add(1, SeqCst);
                }
                if !pair.is_silent.load(SeqCst) {
                    pair.close();
                }
            });
        }
        Ok(())
    }

    /// The bytes after which the next connection breaks.
    fn bytes_left(&self) -> Option<u64> {
        Some(self.random.as_ref()?.lock().unwrap().below(BYTES_MAX))
    }
}

impl Pair {
    /// Copies bytes in one direction. Returns true if this direction used up the bytes after which the
    /// pair breaks.
    fn copy(&self, to_daemon: bool) -> bool {
        let (mut from, mut to) = if to_daemon { (&self.client, &self.daemon) } else { (&self.daemon, &self.client) };
        let mut bytes = [0; 8192];
        loop {
            let Ok(count @ 1..) = from.read(&mut bytes) else { return false };
            let left = self.left.fetch_sub(count as i64, SeqCst);
            let passed_on = usize::try_from(left).unwrap_or(0).min(count);
            if self.is_silent.load(SeqCst) || to.write_all(&bytes[..passed_on]).is_err() {
                return false;
            }
            if passed_on < count {
                // Only the direction that has used up the bytes counts the cut.
                return left >= 0;
            }
        }
    }

    fn close(&self) {
        for stream in [&self.client, &self.daemon] {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
