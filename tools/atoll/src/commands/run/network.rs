//! Sessions of a daemon on another machine. This process connects with TLS and a token, and relays
//! the bytes of programs, which need neither. If a connection breaks, it reconnects and resumes the
//! session; the program only sees a delay.

use crate::credentials::CredentialArgs;
use crate::failure::OrUserError;
use anyhow::{Context, Result};
use atoll_server::{Carried, Duplex, SESSION_ALPN, Steer, carry, keep_alive};
use atoll_session::{
    Channel, Code, Entry, HELLO_BYTES, Hello, MAGIC, PASS_BYTES, PASS_MAGIC, Pass, Resume, WELCOME_BYTES, Welcome,
    limits,
};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long a connection, its TLS handshake and the answer to the greeting may take.
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// Pause after `accept` failed, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Pauses between attempts to connect again: the first one, which doubles, and the longest one.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long sessions may take to tell the daemon that the program has ended.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// A daemon on the network.
pub(super) struct Daemon {
    /// `HOST:PORT`
    address: String,
    /// [`Entry`] with the token.
    entry: Vec<u8>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// The thread that relays the sessions of a program.
pub(super) struct Passing {
    close: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Passing {
    /// Ends the sessions, once the program has ended.
    pub(super) fn close(self) {
        let _ = self.close.send(());
        // A thread that panicked has printed its message.
        let _ = self.thread.join();
    }
}

/// Why a session could not be begun or resumed.
struct Refusal {
    code: Code,
    why: String,
    /// Whether the daemon sent this refusal. Otherwise the daemon could not be reached.
    is_said: bool,
}

impl Daemon {
    /// Reads the credentials. Connections have TLS unless `is_plain`, or unless the address is of
    /// this machine and no certificate is given.
    pub(super) fn new(address: &str, credentials: &CredentialArgs, is_plain: bool) -> Result<Daemon> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let has_certificates = credentials.tls_ca.is_some() || credentials.tls_cert.is_some();
        let tls = if is_plain || (is_loopback(host) && !has_certificates) {
            None
        } else {
            let name = ServerName::try_from(host.to_owned());
            let name = name.with_context(|| format!("{host} is not the name of a machine")).or_user_error()?;
            Some((TlsConnector::from(credentials.client_config(SESSION_ALPN)?), name))
        };
        let token = credentials.token()?.unwrap_or_default();
        // A longer token is refused by the server.
        let token_bytes = u32::try_from(token.len()).unwrap_or(u32::MAX);
        let mut entry = Entry { version: limits::VERSION, token_bytes }.write();
        entry.extend_from_slice(token.as_bytes());
        Ok(Daemon { address: address.to_owned(), entry, tls })
    }

    /// Passes on the sessions of programs that connect to the socket.
    pub(super) fn pass_on(self, socket: &Path) -> Result<Passing> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(socket).context("cannot listen for the program")?
        };
        let (close, closed) = oneshot::channel();
        let run = self.sessions(listener, closed);
        let thread = std::thread::Builder::new().name("sessions".to_owned()).spawn(move || runtime.block_on(run))?;
        Ok(Passing { close, thread })
    }

    /// Passes on sessions until `closed` is sent or dropped. Then ends them.
    async fn sessions(self, listener: UnixListener, mut closed: oneshot::Receiver<()>) {
        let daemon = Arc::new(self);
        let mut sessions = JoinSet::new();
        let mut steering: Vec<mpsc::Sender<Steer>> = Vec::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((program, _)) => {
                        let (daemon, (steer, steered)) = (daemon.clone(), mpsc::channel(1));
                        steering.retain(|session| !session.is_closed());
                        steering.push(steer);
                        sessions.spawn(async move { daemon.session(program, steered).await });
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
                Some(_) = sessions.join_next() => {}
                _ = &mut closed => break,
            }
        }
        for session in steering {
            // The session may have ended.
            let _ = session.try_send(Steer::Close);
        }
        let ended = async { while sessions.join_next().await.is_some() {} };
        // Without a close, the daemon would keep the sessions for some time, as after a lost connection.
        let _ = timeout(CLOSE_TIME, ended).await;
    }

    /// Passes on one session.
    async fn session(&self, mut program: UnixStream, mut steer: mpsc::Receiver<Steer>) {
        // The program may be gone. Other bytes than a greeting are not from the library.
        let Ok(greeting) = greeting(&mut program).await else { return };
        let (mut stream, pass) = match self.ask(&greeting).await {
            Ok(begun) => begun,
            Err(Refusal { code, mut why, is_said }) => {
                if !is_said {
                    why = format!("no session of the daemon at {}: {why}", self.address);
                }
                // The program may be gone.
                let _ = program.write_all(&Welcome::refusal(code, &why)).await;
                return;
            }
        };
        let mut channel = Channel::new();
        // Tells the daemon that the ticket has arrived.
        channel.acknowledge();
        loop {
            let error = match carry(&mut channel, &mut stream, &mut program, &mut steer).await {
                Carried::Near => return,
                Carried::Far => {
                    while !channel.ready().is_empty() && program.write_all(channel.ready()).await.is_ok() {
                        channel.consume(channel.ready().len());
                    }
                    return;
                }
                Carried::Invalid(error) => {
                    return tracing::warn!("the daemon at {} breaks the protocol: {error}", self.address);
                }
                Carried::Broken(error) => error,
            };
            drop(stream);
            if pass.keep_ms > 0 {
                tracing::warn!("the connection to {} is lost: {error}; connecting again", self.address);
            }
            match self.resume(&pass, &mut channel, error).await {
                Ok(next) => stream = next,
                Err(why) => return tracing::warn!("the session of the daemon at {} is lost: {why}", self.address),
            }
        }
    }

    /// Resumes a session on another connection. Retries until the daemon refuses, or no longer keeps
    /// the session.
    async fn resume(&self, pass: &Pass, channel: &mut Channel, lost: io::Error) -> Result<Box<dyn Duplex>, String> {
        let until = Instant::now() + Duration::from_millis(pass.keep_ms.into());
        let (mut pause, mut last) = (RETRY_PAUSE, lost.to_string());
        while Instant::now() < until {
            let request = Resume { ticket: pass.ticket, received: channel.received() }.write();
            match self.ask(&request).await {
                Ok((stream, again)) => {
                    channel.resume(again.received).map_err(|error| error.to_string())?;
                    return Ok(stream);
                }
                Err(Refusal { code, why, is_said: true }) if code != Code::NOT_READY => return Err(why),
                Err(Refusal { why, .. }) => last = why,
            }
            sleep(pause).await;
            pause = (2 * pause).min(RETRY_PAUSE_MAX);
        }
        Err(format!("{last} (for more than {} s)", Duration::from_millis(pass.keep_ms.into()).as_secs_f64()))
    }

    /// Connects, and sends the credentials and a greeting, or a ticket instead. Returns the
    /// connection and the daemon's pass.
    async fn ask(&self, greeting: &[u8]) -> Result<(Box<dyn Duplex>, Pass), Refusal> {
        let failed = |code: Code| move |error: io::Error| Refusal { code, why: error.to_string(), is_said: false };
        let late = || {
            let text = format!("no answer within {} s", CONNECT_TIME.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let connected = timeout(CONNECT_TIME, self.connect()).await.unwrap_or_else(|_| Err(late()));
        let mut stream = connected.map_err(failed(Code::NO_DEVICE))?;
        let asked = async {
            stream.write_all(&[self.entry.as_slice(), greeting].concat()).await?;
            stream.flush().await?;
            answer(&mut stream).await
        };
        let asked = timeout(CONNECT_TIME, asked).await.unwrap_or_else(|_| Err(late()));
        match asked.map_err(failed(Code::DEVICE_UNAVAILABLE))? {
            Ok(pass) => Ok((stream, pass)),
            Err((code, why)) => Err(Refusal { code, why, is_said: true }),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Duplex>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
        })
    }
}

