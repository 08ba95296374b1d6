//! Listening sockets that the service manager passes to the daemon.

use crate::config::ServerConfig;
use listenfd::ListenFd;
use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Listening sockets that the daemon inherited, by their purpose. The daemon binds the others.
///
/// Connections wait in an inherited socket while no daemon accepts them, so a restart refuses none.
#[derive(Debug, Default)]
pub struct Sockets {
    pub(crate) http: Option<TcpListener>,
    pub(crate) grpc: Option<TcpListener>,
    pub(crate) metrics: Option<TcpListener>,
    pub(crate) control: Option<UnixListener>,
}

/// Why the sockets of the service manager cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The number of names differs from the number of sockets.
    #[error(
        "the service manager passed {sockets} sockets with {names} names (LISTEN_FDNAMES); each needs a name: \
        FileDescriptorName= of the socket unit"
    )]
    Names {
        /// Number of sockets.
        sockets: usize,
        /// Number of names.
        names: usize,
    },
    /// A socket has a name that the daemon does not know.
    #[error("the service manager passed a socket with the name `{0}`; known names are http, grpc, metrics and control")]
    UnknownName(String),
    /// Two sockets have the same name.
    #[error("the service manager passed two sockets with the name `{0}`; the daemon takes one")]
    Twice(&'static str),
    /// A socket is of another kind than its purpose needs.
    #[error("the socket `{name}` of the service manager has to be {wanted}: {found}")]
    Kind {
        /// The socket's name.
        name: &'static str,
        /// The kind that it has to be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// A socket has another address than the settings.
    #[error(
        "the service manager passed the socket `{name}` with the address {passed}, and the settings say {settings}: \
        change ListenStream= of the socket unit, or {flag}"
    )]
    Address {
        /// The socket's name.
        name: &'static str,
        /// Its address.
        passed: String,
        /// The address in the settings.
        settings: String,
        /// The flags that set the address.
        flag: &'static str,
    },
    /// A socket was passed for a purpose that the settings turn off.
    #[error("the service manager passed the socket `{name}`, and {flag} turns it off: disable the socket unit")]
    Off {
        /// The socket's name.
        name: &'static str,
        /// The flag that turns it off.
        flag: &'static str,
    },
    /// The permissions of the control socket cannot be set.
    #[error(
        "cannot give the control socket {path} the permissions {mode:o} (socket_mode): {source}; set SocketMode= and \
        SocketUser= of the socket unit"
    )]
    Mode {
        /// The socket.
        path: PathBuf,
        /// The permissions of the settings.
        mode: u32,
        /// The error of the system.
        source: io::Error,
    },
}

const TCP: &str = "a listening TCP socket (ListenStream= with an address and a port)";
const UNIX: &str = "a listening Unix stream socket (ListenStream= with a path)";

impl Sockets {
    /// Takes the sockets that the environment announces (`LISTEN_FDS`, `LISTEN_PID`,
    /// `LISTEN_FDNAMES`); none if they are meant for another process. Call it before threads start,
    /// because it removes the variables.
    ///
    /// # Errors
    /// If a socket has no name or an unknown one, or is of the wrong kind.
    pub fn from_environment() -> Result<Sockets, SocketError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        Sockets::take(&mut ListenFd::from_env(), &names)
    }

    fn take(passed: &mut ListenFd, names: &str) -> Result<Sockets, SocketError> {
        let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
        let count = passed.len();
        if count == 0 {
            return Ok(Sockets::default());
        }
        if names.len() != count {
            return Err(SocketError::Names { sockets: count, names: names.len() });
        }
        let mut sockets = Sockets::default();
        for (index, name) in names.into_iter().enumerate() {
            match name {
                "http" => put("http", &mut sockets.http, tcp("http", passed, index)?)?,
                "grpc" => put("grpc", &mut sockets.grpc, tcp("grpc", passed, index)?)?,
                "metrics" => put("metrics", &mut sockets.metrics, tcp("metrics", passed, index)?)?,
                "control" => put("control", &mut sockets.control, unix("control", passed, index)?)?,
                other => return Err(SocketError::UnknownName(other.escape_debug().to_string())),
            }
        }
        Ok(sockets)
    }

    /// Checks the sockets against the settings. Sets the permissions of the control socket.
    ///
    /// # Errors
    /// If a socket has another address than the settings, or the settings turn its purpose off.
    pub(crate) fn check(&self, config: &ServerConfig) -> Result<(), SocketError> {
        let settings = |port| SocketAddr::new(config.host, port);
        if let Some(http) = &self.http {
            check_address("http", http, settings(config.http_port), "--host and --http-port")?;
        }
        if let Some(grpc) = &self.grpc {
            let port = config.grpc_port.ok_or(SocketError::Off { name: "grpc", flag: "--no-grpc" })?;
            check_address("grpc", grpc, settings(port), "--host and --grpc-port")?;
        }
        if let Some(metrics) = &self.metrics {
            check_address("metrics", metrics, settings(config.metrics_port), "--host and --metrics-port")?;
        }
        if let Some(control) = &self.control {
            let settings = config.control.as_ref().ok_or(SocketError::Off { name: "control", flag: "--no-control" })?;
            let path = check_path(control, &settings.socket)?;
            set_mode(&path, config.identity.access.socket_mode)?;
        }
        Ok(())
    }
}

fn put<T>(name: &'static str, place: &mut Option<T>, socket: T) -> Result<(), SocketError> {
    match place.replace(socket) {
        None => Ok(()),
        Some(_) => Err(SocketError::Twice(name)),
    }
}

