//! Messages to the service manager.

use crate::support::{Behaviour, Connection, Daemon, Options, eventually, write_bundle};
use atoll_server::ServiceManager;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// How long a message may take, generous enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

const WATCHDOG: Duration = Duration::from_millis(100);

/// A service manager.
struct Manager {
    socket: UnixDatagram,
    _folder: TempDir,
}

impl Manager {
    /// A service manager, and the options of a daemon that reports to it.
    fn start(watchdog: Option<Duration>) -> (Manager, Options) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(path.to_str().unwrap(), watchdog).unwrap();
        (Manager { socket, _folder: folder }, Options { manager, ..Options::default() })
    }

    /// The next message, unless none comes in time.
    fn next(&self, timeout: Duration) -> Option<String> {
        let mut bytes = [0; 4096];
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        let count = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    /// The next message that begins with `begin`.
    fn told(&self, begin: &str) -> String {
        loop {
            let message = self.next(TIMEOUT).unwrap_or_else(|| panic!("no message with {begin}"));
            if message.starts_with(begin) {
                return message;
            }
        }
    }
}

fn toy(repository: &Path) {
    write_bundle(&repository.join("toy.kg"));
}

#[test]
fn ready_names_what_is_loaded_and_what_has_failed() {
    let (manager, options) = Manager::start(None);
    let daemon = Daemon::with(options, |repository| {
        toy(repository);
        std::fs::write(repository.join("broken.kg"), "no bundle").unwrap();
    });
    // Strict readiness: the daemon is up, and not ready for all of its clients.
    assert_eq!(manager.told("READY=1"), "READY=1\nSTATUS=serving 1 model (toy); failed to load: broken");
    assert_eq!(daemon.get("/v2/health/ready").status, 503);
    assert_eq!(daemon.post("/v2/repository/models/toy/unload", "{}").status, 200);
    assert_eq!(manager.told("STATUS=serving 0"), "STATUS=serving 0 models; failed to load: broken");
}

#[test]
fn stopping_is_told_before_running_requests_have_finished() {
    let (manager, options) = Manager::start(None);
    let mut daemon = Daemon::with(options, toy);
    daemon.engine.behave(Behaviour::Hold);
    let mut busy = Connection::open(daemon.http);
    let ask = br#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
    busy.send("POST", "/v2/models/toy/infer", &[], ask);
    eventually(|| daemon.engine.held() == 1);
    daemon.begin_stop();
    manager.told("STOPPING=1");
    daemon.engine.answer_all();
    assert_eq!(busy.receive().status, 200);
    daemon.stopped();
}

#[test]
fn the_daemon_gives_signs_of_life_only_while_the_engines_answer() {
    let (manager, options) = Manager::start(Some(WATCHDOG));
    let daemon = Daemon::with(options, toy);
    manager.told("WATCHDOG=1");
    manager.told("WATCHDOG=1");
    let blocked = daemon.engine.block();
    // One may be on its way, and others may wait in the socket from before.
    let mut late = 0;
    while let Some(message) = manager.next(WATCHDOG * 10) {
        late += 1;
        assert!(late < 100, "the engines are blocked: {message}");
    }
    drop(blocked);
    manager.told("WATCHDOG=1");
}
