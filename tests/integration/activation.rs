//! Socket activation and messages to the service manager, with the real daemon and without systemd:
//! a shell passes the sockets as systemd does. `vm.rs` has the same with systemd.

use crate::functions::{manifest, packed};
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::http::ask;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest time until a message of the daemon, generous enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// How often a wait for a message looks at the process.
const PAUSE: Duration = Duration::from_millis(200);

/// Moves the first three descriptors to where systemd passes sockets, and becomes the daemon.
const WRAPPER: &str = "\
exec 3<&0 4<&1 5<&2 </dev/null >/dev/null 2>>\"$ATOLL_TEST_LOG\"
export LISTEN_PID=$$
exec \"$@\"";

const INFER: &str = "/v2/models/affine/infer";
const REQUEST: &str = "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[2],\"data\":[1,2]},\
                       {\"name\":\"b\",\"datatype\":\"FP32\",\"shape\":[2],\"data\":[1,1]}]}";
const ANSWER: &str = "[4.0,7.0]";

/// A daemon with up to three sockets from its parent, in a folder with its models and state.
struct Daemon<'a> {
    process: Child,
    folder: &'a Path,
}

impl<'a> Daemon<'a> {
    /// Starts a daemon with sockets and their names, as in `http:grpc`.
    fn start(folder: &'a Path, sockets: Vec<OwnedFd>, names: &str, options: &[&str]) -> Result<Daemon<'a>> {
        let count = sockets.len();
        let mut slots = [Stdio::null(), Stdio::null(), Stdio::null()];
        ensure!(count <= slots.len(), "{count} sockets");
        for (slot, socket) in slots.iter_mut().zip(sockets) {
            *slot = socket.into();
        }
        let [first, second, third] = slots;
        let process = Command::new("sh")
            .args(["-c", WRAPPER, "sh"])
            .arg(atoll())
            .args(["serve", "--compute-units", "2", "--model-repository"])
            .arg(folder.join("models"))
            .args(options)
            .env("ATOLL_TEST_LOG", folder.join("log"))
            .env("LISTEN_FDS", count.to_string())
            .env("LISTEN_FDNAMES", names)
            .env("NOTIFY_SOCKET", folder.join("notify"))
            .env("WATCHDOG_USEC", "2000000")
            .env_remove("WATCHDOG_PID")
            .env_remove("ATOLL_CONTROL_SOCKET")
            .env("XDG_CACHE_HOME", folder)
            .env("XDG_RUNTIME_DIR", folder)
            .env("XDG_STATE_HOME", folder)
            .stdin(first)
            .stdout(second)
            .stderr(third)
            .spawn()?;
        Ok(Daemon { process, folder })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits for the next message that contains `part`. Fails if the daemon ends before.
    fn told(&mut self, manager: &UnixDatagram, part: &str) -> Result<String> {
        let mut bytes = [0; 4096];
        let mut waited = Duration::ZERO;
        while waited < TIMEOUT {
            match manager.recv(&mut bytes) {
                Ok(count) => {
                    let message = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    if message.contains(part) {
                        return Ok(message);
                    }
                }
                Err(_) => {
                    waited += PAUSE;
                    if let Some(status) = self.process.try_wait()? {
                        anyhow::bail!("the daemon ended with {status}: {}", self.log());
                    }
                }
            }
        }
        anyhow::bail!("no message with {part}: {}", self.log())
    }

    fn terminate(&mut self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), Signal::TERM)?)
    }

    fn ended(&mut self) -> Result<ExitStatus> {
        Ok(self.process.wait()?)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A folder with a model, and the socket of a service manager. Its path is short, for sockets.
fn prepared() -> Result<(tempfile::TempDir, UnixDatagram)> {
    let folder = tempfile::Builder::new().prefix("aa").tempdir_in("/tmp")?;
    std::fs::create_dir(folder.path().join("models"))?;
    packed(&manifest("affine"), &folder.path().join("models/affine.kg"))?;
    let manager = UnixDatagram::bind(folder.path().join("notify"))?;
    manager.set_read_timeout(Some(PAUSE))?;
    Ok((folder, manager))
}

fn infer(address: &str) -> Result<()> {
    let (status, body) = ask(address, "POST", INFER, REQUEST)?;
    ensure!(status == 200 && body.replace(' ', "").contains(ANSWER), "{status} {body}");
    Ok(())
}

#[test]
fn a_daemon_takes_its_sockets_and_tells_the_service_manager_its_state() -> Result<()> {
    let (folder, manager) = prepared()?;
    let folder = folder.path();
    let (http, grpc) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    let path = folder.join("control.sock");
    let control = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    let (address, grpc_address) = (http.local_addr()?.to_string(), grpc.local_addr()?.to_string());
    let port = http.local_addr()?.port().to_string();
    let ready = folder.join("ready");
    let files = [ready.display().to_string(), path.display().to_string()];
    let ports = ["--http-port", port.as_str(), "--grpc-port", "0", "--metrics-port", "0"];
    let options = [&ports[..], &["--ready-file", files[0].as_str(), "--control-socket", files[1].as_str()]].concat();
    let sockets = vec![http.try_clone()?.into(), grpc.into(), control.into()];
    let mut daemon = Daemon::start(folder, sockets, "http:grpc:control", &options)?;
    let message = std::thread::scope(|scope| -> Result<String> {
        // The connection waits in the socket until the model is loaded.
        let early = scope.spawn(|| infer(&address));
        let message = daemon.told(&manager, "READY=1")?;
        early.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        Ok(message)
    })?;
    ensure!(message == "READY=1\nSTATUS=serving 1 model (affine)", "{message}");
    daemon.told(&manager, "WATCHDOG=1")?;
    let addresses = std::fs::read_to_string(&ready)?;
    ensure!(addresses.contains(&format!("http {address}\n")), "{addresses}");
    ensure!(addresses.contains(&format!("grpc {grpc_address}\n")), "{addresses}");
    // The settings' permissions, in place of those that the service manager gave.
    ensure!(std::fs::metadata(&path)?.permissions().mode() & 0o777 == 0o600, "socket_mode");
    let listed = Command::new(atoll()).args(["ps", "--control-socket"]).arg(&path).output()?;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    ensure!(String::from_utf8_lossy(&listed.stdout).contains("affine"), "{listed:?}");
    // The daemon tells a change of what is loaded.
    let (status, body) = ask(&address, "POST", "/v2/repository/models/affine/unload", "{}")?;
    ensure!(status == 200, "{status} {body}");
    daemon.told(&manager, "STATUS=serving 0 models")?;
    daemon.terminate()?;
    daemon.told(&manager, "STOPPING=1")?;
    let status = daemon.ended()?;
    ensure!(status.success(), "{status}: {}", daemon.log());
    ensure!(path.exists(), "the control socket belongs to the service manager");
    Ok(())
}

/// A connection that is used for one request after the other.
struct KeptOpen(TcpStream);

impl KeptOpen {
    fn open(address: &str) -> io::Result<KeptOpen> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(KeptOpen(stream))
    }

    /// Sends a request. Returns the answer, and whether it closes the connection.
    fn ask(&mut self) -> io::Result<(String, bool)> {
        let length = REQUEST.len();
        write!(self.0, "POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{REQUEST}")?;
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = self.0.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            text.extend_from_slice(&buffer[..count]);
            let answer = String::from_utf8_lossy(&text).into_owned();
            let Some((head, body)) = answer.split_once("\r\n\r\n") else { continue };
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if length.is_some_and(|length: usize| body.len() >= length) {
                return Ok((answer.clone(), head.contains("connection: close")));
            }
        }
    }
}

