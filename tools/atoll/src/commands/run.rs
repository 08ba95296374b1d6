//! `atoll run`

mod network;

use self::network::Daemon;
use crate::control::{CONTROL_SOCKET_VARIABLE, ClassName};
use crate::credentials::{CredentialArgs, TOKEN_VARIABLE};
use crate::failure::{OrUserError, user_error};
use crate::output::print;
use anyhow::{Context, Result};
use atoll_client::{Tenant, default_socket};
use atoll_session::limits::STORED_AFTER;
use atoll_session::{Address, Report, StoredCounts, Terms};
use atoll_session_server::{
    Ended, LIBRARY, Libraries, OpenError, Options, STAND_IN, Server, beside, environment, open,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

const EXAMPLES: &str = "\
Examples:
  atoll run -- ./vector-add 1000000
  atoll run --class real-time --memory-mib 512 -- ./vector-add 1000000
  atoll run --report -- python3 train.py
  atoll run --stored-functions -- python3 train.py    # work that repeats is sent as one call
  atoll run --server gpu-box:8003 --token-file token -- ./vector-add   # a daemon with --sessions
  atoll run --listen unix:gpu.sock                    # without a daemon: where the GPU is
  atoll run --server unix:gpu.sock -- ./vector-add    # elsewhere, through a forwarded socket

The exit code is the program's.";

/// How long the server waits for kernels of a program that has ended.
const BUSY_TIME: Duration = Duration::from_secs(10);

/// Sessions at the same time.
const SESSIONS_MAX: usize = 64;

/// Run an unmodified CUDA program on a device of another process: its calls are recorded, and the
/// daemon, or a server that is started for the program, executes them
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", last = true, required_unless_present = "listen")]
    program: Vec<OsString>,

    /// Server: HOST:PORT of a daemon with --sessions, or unix:PATH, where PATH may be the control
    /// socket of a daemon [default: the running daemon, or else a server that is started for the
    /// program]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["listen", "driver", "ordinal", "private"])]
    server: Option<Address>,

    /// Connect to HOST:PORT of another machine without TLS: the token and data are not encrypted
    #[arg(long, requires = "server", conflicts_with_all = ["tls_ca", "tls_cert"])]
    plain: bool,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// Start a server for the program even if a daemon runs
    #[arg(long, conflicts_with = "listen")]
    private: bool,

    /// Control socket of the daemon [default: $XDG_RUNTIME_DIR/atoll.sock or /run/atoll.sock]
    #[arg(long, value_name = "PATH", env = CONTROL_SOCKET_VARIABLE)]
    control_socket: Option<PathBuf>,

    /// Class of the program's work, if the daemon runs it
    #[arg(long, value_name = "CLASS", default_value = "best-effort")]
    class: ClassName,

    /// Act for this tenant of a daemon (only root and the daemon's own user may)
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,

    /// Device of the daemon [default: its first host device, or else its first NVIDIA GPU]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Compute units of a share for this program in percent, if the daemon runs it
    #[arg(long, value_name = "PERCENT")]
    sm_partition: Option<f64>,

    /// Fraction of the device's time that the program gets whenever it has work, if the daemon runs
    /// it
    #[arg(long, value_name = "FRACTION")]
    quota_request: Option<f64>,

    /// Upper limit of that fraction
    #[arg(long, value_name = "FRACTION")]
    quota_limit: Option<f64>,

    /// Store work that the program repeats: after N equal runs, each further one is sent as one call
    /// [default without =N: 3]
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "3",
        value_parser = clap::value_parser!(u32).range(i64::from(STORED_AFTER.0)..=i64::from(STORED_AFTER.1)),
        conflicts_with = "listen"
    )]
    stored_functions: Option<u32>,

    /// Run no program, but serve programs of other processes at this address: unix:PATH
    #[arg(long, value_name = "ADDRESS", conflicts_with = "program")]
    listen: Option<Address>,

    /// The CUDA driver of the server [default: the installed one, or else the stand-in driver in
    /// this program's folder, which runs kernels on the CPU]
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,

    /// Ordinal of the server's device
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: u32,

    /// Device memory of a session in MiB [default: half of what is free; in the daemon 256, or less
    /// if the quota or the device is small]
    #[arg(long, value_name = "N")]
    memory_mib: Option<u64>,

    /// cuBLAS and cuDNN of the program: those of Atoll, or those that the program finds by itself
    #[arg(long, value_name = "WHOSE", default_value = "atoll", conflicts_with = "listen")]
    libraries: LibraryName,

    /// Print statistics of each session on standard error, without --server; starts a server for
    /// the program even if a daemon runs
    #[arg(long)]
    report: bool,
}

/// `--libraries`
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LibraryName {
    Atoll,
    System,
}

impl From<LibraryName> for Libraries {
    fn from(name: LibraryName) -> Libraries {
        match name {
            LibraryName::Atoll => Libraries::Atoll,
            LibraryName::System => Libraries::System,
        }
    }
}

