//! A session over the network and its connections. When its connection breaks, the session is kept
//! for a limited time, and its client may resume it on another connection.

use super::relay::{Carried, Steer, carry, part};
use super::tickets::{Connection, Held};
use crate::app::App;
use crate::identity::{Gate, Peer, Reason};
use crate::limits::{CUDA_TOKEN_INTERVAL, WRITE_PAUSE_MAX};
use crate::shutdown::stopped;
use atoll_engine::Tenant;
use atoll_session::{Channel, Code, Pass, Welcome, limits};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::watch::{self, Receiver};
use tokio::time::{Instant, sleep, sleep_until};

/// Runs a session over the network across its connections.
pub(super) struct Keeper {
    pub(super) app: Arc<App>,
    pub(super) tenant: Tenant,
    /// How long it is kept without a connection.
    pub(super) keep: Duration,
    pub(super) held: Held,
}

/// The credentials of a client that has lost its connection.
struct Credentials {
    token: Option<String>,
    peer: Option<Peer>,
    address: SocketAddr,
}

impl Keeper {
    /// Runs a session until it ends, its client ends it or does not reconnect in time, the client's
    /// token is withdrawn, or the daemon stops. `far` is the other end of the socket that the
    /// session reads.
    pub(super) async fn keep(
        mut self,
        first: Connection,
        far: UnixStream,
        session: impl Future<Output = io::Result<()>>,
        stop: Receiver<bool>,
    ) {
        let (over, is_over) = watch::channel(false);
        let running = async {
            let ran = session.await;
            over.send_replace(true);
            ran
        };
        let (ran, ()) = tokio::join!(running, self.pass_on(first, far, is_over, stop));
        if let Err(error) = ran {
            tracing::error!(%error, "cannot run a CUDA session");
        }
        // The ticket ends with `self`, after the session.
    }

    /// Relays the bytes of successive connections. Drops the socket of the session at the end, which
    /// cancels the session's work and ends it.
    async fn pass_on(
        &mut self,
        first: Connection,
        mut far: UnixStream,
        over: Receiver<bool>,
        mut stop: Receiver<bool>,
    ) {
        let mut channel = Channel::new();
        let mut connection = first;
        while let Some(error) = self.connected(&mut channel, &mut connection, &mut far, over.clone()).await {
            let Connection { token, peer, address, stream, in_use, .. } = connection;
            drop((stream, in_use));
            let (tenant, keep_s) = (&self.tenant, self.keep.as_secs_f64());
            if self.keep.is_zero() || !channel.is_confirmed() {
                return tracing::debug!(%address, %tenant, %error, "the client of a CUDA session is gone");
            }
            tracing::info!(%address, %tenant, %error, keep_s, "a CUDA session has lost its connection, and is kept");
            let credentials = Credentials { token, peer, address };
            match self.detached(&mut channel, &credentials, over.clone(), &mut stop).await {
                Some(next) => connection = next,
                None => return,
            }
        }
    }

    /// Serves one connection. Returns the error with which it broke; `None` at the end of the
    /// session.
    async fn connected(
        &mut self,
        channel: &mut Channel,
        connection: &mut Connection,
        far: &mut UnixStream,
        mut over: Receiver<bool>,
    ) -> Option<io::Error> {
        let keep_ms = u32::try_from(self.keep.as_millis()).unwrap_or(u32::MAX);
        let (version, received) = (limits::VERSION, channel.received());
        let pass = Pass { version, keep_ms, received, ticket: self.held.ticket }.write();
        let Connection { stream, token, peer, address, .. } = connection;
        let (app, tenant, steering) = (&self.app, &self.tenant, &self.held.steering);
        let carried = async {
            stream.write_all(&pass).await?;
            stream.flush().await?;
            io::Result::Ok(carry(channel, stream, far, &mut self.held.steer).await)
        };
        // The client can still read what was sent before.
        let withdrawal = async {
            let reason = withdrawn(&app.gate, token.as_deref(), peer.as_ref(), tenant).await;
            note_withdrawal(app, reason, tenant, *address);
            let _ = steering.send(Steer::Close).await;
            sleep(WRITE_PAUSE_MAX).await;
        };
        // A client that acknowledges nothing cannot keep the connection of a session that is over.
        let late = async {
            stopped(&mut over).await;
            sleep(WRITE_PAUSE_MAX).await;
        };
        let carried = tokio::select! {
            carried = carried => carried,
            () = withdrawal => return None,
            () = late => return None,
        };
        match carried {
            Err(error) | Ok(Carried::Broken(error)) => return Some(error),
            Ok(Carried::Near) => part(stream, &[]).await,
            Ok(Carried::Far) => {
                // What the session can take at once; its work is cancelled in any case.
                while let Some(count) = far.try_write(channel.ready()).ok().filter(|count| *count > 0) {
                    channel.consume(count);
                }
            }
            Ok(Carried::Invalid(error)) => {
                app.refuse_unknown(Reason::Protocol);
                tracing::warn!(%address, %tenant, %error, "the client of a CUDA session breaks the protocol");
                part(stream, &[]).await;
            }
        }
        None
    }

