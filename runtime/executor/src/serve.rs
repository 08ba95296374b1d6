//! The executor's side: the main function of `atoll executor`.

use super::channel::{Channel, ChannelError};
use super::jail;
use super::relay;
use super::wire::{Answer, CODE_BYTES_MAX, ConstantRange, FACTS_BYTES_MAX, Order, PROTOCOL_VERSION};
use atoll_core::LaunchId;
use atoll_device::KeepReports;
use atoll_device::doorbell::FdBell;
use atoll_device::extent::Window;
use atoll_device::link::Link;
use atoll_device::process::{DeviceKind, OpenDevice, RunningUnits, StartUnits, UnitResources};
use atoll_device::report::LaunchReport;
use atoll_device::shm::Region;
use atoll_device::space::{MEMORY_ADDRESS, constants_window};
use atoll_device::{DeviceError, ModuleId, ModuleImage};
use atoll_kgraph::KernelFacts;
use rustix::process::Signal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Why an executor ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its standard input is not a channel to a daemon.
    #[error("an executor is started by the daemon, with a channel as its standard input; this one {0}")]
    NoDaemon(String),
    /// The daemon broke the protocol.
    #[error("the daemon broke the protocol: {0}")]
    BadOrder(String),
    /// The device cannot run here.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// System calls cannot be restricted.
    #[error("untrusted code is not run without a jail: {0}")]
    Jail(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Connects to the daemon over standard input and runs launches for it, on a device of one of these
/// kinds, until the daemon closes the connection. Call it in a process that does nothing else and
/// ends when this returns.
///
/// # Errors
/// If there is no daemon, it breaks the protocol, or the device cannot run.
pub fn serve(kinds: &[DeviceKind]) -> Result<(), ServeError> {
    jail::enter_alone().map_err(os("drop inherited descriptors and privileges"))?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(os("duplicate the standard input"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(os("ask to die with the daemon"))?;
    let channel = Arc::new(Channel::new(socket));
    match run(&channel, kinds) {
        Ok(()) => Ok(()),
        Err(error) => {
            // The daemon learns the reason if it still listens.
            let _ = channel.send(&Answer::Refused { reason: error.to_string() }, &[], false);
            Err(error)
        }
    }
}

fn run(channel: &Arc<Channel>, kinds: &[DeviceKind]) -> Result<(), ServeError> {
    let Hello { device, config, memory_bytes, nice, descriptors } = receive_hello(channel)?;
    let no_such = || {
        ServeError::Device(DeviceError::Unavailable(format!(
            "this program was built without devices of the kind `{device}`"
        )))
    };
    let kind = kinds.iter().find(|kind| kind.name == device).ok_or_else(no_such)?;
    match (kind.open)(&config, memory_bytes)? {
        OpenDevice::Units(units) => run_units(channel, units, nice, descriptors),
        OpenDevice::Relayed(device) => relay::run(channel, device, descriptors),
    }
}

/// The first message.
struct Hello {
    device: String,
    config: String,
    memory_bytes: Option<u64>,
    nice: i32,
    descriptors: Vec<OwnedFd>,
}

fn receive_hello(channel: &Channel) -> Result<Hello, ServeError> {
    let (order, descriptors) = match channel.receive::<Order>(true) {
        Ok(Some(received)) => received,
        Ok(None) | Err(ChannelError::Closed) => return Err(ServeError::NoDaemon("was told nothing".to_owned())),
        Err(error) => return Err(ServeError::NoDaemon(format!("cannot read its standard input: {error}"))),
    };
    let Order::Hello { version, daemon, device, config, memory_bytes, nice } = order else {
        return Err(ServeError::BadOrder("the first message is not `Hello`".to_owned()));
    };
    if version != PROTOCOL_VERSION {
        return Err(ServeError::BadOrder(format!(
            "version {version} of the protocol; this program uses {PROTOCOL_VERSION}"
        )));
    }
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if parent != daemon {
        return Err(ServeError::NoDaemon(format!("was started by process {daemon}, which has ended")));
    }
    Ok(Hello { device, config, memory_bytes, nice, descriptors })
}

/// The descriptors of the `Hello` message; their number must be `N`.
pub(super) fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N], ServeError> {
    let wrong =
        |descriptors: Vec<OwnedFd>| ServeError::BadOrder(format!("`Hello` with {} descriptors", descriptors.len()));
    descriptors.try_into().map_err(wrong)
}

fn run_units(
    channel: &Arc<Channel>,
    units: Box<dyn StartUnits>,
    nice: i32,
    descriptors: Vec<OwnedFd>,
) -> Result<(), ServeError> {
    let window = Arc::new(constants_window(units.constants_bytes())?);
    let (mut units, missing) = start(channel, descriptors, window.clone(), units, nice)?;
    jail::enter().map_err(ServeError::Jail)?;
    answer(channel, &Answer::Ready { version: PROTOCOL_VERSION, missing })?;
    let end = loop {
        match channel.receive::<Order>(true) {
            Ok(Some((order, descriptors))) => match handle(&mut *units, &window, channel, order, descriptors) {
                Ok(()) => {}
                Err(error) => break Err(error),
            },
            Ok(None) | Err(ChannelError::Closed) => break Ok(()),
            Err(error) => break Err(ServeError::BadOrder(error.to_string())),
        }
    };
    // The process ends now, without waiting for running kernels.
    std::mem::forget(units);
    end
}

fn start(
    channel: &Arc<Channel>,
    descriptors: Vec<OwnedFd>,
    constants: Arc<Window>,
    units: Box<dyn StartUnits>,
    nice: i32,
) -> Result<(Box<dyn RunningUnits>, Vec<String>), ServeError> {
    let [link, bell, memory] = exactly(descriptors)?;
    let link = Link::attach(link, units.link_shape()).map_err(os("map the command rings"))?;
    // It may be smaller than the device, but the fences of kernels have the size of the device.
    let memory = Region::attach_within(memory, units.memory_bytes(), Some(MEMORY_ADDRESS));
    let memory = memory.map_err(os("map device memory"))?;
    let memory = Arc::new(memory);
    memory.prefer_huge_pages();
    if memory.bytes() > units.memory_bytes() {
        return Err(ServeError::BadOrder("more memory than announced".to_owned()));
    }
    if nice != 0 {
        // Before there are threads, which inherit it. If it fails, only the speed of other
        // processes suffers.
        let _ = rustix::process::setpriority_process(None, nice);
    }
    let missing = jail::enter_before_threads(units.private_bytes()).map_err(os("enter the jail"))?;
    let reports = Arc::new(SendReports { channel: channel.clone(), link: link.clone() });
    let resources = UnitResources { link, memory, constants, bell: FdBell::from_fd(bell), reports };
    Ok((units.start(resources)?, missing))
}

fn handle(
    units: &mut dyn RunningUnits,
    window: &Window,
    channel: &Channel,
    order: Order,
    descriptors: Vec<OwnedFd>,
) -> Result<(), ServeError> {
    match order {
        Order::Hello { .. } => Err(ServeError::BadOrder("a second `Hello`".to_owned())),
        Order::Load { module, target, code_bytes, ptx_bytes, facts_bytes } => {
            let parts = Parts { code_bytes, ptx_bytes, facts_bytes };
            let loaded = read_module(parts, descriptors)
                .and_then(|sent| units.load_module(ModuleId(module), sent.image(&target)));
            answer(channel, &Answer::Loaded { module, refusal: loaded.err().map(refusal) })
        }
        Order::Unload { module } => {
            units.unload_module(ModuleId(module));
            Ok(())
        }
        Order::Show { constants } => {
            show(window, &constants, descriptors)?;
            answer(channel, &Answer::Shown)
        }
        Order::Raise { .. } => Err(ServeError::BadOrder("an epoch of a device with memory of its own".to_owned())),
        Order::Interrupt { .. } => {
            Err(ServeError::BadOrder("an interruption on a device with memory of its own".to_owned()))
        }
        // Such a device gets no orders for lanes: its rings tell which compute units serve which
        // queues.
        Order::OpenLane { .. } | Order::CloseLane { .. } => {
            Err(ServeError::BadOrder("a lane of a device with memory of its own".to_owned()))
        }
        Order::Import { .. } | Order::CloseImport { .. } => {
            Err(ServeError::BadOrder("memory of another process, on a device that cannot open it".to_owned()))
        }
        Order::Hide { constants } => {
            let mut constants = constants.into_iter();
            constants.try_for_each(|range| window.hide(range.at, range.bytes)).map_err(os("unmap constants"))
        }
    }
}

/// Maps constants; their descriptors are not kept.
fn show(window: &Window, constants: &[ConstantRange], files: Vec<OwnedFd>) -> Result<(), ServeError> {
    if constants.len() != files.len() {
        return Err(ServeError::BadOrder(format!("{} constants with {} descriptors", constants.len(), files.len())));
    }
    let mut pairs = constants.iter().zip(files);
    pairs.try_for_each(|(range, file)| window.show(range.at, range.bytes, file.as_fd())).map_err(os("map constants"))
}

/// Sizes of the parts of a module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) code_bytes: u64,
    pub(super) ptx_bytes: u64,
    pub(super) facts_bytes: u64,
}

/// A module that the daemon sent.
pub(super) struct SentModule {
    code: Vec<u8>,
    ptx: Vec<u8>,
    kernels: Vec<KernelFacts>,
}

impl SentModule {
    pub(super) fn image<'a>(&'a self, target: &'a str) -> ModuleImage<'a> {
        let ptx = (!self.ptx.is_empty()).then_some(&self.ptx[..]);
        ModuleImage { domain: "", target, code: &self.code, ptx, kernels: &self.kernels }
    }
}

/// The reason to report for a module that was not loaded.
pub(super) fn refusal(error: DeviceError) -> String {
    match error {
        DeviceError::BadModule(why) => why,
        other => other.to_string(),
    }
}

/// Reads a module from the descriptor of its message.
pub(super) fn read_module(parts: Parts, descriptors: Vec<OwnedFd>) -> Result<SentModule, DeviceError> {
    let bad = |why: &str| DeviceError::BadModule(why.to_owned());
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| bad("it was sent without code"))?;
    let Parts { code_bytes, ptx_bytes, facts_bytes } = parts;
    if code_bytes.max(ptx_bytes) > CODE_BYTES_MAX || facts_bytes > FACTS_BYTES_MAX {
        return Err(bad("it is too large"));
    }
    let mut at = 0;
    let mut next = |bytes: u64| {
        let part = read_part(&file, at, bytes as usize);
        at += bytes;
        part
    };
    let (code, ptx, facts) = (next(code_bytes)?, next(ptx_bytes)?, next(facts_bytes)?);
    let kernels = serde_json::from_slice(&facts)
        .map_err(|error| DeviceError::BadModule(format!("cannot parse its facts: {error}")))?;
    Ok(SentModule { code, ptx, kernels })
}

