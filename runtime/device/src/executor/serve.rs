//! The executor's side: what `atoll executor` runs.

use super::channel::{Channel, ChannelError};
use super::jail;
use super::wire::{Answer, CODE_BYTES_MAX, ConstantRange, FACTS_BYTES_MAX, Order, PROTOCOL_VERSION};
use crate::doorbell::FdBell;
use crate::extent::Window;
use crate::host::{DeviceSide, HostConfig, KeepReports, KernelSpace, Link, constants_window};
use crate::report::LaunchReport;
use crate::shm::Region;
use crate::{DeviceError, ModuleId, ModuleImage};
use atoll_core::LaunchId;
use atoll_kgraph::KernelFacts;
use rustix::process::Signal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Why an executor ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What it was started with is no channel to a daemon.
    #[error("an executor is started by the daemon, with a channel as its standard input; this one {0}")]
    NoDaemon(String),
    /// The daemon sent what cannot be.
    #[error("the daemon sent what it may not: {0}")]
    BadOrder(String),
    /// The device cannot run here.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// System calls cannot be restricted.
    #[error("code of others is not run without a jail: {0}")]
    Jail(String),
    /// The system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// Runs launches for the daemon at the other end of the standard input until that closes it. To be called by a process that does nothing else, and ends when this returns.
