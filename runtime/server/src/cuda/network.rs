//! Sessions over the network: credentials and the greeting, then the same session as on the control
//! socket.

use super::begin::Caller;
use super::relay::{keep_alive, relay};
use super::socket::run;
use crate::control::Control;
use crate::identity::{Gate, Peer, Principal, Reason};
use crate::limits::CUDA_TOKEN_INTERVAL;
use crate::places::Place;
use crate::requests::error::RequestError;
use crate::shutdown::stopped;
use atoll_engine::Tenant;
use atoll_session::{Code, ENTRY_BYTES, Entry, HELLO_BYTES, Hello, Welcome, limits};
use atoll_session_server::other_version;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

/// How long a client has to read the last bytes before its connection is closed.
const PARTING_TIME: Duration = Duration::from_secs(1);

/// Most bytes that are read from a client that is refused, so that it can read why: unread bytes
/// would reset the connection.
const PARTING_BYTES: u64 = 64 << 10;

/// A connection over the network.
pub(crate) struct Remote<S> {
    /// Its bytes, without TLS.
    pub(crate) stream: S,
    /// The socket, which [`watch`] has returned.
    pub(crate) socket: OwnedFd,
    /// The client's address.
    pub(crate) address: SocketAddr,
    /// The tenant of its certificate, if it has one.
    pub(crate) peer: Option<Peer>,
}

/// Makes the system notice a client's machine that has vanished. Returns the socket, on which a
/// session notices that its client is gone.
pub(crate) fn watch(stream: &TcpStream) -> io::Result<OwnedFd> {
    keep_alive(stream)?;
    stream.as_fd().try_clone_to_owned()
}

/// Serves a session over the network until it ends, its client's token is withdrawn, or the daemon
/// stops. Until the greeting is complete, the port may close the connection as one of HTTP.
pub(crate) async fn serve_remote<S>(
    control: Arc<Control>,
    remote: Remote<S>,
    place: &Arc<Place>,
    mut stop: Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Remote { mut stream, socket, address, peer } = remote;
    let app = control.app.clone();
    let greeted = tokio::select! {
        greeted = greet(&app.gate, &mut stream, peer.as_ref()) => greeted,
        () = place.closing() => return,
        () = stopped(&mut stop) => return,
    };
    let Greeting { bytes, token, principal } = match greeted {
        Ok(greeting) => greeting,
        Err(NoGreeting::Broken(error)) => {
            return tracing::debug!(%address, %error, "a connection broke before the greeting of a CUDA session");
        }
        Err(NoGreeting::Refused { reason, code, why }) => {
            app.refuse_unknown(reason);
            tracing::warn!(%address, reason = reason.label(), why, "a CUDA session is refused");
            return part(&mut stream, &Welcome::refusal(code, &why)).await;
        }
    };
    // From here on, the connection is not closed for another one.
    let _running = place.request();
    let (near, far) = match pair(&bytes).await {
        Ok(pair) => pair,
        Err(error) => return tracing::error!(%error, "cannot make the sockets of a CUDA session"),
    };
    let tenant = principal.tenant.clone();
    let session = run(control, (near, socket), Caller::Client(principal, address), stop);
    let passing = async {
        tokio::select! {
            () = relay(&mut stream, far) => {}
            reason = withdrawn(&app.gate, token.as_deref(), peer.as_ref(), &tenant) => {
                app.refuse_unknown(reason);
                let reason = reason.label();
                tracing::warn!(%address, %tenant, reason, "the token of a CUDA session was withdrawn");
            }
        }
        part(&mut stream, &[]).await;
    };
    let (ran, ()) = tokio::join!(session, passing);
    if let Err(error) = ran {
        tracing::error!(%error, "cannot run a CUDA session");
    }
}

/// The greeting of an identified client.
struct Greeting {
    /// [`Hello`] and the terms, for the session.
    bytes: Vec<u8>,
    token: Option<String>,
    principal: Arc<Principal>,
}

/// Why there is no greeting.
enum NoGreeting {
    /// The connection broke.
    Broken(io::Error),
    /// The client is refused, with this error.
    Refused { reason: Reason, code: Code, why: String },
}

impl From<io::Error> for NoGreeting {
    fn from(error: io::Error) -> NoGreeting {
        NoGreeting::Broken(error)
    }
}