/// A program and what it is started with.
pub(crate) struct Started<'a> {
    pub(crate) program: &'a [OsString],
    pub(crate) terms: Terms,
    pub(crate) libraries: Libraries,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let started = Started { program: &args.program, terms: terms(args), libraries: args.libraries.into() };
    match (&args.listen, &args.server) {
        (Some(address), _) => listen(args, address),
        (None, Some(Address::Tcp(address))) => {
            let folder = tempfile::tempdir().context("cannot make a folder for the socket")?;
            let socket = folder.path().join("sessions.sock");
            let passing = Daemon::new(address, &args.credentials, args.plain)?.pass_on(&socket)?;
            let status = start(&started, &Address::Unix(socket), true)?;
            passing.close();
            drop(folder);
            end(status)
        }
        (None, Some(address)) => end(start(&started, address, false)?),
        (None, None) => {
            if let Some(address) = daemon(args)? {
                return end(start(&started, &address, false)?);
            }
            let (status, ended) = run_privately(options(args)?, &started)?;
            ended.iter().for_each(|ended| say(args, ended));
            end(status)
        }
    }
}

/// Runs a program in sessions of a server of its own. Returns the program's status and the ends of
/// its sessions.
pub(crate) fn run_privately(options: Options, started: &Started<'_>) -> Result<(ExitStatus, Vec<Ended>)> {
    let folder = tempfile::tempdir().context("cannot make a folder for the socket")?;
    let socket = folder.path().join("sessions.sock");
    let server = Server::start(options, &socket)?;
    let status = start(started, &Address::Unix(socket), false)?;
    // Sessions of the program and of its child processes end with it.
    let began = Instant::now();
    while server.sessions() > 0 && began.elapsed() < BUSY_TIME {
        server.wait_ended(u64::MAX, Duration::from_millis(5));
    }
    let ended = server.wait_ended(0, Duration::ZERO);
    if server.sessions() > 0 {
        tracing::warn!("a kernel of the program still runs after {} s; it is left", BUSY_TIME.as_secs());
        // Stopping the server would wait for the kernel; the exit of this process does not.
        std::mem::forget(server);
    }
    drop(folder);
    Ok((status, ended))
}

/// The address of the running daemon; `None` if there is none, or if options ask for a separate
/// server. An option that only a daemon honours is then an error.
fn daemon(args: &Args) -> Result<Option<Address>> {
    let separate = [
        (args.private, "--private"),
        (args.report, "--report"),
        (args.driver.is_some(), "--driver"),
        (args.ordinal != 0, "--ordinal"),
    ];
    if let Some((_, cause)) = separate.into_iter().find(|(is_given, _)| *is_given) {
        return match of_daemon(args) {
            Some(option) => {
                Err(user_error(format!("{option} needs a daemon, and {cause} starts a server without one; drop one")))
            }
            None => Ok(None),
        };
    }
    let socket = args.control_socket.clone().unwrap_or_else(default_socket);
    let at = socket.display();
    match (UnixStream::connect(&socket).map_err(|error| error.kind()), of_daemon(args)) {
        (Ok(_), _) => Ok(Some(Address::Unix(socket))),
        (Err(ErrorKind::NotFound | ErrorKind::ConnectionRefused), None) => Ok(None),
        (Err(ErrorKind::NotFound | ErrorKind::ConnectionRefused), Some(option)) => Err(user_error(format!(
            "{option} needs a daemon, and none runs at {at}; start one with `atoll serve`, or drop the option"
        ))),
        (Err(error), _) => Err(user_error(format!(
            "cannot connect to the daemon at {at}: {error}; use --private to run the program without it"
        ))),
    }
}

/// The first given option that only a daemon honours.
fn of_daemon(args: &Args) -> Option<&'static str> {
    let options = [
        (args.class == ClassName::RealTime, "--class"),
        (args.tenant.is_some(), "--tenant"),
        (args.device.is_some(), "--device"),
        (args.sm_partition.is_some(), "--sm-partition"),
        (args.quota_request.is_some(), "--quota-request"),
        (args.quota_limit.is_some(), "--quota-limit"),
    ];
    options.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
}

/// Serves until the process is ended.
fn listen(args: &Args, address: &Address) -> Result<()> {
    let Address::Unix(path) = address else {
        return Err(user_error(format!(
            "--listen {address}: give unix:PATH. For programs on other machines, start a daemon with --sessions, or \
             forward the socket by ssh -L"
        )));
    };
    let server = Server::start(options(args)?, path).or_user_error()?;
    print(&format!("serving sessions at {address}\n"))?;
    let mut said = 0;
    loop {
        // Not all ends are reported: the server keeps only the latest ones.
        let ended = server.wait_ended(said + 1, Duration::from_secs(3600));
        let count = server.ended();
        let news = ended.len().min(usize::try_from(count - said).unwrap_or(usize::MAX));
        ended[ended.len() - news..].iter().for_each(|ended| say(args, ended));
        said = count;
    }
}

fn options(args: &Args) -> Result<Options> {
    options_of(args.driver.as_deref(), args.ordinal, args.memory_mib)
}

