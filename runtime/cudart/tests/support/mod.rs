//! Programs, and folders in which they find a runtime and a driver.

use atoll_session::{Address, Report};
use atoll_session_server::{LIBRARY, Libraries, Options, RUNTIME, STAND_IN, Server, environment, open};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a program in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Device memory of a session in these tests.
const SESSION_BYTES: u64 = 64 << 20;

/// A library that cargo built for this test.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(1).expect("target/<profile>/deps").join(name)
}

/// Reports why a test is skipped.
#[allow(clippy::print_stderr, reason = "the runner collects these lines")]
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// A folder as `atoll run` makes it, and a server on the stand-in driver.
pub(crate) struct Sessions {
    server: Server,
    address: Address,
    folder: TempDir,
}

impl Sessions {
    pub(crate) fn start() -> Sessions {
        Sessions::with_driver(LIBRARY)
    }

    /// Sessions whose programs load this library as their driver.
    pub(crate) fn with_driver(driver: &str) -> Sessions {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions.sock");
        let gpu = open(Some(&library(STAND_IN)), 0).expect("the stand-in driver");
        let options = Options { gpu, session_bytes: Some(SESSION_BYTES), sessions_max: 8, recordings: None };
        let server = Server::start(options, &path).expect("a server");
        let address = Address::Unix(path);
        environment(folder.path(), &library(driver), &address, Libraries::Atoll).expect("links");
        assert!(folder.path().join(RUNTIME).is_file(), "cargo built the runtime");
        Sessions { server, address, folder }
    }

    /// Runs a program in a session.
    pub(crate) fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", self.folder.path());
        command.env("ATOLL_SESSION", self.address.to_string()).output().expect("the program")
    }

    /// Output and errors of a program that succeeds.
    pub(crate) fn output(&self, program: &Path, arguments: &[&str]) -> (String, String) {
        let output = self.run(program, arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}\n{out}\n{errors}", output.status);
        (out, errors)
    }

    /// The report of the last session, after `count` sessions.
    pub(crate) fn report(&self, count: u64) -> Report {
        let ended = self.server.wait_ended(count, PATIENCE);
        let last = ended.last().expect("a session ended");
        assert_eq!(last.why, None);
        last.report
    }
}