/// Reads the version, the token and the greeting of a client, and identifies it.
async fn greet(
    gate: &Gate,
    stream: &mut (impl AsyncRead + Unpin),
    peer: Option<&Peer>,
) -> Result<Greeting, NoGreeting> {
    let protocol = |(code, why)| NoGreeting::Refused { reason: Reason::Protocol, code, why };
    let invalid = |error: atoll_session::WireError| {
        protocol((Code::INVALID_VALUE, format!("this is no client of sessions over the network: {error}")))
    };
    let mut entry = [0; ENTRY_BYTES];
    stream.read_exact(&mut entry).await?;
    let entry = Entry::read(&entry).map_err(invalid)?;
    if entry.version != limits::VERSION {
        return Err(protocol(other_version(entry.version)));
    }
    let mut token = vec![0; entry.token_bytes as usize];
    stream.read_exact(&mut token).await?;
    let token = (!token.is_empty()).then(|| String::from_utf8_lossy(&token).into_owned());
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let mut bytes = hello.to_vec();
    let hello = Hello::read(&hello).map_err(invalid)?;
    if hello.version != limits::VERSION {
        return Err(protocol(other_version(hello.version)));
    }
    bytes.resize(HELLO_BYTES + hello.terms_bytes as usize, 0);
    stream.read_exact(&mut bytes[HELLO_BYTES..]).await?;
    // A client is refused only after its greeting was read, so that it reads why.
    let principal = gate.identify_by(token.as_deref(), peer).map_err(|reason| {
        let why = match reason {
            Reason::NoCredentials => {
                "this daemon requires authentication: use `atoll run` with --token-file or the variable ATOLL_TOKEN, \
                or with a client certificate if the daemon has TLS"
                    .to_owned()
            }
            reason => RequestError::unidentified(reason).message,
        };
        NoGreeting::Refused { reason, code: Code::NOT_PERMITTED, why }
    })?;
    Ok(Greeting { bytes, token, principal })
}

/// A pair of sockets for a session and for the bytes from its client, of which these are the first.
async fn pair(first: &[u8]) -> io::Result<(StdStream, UnixStream)> {
    let (near, far) = StdStream::pair()?;
    far.set_nonblocking(true)?;
    let mut far = UnixStream::from_std(far)?;
    far.write_all(first).await?;
    Ok((near, far))
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

/// Sends the last bytes and closes the connection. Waits a moment for the client to close it, so
/// that it can read them.
async fn part(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), last: &[u8]) {
    let parting = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(PARTING_BYTES), &mut tokio::io::sink()).await
    };
    // The client may be gone.
    let _ = timeout(PARTING_TIME, parting).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{IdentityConfig, KeyFile};
    use futures_util::FutureExt;
    use std::net::Ipv4Addr;
    use std::path::Path;

    fn gate(keys: &Path) -> Gate {
        let config = IdentityConfig { keys: Some(keys.to_path_buf()), ..IdentityConfig::own() };
        Gate::open(&config, Ipv4Addr::LOCALHOST.into()).unwrap()
    }

    /// What a client sends.
    fn sent(versions: [u32; 2], token: &str) -> Vec<u8> {
        let terms = b"class=real-time";
        let entry = Entry { version: versions[0], token_bytes: token.len() as u32 }.write();
        let hello = Hello { version: versions[1], memory_bytes: 5, terms_bytes: terms.len() as u32 }.write();
        [entry.as_slice(), token.as_bytes(), &hello, terms].concat()
    }

    async fn refused(gate: &Gate, mut bytes: &[u8]) -> Option<(Reason, Code)> {
        match greet(gate, &mut bytes, None).await {
            Err(NoGreeting::Refused { reason, code, why }) if !why.is_empty() => Some((reason, code)),
            _ => None,
        }
    }

    #[tokio::test]
    async fn the_version_comes_before_the_token_and_the_token_before_the_session() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys.json");
        let token = KeyFile::create(&keys, "team".parse().unwrap(), None, "").unwrap();
        let gate = gate(&keys);
        let same = [limits::VERSION; 2];
        let good = sent(same, &token.to_string());
        let greeting = greet(&gate, &mut &good[..], None).await.ok().expect("a greeting");
        assert_eq!((greeting.principal.tenant.as_str(), greeting.token), ("team", Some(token.to_string())));
        assert!(good.ends_with(&greeting.bytes) && greeting.bytes.starts_with(&atoll_session::MAGIC));
        for end in 0..good.len() {
            let cut = greet(&gate, &mut &good[..end], None).await.err().expect("no greeting");
            assert!(matches!(cut, NoGreeting::Broken(_)), "{end}");
        }
        assert_eq!(refused(&gate, &sent(same, "atoll_1_2")).await, Some((Reason::BadToken, Code::NOT_PERMITTED)));
        assert_eq!(refused(&gate, &sent(same, "")).await, Some((Reason::NoCredentials, Code::NOT_PERMITTED)));
        let other = (Reason::Protocol, Code::SYSTEM_DRIVER_MISMATCH);
        let newer = sent([limits::VERSION + 1; 2], &token.to_string());
        assert_eq!(refused(&gate, &newer[..ENTRY_BYTES]).await, Some(other), "the token is not read");
        let skewed = sent([limits::VERSION, limits::VERSION + 1], &token.to_string());
        assert_eq!(refused(&gate, &skewed).await, Some(other));
        assert_eq!(refused(&gate, &[b'G'; 64]).await, Some((Reason::Protocol, Code::INVALID_VALUE)));
    }

    #[tokio::test]
    async fn a_token_is_withdrawn_when_the_keys_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys.json");
        let token = KeyFile::create(&keys, "team".parse().unwrap(), None, "").unwrap();
        let (gate, tenant, text) = (gate(&keys), "team".parse().unwrap(), token.to_string());
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