fn read_part(file: &OwnedFd, at: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
    let unreadable = |error: rustix::io::Errno| DeviceError::Os { what: "read a module", source: error.into() };
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match rustix::io::pread(file, &mut bytes[done..], at + done as u64).map_err(unreadable)? {
            0 => return Err(DeviceError::BadModule("it is shorter than announced".to_owned())),
            read => done += read,
        }
    }
    Ok(bytes)
}

pub(super) fn answer(channel: &Channel, answer: &Answer) -> Result<(), ServeError> {
    match channel.send(answer, &[], true) {
        // The next receive detects that the daemon is gone.
        Ok(_) | Err(ChannelError::Closed) => Ok(()),
        Err(error) => Err(ServeError::BadOrder(error.to_string())),
    }
}

/// Sends each report at once, before the completion of its launch.
#[derive(Debug)]
pub(super) struct SendReports {
    pub(super) channel: Arc<Channel>,
    pub(super) link: Link,
}

impl KeepReports for SendReports {
    fn put(&self, launch: LaunchId, report: LaunchReport) {
        if report != LaunchReport::default() {
            for piece in Answer::of_report(launch, report) {
                // The daemon always reads; if it is gone, it needs no reports.
                let _ = self.channel.send(&piece, &[], true);
            }
            self.link.note_report();
        }
    }
}

pub(super) fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> ServeError {
    move |source| ServeError::Os { what, source: source.into() }
}
