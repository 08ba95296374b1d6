//! A control daemon that is there for as long as it is needed.

use super::{MpsControl, MpsError, MpsShare};
use atoll_device::DeviceError;
use atoll_device::process::KeptService;
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one may take to answer after it was started, and to end after it was told to.
const START_WITHIN: Duration = Duration::from_secs(10);
const QUIT_WITHIN: Duration = Duration::from_secs(5);

/// How long is waited for clients that have ended to be off its list.
const CLIENTS_GO_WITHIN: Duration = Duration::from_secs(1);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How often is looked whether it still runs.
const LIFE_EVERY: Duration = Duration::from_millis(500);

/// Uses the control daemon that runs, or starts one and keeps it running. The one that was started
/// ends with this, unless it has other clients: it is theirs then.
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
    /// The control daemon, where it is ours.
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
    /// Sees that a control daemon answers. A process that begins without one has all of the GPU.
    fn ensure(&self) -> Result<(), DeviceError> {
        self.keeper.ensure(&mut self.keeper.own())
    }

    /// Whether a process that uses the GPU is a client. Where all clients have numbers that are not
    /// ours, as between containers, nobody can say.
    fn has_client(&self, pid: u32) -> Result<bool, DeviceError> {
        let clients = self.keeper.control.clients().map_err(unavailable)?;
        if !clients.is_empty() && !clients.contains(&pid) {
            tracing::warn!(
                pid,
                ?clients,
                "MPS does not list the executor by its number; whether it is kept to its share is not known"
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
        tracing::info!(pid = child.id(), folder = %self.control.folder().display(), "the control daemon of MPS begins");
        let until = Instant::now() + START_WITHIN;
        while !self.control.answers() {
            if let Ok(Some(status)) = child.try_wait() {
                let folder = self.control.folder().display();
                return Err(DeviceError::Unavailable(format!(
                    "the control daemon of MPS ended by itself ({status}); {folder}/log says why"
                )));
            }
            if Instant::now() > until {
                end(child);
                return Err(DeviceError::Unavailable(format!(
                    "the control daemon of MPS does not answer within {START_WITHIN:?}"
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        *own = Some(child);
        Ok(())
    }

    /// Starts it anew where it ended.
    fn look(&self) {
        let mut own = self.own();
        let Some(Ok(Some(status))) = own.as_mut().map(Child::try_wait) else { return };
        tracing::warn!(%status, "the control daemon of MPS has ended and is started again");
        *own = None;
        if let Err(error) = self.ensure(&mut own) {
            tracing::error!(%error, "executors of this GPU cannot be replaced until MPS runs again");
        }
    }

    /// Waits until it has no clients; who is left then is not ours.
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
            tracing::info!(pid = child.id(), clients = ?others, "the control daemon of MPS is left to its other clients");
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

/// Ends a process that may have ended.
fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn unavailable(error: MpsError) -> DeviceError {
    DeviceError::Unavailable(format!("a share of a GPU needs NVIDIA's MPS: {error}"))
}