fn tcp(name: &'static str, passed: &mut ListenFd, index: usize) -> Result<TcpListener, SocketError> {
    listening(name, TCP, passed.take_tcp_listener(index))
}

fn unix(name: &'static str, passed: &mut ListenFd, index: usize) -> Result<UnixListener, SocketError> {
    listening(name, UNIX, passed.take_unix_listener(index))
}

/// The socket, if it is of its kind and listens.
fn listening<S: AsFd>(
    name: &'static str,
    wanted: &'static str,
    taken: io::Result<Option<S>>,
) -> Result<S, SocketError> {
    let refused = |found: String| SocketError::Kind { name, wanted, found };
    let socket = taken.map_err(|error| refused(error.to_string()))?;
    // Each index is taken once.
    let socket = socket.ok_or_else(|| refused("it was taken before".into()))?;
    match rustix::net::sockopt::socket_acceptconn(&socket) {
        Ok(true) => Ok(socket),
        Ok(false) => Err(refused("it does not listen".into())),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Any port agrees with port 0 of the settings.
fn check_address(
    name: &'static str,
    socket: &TcpListener,
    settings: SocketAddr,
    flag: &'static str,
) -> Result<(), SocketError> {
    let passed =
        socket.local_addr().map_err(|error| SocketError::Kind { name, wanted: TCP, found: error.to_string() })?;
    let is_same = passed.ip() == settings.ip() && (settings.port() == 0 || passed.port() == settings.port());
    if is_same {
        return Ok(());
    }
    Err(SocketError::Address { name, passed: passed.to_string(), settings: settings.to_string(), flag })
}

/// The path of the control socket, which has to be the path in the settings or a link to it.
fn check_path(socket: &UnixListener, settings: &Path) -> Result<PathBuf, SocketError> {
    let refused = |found: String| SocketError::Kind { name: "control", wanted: UNIX, found };
    let address = socket.local_addr().map_err(|error| refused(error.to_string()))?;
    let passed = address.as_pathname().ok_or_else(|| refused("it has no path".into()))?;
    let resolved = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if resolved(passed) == resolved(settings) {
        return Ok(passed.to_owned());
    }
    Err(SocketError::Address {
        name: "control",
        passed: passed.display().to_string(),
        settings: settings.display().to_string(),
        flag: "--control-socket",
    })
}

/// Gives the socket's file the permissions of the settings, if it has others.
fn set_mode(path: &Path, mode: u32) -> Result<(), SocketError> {
    let set = fs::symlink_metadata(path).and_then(|metadata| {
        let is_set = metadata.permissions().mode() & 0o777 == mode;
        if is_set { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode)) }
    });
    set.map_err(|source| SocketError::Mode { path: path.to_owned(), mode, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ControlConfig;

    fn config(folder: &Path) -> ServerConfig {
        let control = ControlConfig {
            socket: folder.join("control.sock"),
            state: folder.join("state"),
            object_memory_bytes: 0,
            trust_tenants: false,
        };
        let free = ServerConfig::new(folder.into(), folder.into());
        ServerConfig { http_port: 0, grpc_port: Some(0), metrics_port: 0, control: Some(control), ..free }
    }

    fn refused(sockets: &Sockets, config: &ServerConfig) -> String {
        sockets.check(config).unwrap_err().to_string()
    }

    #[test]
    fn addresses_have_to_agree_with_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let http = Sockets { http: Some(listener()), ..Sockets::default() };
        http.check(&config).unwrap();
        let port = http.http.as_ref().unwrap().local_addr().unwrap().port();
        http.check(&ServerConfig { http_port: port, ..config.clone() }).unwrap();
        let message = refused(&http, &ServerConfig { http_port: port ^ 1, ..config.clone() });
        assert!(message.contains(&format!("127.0.0.1:{port}, and")) && message.contains("--http-port"), "{message}");
        let message = refused(&http, &ServerConfig { host: "127.0.0.2".parse().unwrap(), ..config.clone() });
        assert!(message.contains("the settings say 127.0.0.2:0"), "{message}");
        let beyond = Sockets { metrics: Some(TcpListener::bind("0.0.0.0:0").unwrap()), ..Sockets::default() };
        let message = refused(&beyond, &config);
        assert!(message.contains("`metrics` with the address 0.0.0.0:"), "{message}");
    }

    #[test]
    fn sockets_that_the_settings_turn_off_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let grpc = TcpListener::bind("127.0.0.1:0").unwrap();
        let grpc = Sockets { grpc: Some(grpc), ..Sockets::default() };
        assert!(refused(&grpc, &ServerConfig { grpc_port: None, ..config.clone() }).contains("--no-grpc"));
        let control = UnixListener::bind(folder.path().join("control.sock")).unwrap();
        let control = Sockets { control: Some(control), ..Sockets::default() };
        assert!(refused(&control, &ServerConfig { control: None, ..config }).contains("--no-control"));
    }

    #[test]
    fn the_control_socket_gets_the_permissions_of_the_settings() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("control.sock"), folder.path().join("link.sock"));
        let control = Sockets { control: Some(UnixListener::bind(&path).unwrap()), ..Sockets::default() };
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let mut config = config(folder.path());
        control.check(&config).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        config.control.as_mut().unwrap().socket = link;
        control.check(&config).unwrap();
        config.control.as_mut().unwrap().socket = folder.path().join("other.sock");
        let message = refused(&control, &config);
        assert!(message.contains("other.sock") && message.contains("--control-socket"), "{message}");
    }

    #[test]
    fn without_announced_sockets_none_are_taken() {
        let sockets = Sockets::take(&mut ListenFd::empty(), "http").unwrap();
        assert!(sockets.http.is_none() && sockets.control.is_none());
    }
}