    /// Waits for another connection of the client, unless the session itself is over.
    async fn detached(
        &mut self,
        channel: &mut Channel,
        credentials: &Credentials,
        mut over: Receiver<bool>,
        stop: &mut Receiver<bool>,
    ) -> Option<Connection> {
        self.held.disconnect();
        let counts = self.app.cuda.clone();
        let _detached = Detached::new(&counts.detached);
        let Credentials { token, peer, address } = credentials;
        let (until, mut may_expire) = (Instant::now() + self.keep, true);
        loop {
            let (app, tenant) = (&self.app, &self.tenant);
            let mut connection = tokio::select! {
                // The tickets hold the sender until the session's ticket ends.
                arrived = self.held.arrivals.recv() => arrived?,
                () = sleep_until(until), if may_expire => {
                    if self.held.expire() {
                        counts.expired.fetch_add(1, Relaxed);
                        tracing::warn!(%address, %tenant, "the client of a CUDA session did not come back in time");
                        return None;
                    }
                    // A connection has just arrived.
                    may_expire = false;
                    continue;
                }
                reason = withdrawn(&app.gate, token.as_deref(), peer.as_ref(), tenant) => {
                    note_withdrawal(app, reason, tenant, *address);
                    return None;
                }
                () = stopped(&mut over) => return None,
                () = stopped(stop) => return None,
            };
            let address = connection.address;
            match channel.resume(connection.received) {
                Ok(()) => {
                    counts.resumed.fetch_add(1, Relaxed);
                    tracing::info!(%address, %tenant, "a CUDA session goes on with another connection");
                    return Some(connection);
                }
                Err(error) => {
                    app.refuse_unknown(Reason::Ticket);
                    tracing::warn!(%address, %tenant, %error, "a CUDA session cannot go on with a connection");
                    part(&mut connection.stream, &Welcome::refusal(Code::INVALID_VALUE, &error.to_string())).await;
                    drop(connection);
                    self.held.disconnect();
                    may_expire = true;
                }
            }
        }
    }
}

/// Counts a session whose client has no connection, until it is dropped.
struct Detached<'a>(&'a AtomicU64);

impl Detached<'_> {
    fn new(count: &AtomicU64) -> Detached<'_> {
        count.fetch_add(1, Relaxed);
        Detached(count)
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn note_withdrawal(app: &App, reason: Reason, tenant: &Tenant, address: SocketAddr) {
    app.refuse_unknown(reason);
    let reason = reason.label();
    tracing::warn!(%address, %tenant, reason, "the token of a CUDA session was withdrawn");
}

/// Returns when the client is no longer identified as this tenant, with the reason: its token was
/// revoked or has expired. A certificate stays valid for its connection.
async fn withdrawn(gate: &Gate, token: Option<&str>, peer: Option<&Peer>, tenant: &Tenant) -> Reason {
    let mut reloads = gate.reloads();
    loop {
        match gate.identify_by(token, peer) {
            Ok(principal) if principal.tenant == *tenant => {}
            Ok(_) => return Reason::BadToken,
            Err(reason) => return reason,
        }
        tokio::select! {
            // The gate exists as long as the daemon.
            _ = reloads.changed() => {}
            () = sleep(CUDA_TOKEN_INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{IdentityConfig, KeyFile};
    use futures_util::FutureExt;
    use std::net::Ipv4Addr;

    #[tokio::test]
    async fn a_token_is_withdrawn_when_the_keys_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys.json");
        let token = KeyFile::create(&keys, "team".parse().unwrap(), None, "").unwrap();
        let config = IdentityConfig { keys: Some(keys.clone()), ..IdentityConfig::own() };
        let gate = Gate::open(&config, Ipv4Addr::LOCALHOST.into()).unwrap();
        let (tenant, text) = ("team".parse().unwrap(), token.to_string());
        let mut lost = std::pin::pin!(withdrawn(&gate, Some(&text), None, &tenant));
        assert_eq!(lost.as_mut().now_or_never(), None);
        gate.reload().unwrap();
        assert_eq!(lost.as_mut().now_or_never(), None, "it is still valid");
        KeyFile::revoke(&keys, &token.id).unwrap();
        assert_eq!(lost.as_mut().now_or_never(), None, "until the file is read again");
        gate.reload().unwrap();
        assert_eq!(lost.await, Reason::BadToken);
    }
}