/// The daemon's answer to a greeting or a ticket: its pass, or its refusal.
async fn answer(stream: &mut Box<dyn Duplex>) -> io::Result<Result<Pass, (Code, String)>> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::other("it closed the connection without an answer; its log may say why")
        }
        _ => error,
    })?;
    if magic == PASS_MAGIC {
        let mut bytes = [0; PASS_BYTES];
        bytes[..magic.len()].copy_from_slice(&magic);
        stream.read_exact(&mut bytes[magic.len()..]).await?;
        return Pass::read(&bytes).map(Ok).map_err(io::Error::other);
    }
    let mut bytes = [0; WELCOME_BYTES];
    bytes[..magic.len()].copy_from_slice(&magic);
    stream.read_exact(&mut bytes[magic.len()..]).await?;
    let welcome = Welcome::read(&bytes).map_err(io::Error::other)?;
    let mut why = vec![0; welcome.facts_bytes as usize];
    stream.read_exact(&mut why).await?;
    let code = welcome.refusal.unwrap_or(Code::DEVICE_UNAVAILABLE);
    Ok(Err((code, String::from_utf8_lossy(&why).into_owned())))
}

/// The greeting of a program, with its terms.
async fn greeting(program: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut head = [0; HELLO_BYTES];
    program.read_exact(&mut head).await?;
    let hello = Hello::read(&head).map_err(io::Error::other)?;
    let mut bytes = head.to_vec();
    bytes.resize(HELLO_BYTES + hello.terms_bytes as usize, 0);
    program.read_exact(&mut bytes[HELLO_BYTES..]).await?;
    Ok(bytes)
}

/// Whether a host is this machine for certain.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_other_machines_have_tls_unless_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "atoll_1_2\n").unwrap();
        let credentials = CredentialArgs { token_file: Some(token_file), ..CredentialArgs::default() };
        for local in ["127.0.0.1:1", "[::1]:1", "localhost:1"] {
            let daemon = Daemon::new(local, &credentials, false).unwrap();
            assert!(daemon.tls.is_none(), "{local}");
            assert!(daemon.entry.ends_with(b"atoll_1_2"));
        }
        assert!(Daemon::new("gpu-box:1", &credentials, true).unwrap().tls.is_none());
        // An authority that is missing is an error, and not a connection without TLS.
        let tls_ca = Some(folder.path().join("ca.pem"));
        for address in ["gpu-box:1", "127.0.0.1:1", "10.0.0.1:1"] {
            let credentials = CredentialArgs { tls_ca: tls_ca.clone(), ..credentials.clone() };
            let error = Daemon::new(address, &credentials, false).err().expect("an error");
            assert!(format!("{error:#}").contains("ca.pem"), "{error:#}");
        }
    }
}
