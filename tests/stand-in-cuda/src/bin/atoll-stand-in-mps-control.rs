//! A stand-in for `nvidia-cuda-mps-control`, for tests: the control daemon of the Multi-Process
//! Service, and its command-line client.
//!
//! With `-f` it listens in the folder `CUDA_MPS_PIPE_DIRECTORY`, and clients of the stand-in driver
//! connect to it. Without `-f` it sends the requests on its standard input to that daemon. The file
//! `journal` in the folder records events, one per line: `start PID`, `client PID`, `terminate
//! PID`, `gone PID`, `quit`.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time limit for a client to end its work on the GPU.
const TERMINATE_WITHIN: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let folder =
        std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let is_daemon = std::env::args().nth(1).is_some_and(|word| word == "-f");
    let outcome = if is_daemon { Control::run(folder) } else { ask(&folder) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "Cannot find MPS control daemon process: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends the requests on standard input to the control daemon, and prints the answers.
fn ask(folder: &Path) -> std::io::Result<()> {
    for question in std::io::stdin().lines() {
        let mut stream = UnixStream::connect(folder.join("control"))?;
        writeln!(stream, "{}", question?)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::stdout().write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// A client: the stream for requests to it, and its answers.
struct Client {
    stream: UnixStream,
    answers: Receiver<()>,
}

#[derive(Clone)]
struct Control {
    folder: PathBuf,
    clients: Arc<Mutex<BTreeMap<u32, Client>>>,
}

impl Control {
    fn run(folder: PathBuf) -> std::io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        let place = folder.join("control");
        // The socket of an earlier daemon, on which nothing listens.
        if place.exists() && UnixStream::connect(&place).is_err() {
            std::fs::remove_file(&place)?;
        }
        let listener = UnixListener::bind(place)?;
        let control = Control { folder, clients: Arc::default() };
        control.note("start", std::process::id())?;
        for stream in listener.incoming() {
            let (control, stream) = (control.clone(), stream?);
            std::thread::spawn(move || control.serve(stream));
        }
        Ok(())
    }

    /// Serves a client while it lives, or answers one request.
    fn serve(&self, mut stream: UnixStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let words: Vec<&str> = first.split_whitespace().collect();
        let numbers: Vec<u32> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
        match (words.first().copied(), numbers.as_slice()) {
            (Some("client"), &[pid]) => {
                let (answer, answers) = channel();
                writeln!(stream, "welcome")?;
                self.clients().insert(pid, Client { stream, answers });
                self.note("client", pid)?;
                listen(lines, &answer);
                self.clients().remove(&pid);
                self.note("gone", pid)
            }
            (Some("get_default_active_thread_percentage"), []) => writeln!(stream, "100.0"),
            // There is one server, which exists while it has clients.
            (Some("get_server_list"), []) if self.clients().is_empty() => Ok(()),
            (Some("get_server_list"), []) => writeln!(stream, "{}", std::process::id()),
            (Some("get_client_list"), &[server]) if server == std::process::id() => {
                let clients: Vec<u32> = self.clients().keys().copied().collect();
                clients.into_iter().try_for_each(|pid| writeln!(stream, "{pid}"))
            }
            (Some("terminate_client"), &[server, pid]) if server == std::process::id() => {
                let answer = if self.terminate(pid)? { "CUDA_SUCCESS" } else { "CUDA_ERROR_INVALID_VALUE" };
                writeln!(stream, "{answer}")
            }
            (Some("quit"), []) => {
                self.note("quit", std::process::id())?;
                std::fs::remove_file(self.folder.join("control"))?;
                std::process::exit(0)
            }
            _ => writeln!(stream, "error: {first}"),
        }
    }

    fn terminate(&self, pid: u32) -> std::io::Result<bool> {
        self.note("terminate", pid)?;
        let Some(client) = self.clients().remove(&pid) else { return Ok(false) };
        let told = writeln!(&client.stream, "terminate");
        Ok(told.is_ok() && client.answers.recv_timeout(TERMINATE_WITHIN).is_ok())
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<u32, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &str, pid: u32) -> std::io::Result<()> {
        let mut journal = OpenOptions::new().create(true).append(true).open(self.folder.join("journal"))?;
        journal.write_all(format!("{what} {pid}\n").as_bytes())
    }
}

/// Receives a client's messages until it is gone.
fn listen(lines: impl Iterator<Item = std::io::Result<String>>, answer: &Sender<()>) {
    for line in lines.map_while(Result::ok) {
        if line == "terminated" && answer.send(()).is_err() {
            return;
        }
    }
}
