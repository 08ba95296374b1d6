//! The control socket: tenants deploy and call functions and keep objects.
//!
//! The kernel reports a peer's user id, and the configuration maps it to a tenant
//! (`identity/access.rs`). What the peer may access follows from the tenant of its connection only,
//! never from the contents of a request. One task serves each connection, one request at a time. If
//! a peer disconnects, its call is cancelled.

mod admission;
mod cuda_sessions;
pub(crate) mod devices;
mod futures;
mod graphs;
mod held;
mod instances;
mod invoke;
mod leases;
pub(crate) mod limits;
mod refusal;
mod requests;
mod ring;
mod seats;
mod session;
pub(crate) mod status;
mod trace;
pub(crate) mod usage;

use crate::app::App;
use crate::config::{ControlConfig, SessionsConfig};
use crate::cuda::{self, Addresses, Registry, Tickets, Warm};
use crate::deployed::Deployed;
use crate::identity::Reason;
use crate::limits::{CUDA_CONNECTIONS_PER_ADDRESS_DEFAULT, CUDA_KEEP_DEFAULT, HELD_CHECK_INTERVAL};
use crate::places::Closed;
use crate::shutdown::stopped;
use atoll_control::WireError;
use atoll_store::Store;
use seats::{MADE_ROOM, Seats};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Pause after `accept` failed, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The state that all control connections share.
pub(crate) struct Control {
    pub(crate) app: Arc<App>,
    pub(crate) store: Arc<Store>,
    pub(crate) deployed: Arc<Deployed>,
    /// Calls in the background.
    futures: Arc<futures::Futures>,
    /// Memory files of answers that clients hold.
    held: Arc<held::HeldFiles>,
    /// Tickets and addresses of CUDA sessions over the network.
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) addresses: Arc<Addresses>,
    /// Code of CUDA programs that is kept between sessions.
    pub(crate) warm: Arc<Warm>,
    /// The open CUDA sessions.
    pub(crate) cuda: Arc<Registry>,
    /// The places for connections.
    seats: Seats,
}

/// A listening socket. Dropping it removes its file, unless the service manager owns it.
pub(crate) struct ControlListener {
    listener: UnixListener,
    path: PathBuf,
    is_inherited: bool,
}

impl ControlListener {
    /// Binds the socket with these permissions. A stale socket of an exited daemon is replaced; a
    /// socket that still accepts connections is an error.
    pub(crate) fn bind(config: &ControlConfig, mode: u32) -> io::Result<ControlListener> {
        let path = config.socket.clone();
        if fs::symlink_metadata(&path).is_ok() && std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // The socket gets its permissions under a temporary name, then replaces the stale one by a
        // rename.
        let staging = path.with_extension(format!("{}.partial", std::process::id()));
        let _ = fs::remove_file(&staging);
        let listener = UnixListener::bind(&staging)?;
        let named = fs::set_permissions(&staging, Permissions::from_mode(mode))
            .and_then(|()| check_replaceable(&path))
            .and_then(|()| fs::rename(&staging, &path));
        named.inspect_err(|_| drop(fs::remove_file(&staging)))?;
        Ok(ControlListener { listener, path, is_inherited: false })
    }

    /// Takes a socket that the service manager passed.
    pub(crate) fn adopt(
        listener: std::os::unix::net::UnixListener,
        config: &ControlConfig,
    ) -> io::Result<ControlListener> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(ControlListener { listener, path: config.socket.clone(), is_inherited: true })
    }
}

/// Replaces sockets only, so that a mistyped path cannot delete a file.
fn check_replaceable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"))
        }
        _ => Ok(()),
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        if !self.is_inherited {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Control {
    pub(crate) fn new(
        app: Arc<App>,
        store: Arc<Store>,
        deployed: Arc<Deployed>,
        sessions: Option<SessionsConfig>,
    ) -> Control {
        let keep = sessions.map_or(CUDA_KEEP_DEFAULT, |sessions| sessions.keep);
        let per_address = sessions.map_or(CUDA_CONNECTIONS_PER_ADDRESS_DEFAULT, |sessions| sessions.per_address);
        let (tickets, addresses) = (Arc::new(Tickets::new(keep)), Arc::new(Addresses::new(per_address)));
        let warm = Arc::new(Warm::new(app.cuda.clone()));
        let (futures, held, cuda, seats) = (Arc::default(), Arc::default(), Arc::default(), Seats::default());
        Control { app, store, deployed, futures, held, tickets, addresses, warm, cuda, seats }
    }

    /// Serves the socket until `stop` turns true, then lets running requests continue for `drain`.
    pub(crate) async fn serve(
        self: Arc<Self>,
        socket: ControlListener,
        mut stop: watch::Receiver<bool>,
        drain: Duration,
    ) {
        let mut sessions = JoinSet::new();
        let mut held = tokio::time::interval(HELD_CHECK_INTERVAL);
        held.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = socket.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        sessions.spawn(self.clone().connection(stream, stop.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a control connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = sessions.join_next() => {}
                _ = held.tick() => self.held.check(),
                () = stopped(&mut stop) => break,
            }
        }
        drop(socket);
        let finished = async { while sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, finished).await.is_err() {
            tracing::warn!(
                sessions = sessions.len(),
                drain_s = drain.as_secs_f64(),
                "cancelling control requests that did not finish in time"
            );
            sessions.shutdown().await;
        }
    }

    async fn connection(self: Arc<Self>, stream: UnixStream, stop: watch::Receiver<bool>) {
        let uid = match stream.peer_cred() {
            Ok(peer) => peer.uid(),
            Err(error) => return tracing::warn!(%error, "cannot determine the user of a control connection"),
        };
        let seat = match self.seats.take(uid, self.app.gate.access().is_operator(uid)) {
            Ok((seat, makes_room)) => {
                if makes_room {
                    self.app.recorder.closed.note(Closed::MadeRoom);
                }
                seat
            }
            Err(refused) => {
                self.app.refuse_unknown(Reason::Connections);
                tracing::warn!(uid, "{refused}; closing a further one");
                return session::turn_away(&stream, refused.to_string());
            }
        };
        let mut waiting = stop.clone();
        let is_session = tokio::select! {
            is_session = cuda::is_session(&stream) => is_session,
            () = seat.closing() => return session::turn_away(&stream, MADE_ROOM.into()),
            () = stopped(&mut waiting) => return,
        };
        let served = match is_session {
            // The connection belongs to the session until that ends.
            Ok(true) if seat.works() => cuda::serve(self.clone(), stream, uid, stop).await.map_err(WireError::Io),
            Ok(true) => return session::turn_away(&stream, MADE_ROOM.into()),
            Ok(false) => session::run(&self, stream, uid, &seat, stop).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = served {
            tracing::debug!(uid, %error, "a control connection broke");
        }
    }
}
