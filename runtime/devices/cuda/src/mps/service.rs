//! A control daemon that is kept running while it is needed.

use super::{MpsControl, MpsError, MpsShare};
use atoll_device::DeviceError;
use atoll_device::process::KeptService;
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limits for a started daemon to answer, and for a daemon that was told to quit to end.
const START_WITHIN: Duration = Duration::from_secs(10);
const QUIT_WITHIN: Duration = Duration::from_secs(5);

/// How long to wait until the daemon's list no longer names clients that have ended.
const CLIENTS_GO_WITHIN: Duration = Duration::from_secs(1);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Interval of checks whether the daemon still runs.
const LIFE_EVERY: Duration = Duration::from_millis(500);

/// Uses a running control daemon, or starts one and keeps it running. A daemon that was started
/// here ends when this is dropped, unless it has other clients: then it is left to them.
#[derive(Debug)]
pub(super) struct MpsService {
    keeper: Arc<Keeper>,
    /// Dropping it ends the thread.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Keeper {
    control: MpsControl,
    /// The control daemon, if it was started here.
    own: Mutex<Option<Child>>,
}

impl MpsService {
    pub(super) fn begin(share: &MpsShare) -> Result<MpsService, DeviceError> {
        let keeper = Arc::new(Keeper { control: share.control(), own: Mutex::new(None) });
        keeper.ensure(&mut keeper.own())?;
        let (over, is_over) = channel::<()>();
        let watched = keeper.clone();
        let look = move || {
            while is_over.recv_timeout(LIFE_EVERY) == Err(RecvTimeoutError::Timeout) {
                watched.look();
            }
        };
        let thread = std::thread::Builder::new().name("atoll-mps".to_owned()).spawn(look);
        let thread = thread.map_err(|source| DeviceError::Os { what: "start a thread", source })?;
        Ok(MpsService { keeper, over: Some(over), thread: Some(thread) })
    }
}

impl KeptService for MpsService {
    /// Makes sure that a control daemon answers: a process started without one would get the whole
    /// GPU.
    fn ensure(&self) -> Result<(), DeviceError> {
        self.keeper.ensure(&mut self.keeper.own())
    }

    /// Whether a process that uses the GPU is a client. If the list has only other process ids,
    /// this is not known, as between containers, and the answer is yes.
    fn has_client(&self, pid: u32) -> Result<bool, DeviceError> {
        let clients = self.keeper.control.clients().map_err(unavailable)?;
        if !clients.is_empty() && !clients.contains(&pid) {
            tracing::warn!(
                pid,
                ?clients,
                "MPS does not list the executor's process id; \
                 it is not known whether the executor is confined to its share"
            );
        }
        Ok(!clients.is_empty())
    }
}

impl Keeper {
    fn own(&self) -> MutexGuard<'_, Option<Child>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ensure(&self, own: &mut Option<Child>) -> Result<(), DeviceError> {
        if self.control.answers() {
            return Ok(());
        }
        let before = own.take();
        before.into_iter().for_each(end);
        let mut child = self.control.start().map_err(unavailable)?;
        tracing::info!(pid = child.id(), folder = %self.control.folder().display(), "started the MPS control daemon");
        let until = Instant::now() + START_WITHIN;
        while !self.control.answers() {
            if let Ok(Some(status)) = child.try_wait() {
                let folder = self.control.folder().display();
                return Err(DeviceError::Unavailable(format!(
                    "the MPS control daemon ended by itself ({status}); see {folder}/log"
                )));
            }
            if Instant::now() > until {
                end(child);
                return Err(DeviceError::Unavailable(format!(
                    "the MPS control daemon did not answer within {START_WITHIN:?}"
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        *own = Some(child);
        Ok(())
    }

    /// Restarts the daemon if it has ended.
    fn look(&self) {
        let mut own = self.own();
        let Some(Ok(Some(status))) = own.as_mut().map(Child::try_wait) else { return };
        tracing::warn!(%status, "the MPS control daemon ended; restarting it");
        *own = None;
        if let Err(error) = self.ensure(&mut own) {
            tracing::error!(%error, "cannot replace executors of this GPU until MPS runs again");
        }
    }

    /// Waits for a while until the daemon has no clients; returns those that remain, which are
    /// other programs.
    fn others(&self) -> Vec<u32> {
        let until = Instant::now() + CLIENTS_GO_WITHIN;
        loop {
            match self.control.clients() {
                Ok(clients) if !clients.is_empty() && Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                clients => return clients.unwrap_or_default(),
            }
        }
    }
}

impl Drop for MpsService {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let Some(mut child) = self.keeper.own().take() else { return };
        let others = self.keeper.others();
        if !others.is_empty() {
            tracing::info!(pid = child.id(), clients = ?others, "leaving the MPS control daemon to its other clients");
            return;
        }
        let until = Instant::now() + QUIT_WITHIN;
        if self.keeper.control.quit().is_ok() {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        end(child);
    }
}

/// Kills a process that may have ended already.
fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn unavailable(error: MpsError) -> DeviceError {
    DeviceError::Unavailable(format!("a share of a GPU needs NVIDIA's MPS: {error}"))
}