pub fn serve() -> Result<(), ServeError> {
    jail::enter_alone().map_err(os("give up what was inherited"))?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(os("duplicate the standard input"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(os("ask to die with the daemon"))?;
    let channel = Arc::new(Channel::new(socket));
    match run(&channel) {
        Ok(()) => Ok(()),
        Err(error) => {
            // Whoever started us hears why, if it still listens.
            let _ = channel.send(&Answer::Refused { reason: error.to_string() }, &[], false);
            Err(error)
        }
    }
}

fn run(channel: &Arc<Channel>) -> Result<(), ServeError> {
    let (mut device_side, window) = begin(channel)?;
    let end = loop {
        match channel.receive::<Order>(true) {
            Ok(Some((order, descriptors))) => match obey(&mut device_side, &window, channel, order, descriptors) {
                Ok(()) => {}
                Err(error) => break Err(error),
            },
            Ok(None) | Err(ChannelError::Closed) => break Ok(()),
            Err(error) => break Err(ServeError::BadOrder(error.to_string())),
        }
    };
    // The process ends now: nobody waits for what still runs.
    std::mem::forget(device_side);
    end
}

/// From the first message to running compute units, and the addresses in which they find constants.
fn begin(channel: &Arc<Channel>) -> Result<(DeviceSide, Arc<Window>), ServeError> {
    let (order, descriptors) = match channel.receive::<Order>(true) {
        Ok(Some(received)) => received,
        Ok(None) | Err(ChannelError::Closed) => return Err(ServeError::NoDaemon("was told nothing".to_owned())),
        Err(error) => return Err(ServeError::NoDaemon(format!("cannot read its standard input: {error}"))),
    };
    let Order::Hello { version, daemon, config, nice } = order else {
        return Err(ServeError::BadOrder("the first message is no greeting".to_owned()));
    };
    if version != PROTOCOL_VERSION {
        return Err(ServeError::BadOrder(format!("version {version} of the protocol; this program speaks {PROTOCOL_VERSION}")));
    }
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if parent != daemon {
        return Err(ServeError::NoDaemon(format!("was started by process {daemon}, which has ended")));
    }
    let window = Arc::new(constants_window(config.constants_bytes)?);
    let (side, missing) = start(channel, descriptors, window.clone(), config.checked()?, nice)?;
    jail::enter().map_err(ServeError::Jail)?;
    answer(channel, &Answer::Ready { version: PROTOCOL_VERSION, missing })?;
    Ok((side, window))
}

fn start(
    channel: &Arc<Channel>,
    descriptors: Vec<OwnedFd>,
    window: Arc<Window>,
    config: HostConfig,
    nice: i32,
) -> Result<(DeviceSide, Vec<String>), ServeError> {
    let [link, memory, bell] = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|descriptors| ServeError::BadOrder(format!("a greeting with {} descriptors", descriptors.len())))?;
    let link = Link::attach(link, config.link_shape()).map_err(os("map the command rings"))?;
    let memory = Arc::new(Region::attach(memory).map_err(os("map device memory"))?);
    memory.prefer_huge_pages();
    if memory.bytes() != config.memory_bytes {
        return Err(ServeError::BadOrder("memory of another size than it says".to_owned()));
    }
    if nice != 0 {
        // Before there are threads, which inherit it. A refusal costs others speed, nothing else.
        let _ = rustix::process::setpriority_process(None, nice);
    }
    let missing = jail::enter_before_threads(&config).map_err(os("enter the jail"))?;
    let reports = Arc::new(SendReports { channel: channel.clone(), link: link.clone() });
    let side = DeviceSide::start(&config, link, KernelSpace::new(memory, window), FdBell::from_fd(bell), reports)?;
    Ok((side, missing))
}

fn obey(side: &mut DeviceSide, window: &Window, channel: &Channel, order: Order, descriptors: Vec<OwnedFd>) -> Result<(), ServeError> {
    match order {
        Order::Hello { .. } => Err(ServeError::BadOrder("a second greeting".to_owned())),
        Order::Load { module, target, code_bytes, facts_bytes } => {
            let [file] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| ServeError::BadOrder("a module without code".to_owned()))?;
            let refusal = load(side, module, &target, code_bytes, facts_bytes, &file).err().map(|error| match error {
                DeviceError::BadModule(why) => why,
                other => other.to_string(),
            });
            answer(channel, &Answer::Loaded { module, refusal })
        }
        Order::Unload { module } => {
            side.unload_module(ModuleId(module));
            Ok(())
        }
        Order::Show { constants } => {
            show(window, &constants, descriptors)?;
            answer(channel, &Answer::Shown)
        }
        Order::Hide { constants } => {
            let mut constants = constants.into_iter();
            constants.try_for_each(|range| window.hide(range.at, range.bytes)).map_err(os("give addresses of constants back"))
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

fn load(side: &mut DeviceSide, module: u32, target: &str, code_bytes: u64, facts_bytes: u64, file: &OwnedFd) -> Result<(), DeviceError> {
    let unreadable = |error: rustix::io::Errno| DeviceError::Os { what: "read a module", source: error.into() };
    if code_bytes > CODE_BYTES_MAX || facts_bytes > FACTS_BYTES_MAX {
        return Err(DeviceError::BadModule("it is too large".to_owned()));
    }
    let mut bytes = vec![0; (code_bytes + facts_bytes) as usize];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(file, &mut bytes[done..], done as u64).map_err(unreadable)? {
            0 => return Err(DeviceError::BadModule("it is shorter than it says".to_owned())),
            read => done += read,
        }
    }
    let (code, facts) = bytes.split_at(code_bytes as usize);
    let kernels: Vec<KernelFacts> =
        serde_json::from_slice(facts).map_err(|error| DeviceError::BadModule(format!("its facts cannot be read: {error}")))?;
    side.load_module(ModuleId(module), ModuleImage { domain: "", target, code, ptx: None, kernels: &kernels })
}

fn answer(channel: &Channel, answer: &Answer) -> Result<(), ServeError> {
    match channel.send(answer, &[], true) {
        // A daemon that is gone is heard of by the next receive.
        Ok(_) | Err(ChannelError::Closed) => Ok(()),
        Err(error) => Err(ServeError::BadOrder(error.to_string())),
    }
}

/// Reports leave at once, before their completions.
#[derive(Debug)]
struct SendReports {
    channel: Arc<Channel>,
    link: Link,
}

impl KeepReports for SendReports {
    fn put(&self, launch: LaunchId, report: LaunchReport) {
        if report != LaunchReport::default() {
            for piece in Answer::of_report(launch, report) {
                // The daemon reads always; one that is gone needs no reports.
                let _ = self.channel.send(&piece, &[], true);
            }
            self.link.note_report();
        }
    }
}

fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> ServeError {
    move |source| ServeError::Os { what, source: source.into() }
}