/// Options of a server on a driver in a file, or on the installed one.
pub(crate) fn options_of(driver: Option<&Path>, ordinal: u32, memory_mib: Option<u64>) -> Result<Options> {
    let stand_in = beside(STAND_IN);
    let gpu = match (driver, open(None, ordinal), &stand_in) {
        (Some(file), _, _) => open(Some(file), ordinal).or_user_error()?,
        (None, Ok(gpu), _) => gpu,
        // If the installed driver has no such device, the argument is wrong.
        (None, Err(OpenError::NoLibrary { .. } | OpenError::NoDevice), Some(file)) => open(Some(file), ordinal)?,
        (None, Err(error), _) => return Err(error).or_user_error(),
    };
    let session_bytes = memory_mib.map(|mib| mib.saturating_mul(1 << 20));
    Ok(Options { gpu, session_bytes, sessions_max: SESSIONS_MAX, recordings: None })
}

fn terms(args: &Args) -> Terms {
    Terms {
        is_real_time: Some(args.class == ClassName::RealTime),
        tenant: args.tenant.as_ref().map(ToString::to_string),
        device: args.device.clone(),
        memory_mib: args.memory_mib,
        sm_partition: args.sm_partition,
        quota_request: args.quota_request,
        quota_limit: args.quota_limit,
        stored_functions: args.stored_functions,
    }
}

/// Runs the program to its end. `has_token` says whether the token in the environment is for this
/// process: the program does not get it.
fn start(started: &Started<'_>, address: &Address, has_token: bool) -> Result<ExitStatus> {
    let library = beside(LIBRARY).with_context(|| {
        format!(
            "{LIBRARY} is not beside this program; build it: cargo build --workspace, with --release if this is one"
        )
    })?;
    let folder = tempfile::tempdir().context("cannot make a folder for the library")?;
    let variables = environment(folder.path(), &library, address, started.libraries);
    let variables = variables.context("cannot link the library")?;
    let (program, arguments) = started.program.split_first().ok_or_else(|| user_error("no program is given"))?;
    let signals = Signals::take().context("cannot receive signals")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(variables).env("ATOLL_SESSION_TERMS", started.terms.write());
    if has_token {
        command.env_remove(TOKEN_VARIABLE);
    }
    let spawned = command.spawn();
    let mut child =
        spawned.with_context(|| format!("cannot start {}", Path::new(program).display())).or_user_error()?;
    signals.hand_on(&child).context("cannot hand signals on to the program")?;
    child.wait().context("cannot wait for the program")
}

/// Signals that would end this process, and with it the server, before the program. Signals from a
/// terminal also reach the program; SIGTERM is forwarded.
struct Signals {
    runtime: Runtime,
    from_terminal: [Signal; 2],
    terminate: Signal,
}

impl Signals {
    /// From here on the signals no longer end this process. Programs that it starts get the
    /// system's default actions.
    fn take() -> Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let guard = runtime.enter();
        let from_terminal = [signal(SignalKind::interrupt())?, signal(SignalKind::quit())?];
        let terminate = signal(SignalKind::terminate())?;
        drop(guard);
        Ok(Signals { runtime, from_terminal, terminate })
    }

    /// Forwards SIGTERM until this process ends.
    fn hand_on(self, child: &Child) -> Result<()> {
        let program = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let Signals { runtime, from_terminal: [mut interrupt, mut quit], mut terminate } = self;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = quit.recv() => {}
                        // The program may have ended.
                        _ = terminate.recv() => drop(pidfd_send_signal(&program, rustix::process::Signal::TERM)),
                    }
                }
            })
        })?;
        Ok(())
    }
}

/// Exits with the program's exit code, or 128 plus the signal that ended it.
pub(crate) fn end(status: ExitStatus) -> Result<()> {
    match status.code().or_else(|| status.signal().map(|signal| 128 + signal)) {
        Some(0) | None => Ok(()),
        Some(code) => std::process::exit(code),
    }
}

fn say(args: &Args, ended: &Ended) {
    if let Some(why) = &ended.why {
        tracing::warn!("a session ended: {why}");
    }
    if args.report {
        // Standard output belongs to the program.
        let _ = std::io::stderr().write_all(text(&ended.report).as_bytes());
    }
}

fn text(report: &Report) -> String {
    let Report { calls, messages, answers, launches, allocations, copies_in, bytes_in, copies_out, bytes_out, .. } =
        report;
    let mut text = String::new();
    let _ = writeln!(text, "session: {calls} recorded calls, {messages} messages, {answers} of them waited for");
    let _ = writeln!(
        text,
        "  {launches} launches, {allocations} allocations; to the device {copies_in} copies, {bytes_in} bytes; \
         back {copies_out} copies, {bytes_out} bytes"
    );
    let StoredCounts { stores, calls, differences, .. } = report.stored;
    if stores > 0 {
        let Report { records, record_bytes, .. } = report;
        let _ = writeln!(
            text,
            "  {stores} stored functions, called {calls} times, {differences} runs differed; {records} records with \
             {record_bytes} bytes were sent"
        );
    }
    text
}
