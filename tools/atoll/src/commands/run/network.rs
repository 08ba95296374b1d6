//! Sessions of a daemon on another machine. This process connects with TLS and a token, and passes
//! the bytes of programs on, so that programs know neither.

use crate::credentials::CredentialArgs;
use crate::failure::OrUserError;
use anyhow::{Context, Result};
use atoll_server::{SESSION_ALPN, keep_alive, relay};
use atoll_session::{Code, Entry, HELLO_BYTES, Hello, WELCOME_BYTES, Welcome, limits};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long a connection and its TLS handshake may take.
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// Pause after `accept` failed, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A daemon on the network.
pub(super) struct Daemon {
    /// `HOST:PORT`
    address: String,
    /// [`Entry`] with the token.
    entry: Vec<u8>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection to a daemon.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

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

    /// Passes on the sessions of programs that connect to the socket, until this process ends.
    pub(super) fn pass_on(self, socket: &Path) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(socket).context("cannot listen for the program")?
        };
        let daemon = Arc::new(self);
        let run = async move {
            loop {
                match listener.accept().await {
                    Ok((program, _)) => {
                        let daemon = daemon.clone();
                        tokio::spawn(async move { daemon.session(program).await });
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        };
        std::thread::Builder::new().name("sessions".to_owned()).spawn(move || runtime.block_on(run))?;
        Ok(())
    }

    /// Passes on one session.
    async fn session(&self, mut program: UnixStream) {
        // The program may be gone. Other bytes than a greeting are not from the library.
        let Ok(greeting) = greeting(&mut program).await else { return };
        match self.begin(&greeting).await {
            Ok((first, stream)) => {
                if program.write_all(&first).await.is_ok() {
                    relay(program, stream).await;
                }
            }
            Err((code, error)) => {
                let why = format!("no session of the daemon at {}: {error}", self.address);
                // The program may be gone.
                let _ = program.write_all(&Welcome::refusal(code, &why)).await;
            }
        }
    }

    /// Connects, and sends the credentials and the greeting. Returns the first bytes of the answer.
    async fn begin(&self, greeting: &[u8]) -> Result<(Vec<u8>, Box<dyn Stream>), (Code, io::Error)> {
        let connected = timeout(CONNECT_TIME, self.connect()).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", CONNECT_TIME.as_secs())))
        });
        let mut stream = connected.map_err(|error| (Code::NO_DEVICE, error))?;
        let asked = async {
            stream.write_all(&[self.entry.as_slice(), greeting].concat()).await?;
            stream.flush().await?;
            let mut first = vec![0; WELCOME_BYTES];
            stream.read_exact(&mut first).await.map(|_| first)
        };
        match asked.await {
            Ok(first) => Ok((first, stream)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let text = "it closed the connection without an answer; its log may say why";
                Err((Code::DEVICE_UNAVAILABLE, io::Error::other(text)))
            }
            Err(error) => Err((Code::DEVICE_UNAVAILABLE, error)),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
        })
    }
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