/// Sends requests until `over`, each over its own connection or all over one that is kept open,
/// and counts the answers. The first failure ends it.
fn load(address: &str, keeps_open: bool, over: &AtomicBool, answers: &AtomicU64) -> Result<()> {
    let mut kept = None;
    while !over.load(Ordering::Relaxed) {
        if keeps_open {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => KeptOpen::open(address)?,
            };
            let (answer, closes) = connection.ask().context("a connection that is kept open")?;
            ensure!(answer.starts_with("HTTP/1.1 200") && answer.replace(' ', "").contains(ANSWER), "{answer}");
            kept = (!closes).then_some(connection);
        } else {
            infer(address)?;
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Waits for more answers, and takes the messages of the daemon, which would wait for room otherwise.
fn wait_for(answers: &AtomicU64, more: u64, over: &AtomicBool, manager: &UnixDatagram) -> Result<()> {
    let begin = answers.load(Ordering::Relaxed);
    let mut waited = Duration::ZERO;
    while answers.load(Ordering::Relaxed) < begin + more {
        // A client that failed sets it.
        ensure!(!over.load(Ordering::Relaxed) && waited < TIMEOUT, "no answers");
        if manager.recv(&mut [0; 4096]).is_err() {
            waited += PAUSE;
        }
    }
    Ok(())
}

#[test]
fn a_restart_under_load_refuses_no_connection_and_loses_no_request() -> Result<()> {
    let (folder, manager) = prepared()?;
    let folder = folder.path();
    let http = TcpListener::bind("127.0.0.1:0")?;
    let address = http.local_addr()?.to_string();
    let options = ["--http-port", "0", "--no-grpc", "--metrics-port", "0"];
    let start = || Daemon::start(folder, vec![http.try_clone()?.into()], "http", &options);
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = [false, false, true, true]
            .into_iter()
            .map(|keeps_open| {
                let (address, over, answers) = (&address, &over, &answers);
                scope.spawn(move || {
                    let result = load(address, keeps_open, over, answers);
                    over.fetch_or(result.is_err(), Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let restarted = || -> Result<()> {
            let mut daemon = start()?;
            for _ in 0..3 {
                daemon.told(&manager, "READY=1")?;
                wait_for(&answers, 20, &over, &manager)?;
                daemon.terminate()?;
                let status = daemon.ended()?;
                ensure!(status.success(), "{status}: {}", daemon.log());
                daemon = start()?;
            }
            daemon.told(&manager, "READY=1")?;
            wait_for(&answers, 20, &over, &manager)?;
            over.store(true, Ordering::Relaxed);
            let served = clients.into_iter().map(|client| client.join().map_err(|_| anyhow::anyhow!("a panic"))?);
            served.collect::<Result<()>>().with_context(|| daemon.log())
        };
        let result = restarted();
        // Otherwise the clients would not end.
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn wrong_sockets_are_refused_with_the_cause() -> Result<()> {
    let (folder, _manager) = prepared()?;
    let folder = folder.path();
    let listener = || TcpListener::bind("127.0.0.1:0");
    let connected = || TcpStream::connect(listener()?.local_addr()?);
    let file = || std::fs::File::open("/dev/null");
    let unix = UnixListener::bind(folder.join("other.sock"))?;
    let cases: Vec<(Vec<OwnedFd>, &str, &[&str])> = vec![
        (vec![UdpSocket::bind("127.0.0.1:0")?.into()], "http", &["`http`", "not a valid tcp socket"]),
        (vec![connected()?.into()], "metrics", &["`metrics`", "it does not listen"]),
        (vec![file()?.into()], "http", &["is not a socket"]),
        (vec![unix.try_clone()?.into()], "http", &["`http` of the service manager has to be a listening TCP socket"]),
        (vec![listener()?.into()], "control", &["`control`", "Unix stream socket", "ListenStream="]),
        (vec![UnixDatagram::unbound()?.into()], "control", &["`control`", "not a valid unix stream socket"]),
        (vec![listener()?.into()], "htp", &["`htp`", "http, grpc, metrics and control"]),
        (vec![listener()?.into(), listener()?.into()], "http:http", &["two sockets with the name `http`"]),
        (vec![listener()?.into()], "", &["1 sockets with 0 names", "FileDescriptorName="]),
        (vec![listener()?.into()], "grpc", &["`grpc`", "--no-grpc"]),
        (vec![unix.into()], "control", &["other.sock", "--control-socket"]),
        (vec![TcpListener::bind("0.0.0.0:0")?.into()], "http", &["address 0.0.0.0:", "the settings say 127.0.0.1:0"]),
    ];
    for (sockets, names, says) in cases {
        let _ = std::fs::remove_file(folder.join("log"));
        let options = ["--http-port", "0", "--no-grpc", "--metrics-port", "0"];
        let mut daemon = Daemon::start(folder, sockets, names, &options)?;
        let status = daemon.ended()?;
        let log = daemon.log();
        ensure!(status.code() == Some(2) && says.iter().all(|part| log.contains(part)), "{names}: {status} {log}");
    }
    Ok(())
}
