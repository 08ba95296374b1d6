//! Sessions over the network: credentials and the greeting, then the same session as on the control
//! socket.

use super::begin::Caller;
use super::keep::Keeper;
use super::relay::part;
use super::socket::run;
use super::tickets::Connection;
use crate::control::Control;
use crate::identity::{Gate, Peer, Principal, Reason};
use crate::places::Place;
use crate::requests::error::RequestError;
use crate::shutdown::stopped;
use atoll_session::{
    Code, ENTRY_BYTES, Entry, HELLO_BYTES, Hello, MAGIC, RESUME_BYTES, RESUME_MAGIC, Resume, Welcome, limits,
};
use atoll_session_server::other_version;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::sync::watch::Receiver;

/// A connection over the network.
pub(crate) struct Remote<S> {
    /// Its bytes, without TLS.
    pub(crate) stream: S,
    /// The client's address.
    pub(crate) address: SocketAddr,
    /// The tenant of its certificate, if it has one.
    pub(crate) peer: Option<Peer>,
}

/// Serves a connection until its session no longer uses it. Until the greeting is complete, the port
/// may close the connection as one of HTTP.
pub(crate) async fn serve_remote<S>(
    control: Arc<Control>,
    remote: Remote<S>,
    place: &Arc<Place>,
    mut stop: Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Remote { mut stream, address, peer } = remote;
    let app = control.app.clone();
    let seat = control.addresses.take(address.ip());
    let greeted = tokio::select! {
        greeted = greet(&app.gate, &mut stream, peer.as_ref()) => greeted,
        () = place.closing() => return,
        () = stopped(&mut stop) => return,
    };
    let greeted = greeted.and_then(|greeting| match &seat {
        Some(_) => Ok(greeting),
        None => Err(NoGreeting::Refused {
            reason: Reason::Connections,
            code: Code::DEVICE_UNAVAILABLE,
            why: format!("{} has {} connections, the most of an address", address.ip(), control.addresses.most),
        }),
    });
    let Greeting { wish, token, principal } = match greeted {
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
    // From here on, the connection is not closed to make room for another one.
    let _running = place.request();
    let (in_use, unused) = oneshot::channel();
    let stream = Box::new(stream);
    let connection = Connection { stream, address, token, peer, received: 0, in_use };
    match wish {
        Wish::Begin(first) => {
            if let Err(error) = begin(control, connection, principal, &first, stop).await {
                tracing::error!(%error, "cannot begin a CUDA session over the network");
            }
        }
        Wish::Resume(Resume { ticket, received }) => {
            let connection = Connection { received, ..connection };
            let connected = control.tickets.connect(&ticket, &principal.tenant, connection);
            if let Err((mut connection, why)) = connected {
                app.refuse_unknown(Reason::Ticket);
                let (tenant, session) = (&principal.tenant, ticket.number);
                tracing::warn!(%address, %tenant, session, %why, "the ticket of a CUDA session is refused");
                return part(&mut connection.stream, &Welcome::refusal(why.code(), &why.to_string())).await;
            }
        }
    }
    // The sender is dropped, and nothing is sent.
    let _ = unused.await;
}

/// Begins a session, which takes over the connection. `first` is the client's greeting with its terms.
async fn begin(
    control: Arc<Control>,
    connection: Connection,
    principal: Arc<Principal>,
    first: &[u8],
    stop: Receiver<bool>,
) -> io::Result<()> {
    let (near, far) = pair(first).await?;
    // The other end is closed when the client is gone for good.
    let client = OwnedFd::from(near.try_clone()?);
    let (tenant, address) = (principal.tenant.clone(), connection.address);
    let held = control.tickets.issue(&tenant)?;
    let keeper = Keeper { app: control.app.clone(), tenant, keep: control.tickets.keep, held };
    let session = run(control, (near, client), Caller::Client(principal, address), stop.clone());
    tokio::spawn(keeper.keep(connection, far, session, stop));
    Ok(())
}

/// The greeting of an identified client.
struct Greeting {
    wish: Wish,
    token: Option<String>,
    principal: Arc<Principal>,
}

/// What a client asks for.
enum Wish {
    /// A session; [`Hello`] and the terms are for it.
    Begin(Vec<u8>),
    /// Its earlier session.
    Resume(Resume),
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
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    let wish = if magic == RESUME_MAGIC {
        let bytes = rest::<RESUME_BYTES>(stream, magic).await?;
        Wish::Resume(Resume::read(&bytes).map_err(invalid)?)
    } else {
        let hello = rest::<HELLO_BYTES>(stream, magic).await?;
        let mut bytes = hello.to_vec();
        let hello = Hello::read(&hello).map_err(invalid)?;
        if hello.version != limits::VERSION {
            return Err(protocol(other_version(hello.version)));
        }
        bytes.resize(HELLO_BYTES + hello.terms_bytes as usize, 0);
        stream.read_exact(&mut bytes[HELLO_BYTES..]).await?;
        Wish::Begin(bytes)
    };
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
    Ok(Greeting { wish, token, principal })
}

/// Reads the rest of a frame whose first bytes were read.
async fn rest<const N: usize>(stream: &mut (impl AsyncRead + Unpin), magic: [u8; 8]) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    bytes[..magic.len()].copy_from_slice(&magic);
    stream.read_exact(&mut bytes[magic.len()..]).await?;
    Ok(bytes)
}

/// A socket pair: one end for the session, and one for the client's bytes, of which `first` is written.
async fn pair(first: &[u8]) -> io::Result<(StdStream, UnixStream)> {
    let (near, far) = StdStream::pair()?;
    far.set_nonblocking(true)?;
    let mut far = UnixStream::from_std(far)?;
    far.write_all(first).await?;
    Ok((near, far))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{IdentityConfig, KeyFile};
    use atoll_session::{SECRET_BYTES, Ticket};
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
        let Wish::Begin(bytes) = greeting.wish else { panic!("the client asks for a session") };
        assert!(good.ends_with(&bytes) && bytes.starts_with(&MAGIC));
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
        // A ticket instead of the greeting needs the token, too.
        let ticket = Ticket { number: 3, secret: [7; SECRET_BYTES] };
        let again = |token: &str| {
            let entry = Entry { version: limits::VERSION, token_bytes: token.len() as u32 }.write();
            [entry.as_slice(), token.as_bytes(), &Resume { ticket, received: 9 }.write()].concat()
        };
        let greeting = greet(&gate, &mut &again(&token.to_string())[..], None).await.ok().expect("a greeting");
        let Wish::Resume(resume) = greeting.wish else { panic!("the client has a ticket") };
        assert_eq!((resume.ticket.number, resume.ticket.secret, resume.received), (3, ticket.secret, 9));
        assert_eq!(refused(&gate, &again("atoll_1_2")).await, Some((Reason::BadToken, Code::NOT_PERMITTED)));
    }
}
