//! The executor of a device with memory of its own, such as a GPU.
//!
//! One thread drives the device. It sleeps until the daemon rings, a message arrives or a launch
//! ends. It then handles messages, epochs and transfers, launches and completions, in this order,
//! so everything that the daemon sent before it rang is handled first. A second thread loads
//! modules, since the driver may take seconds to compile one, a third copies memory that clients
//! have exported ([`super::imports`]), and a fourth shows signs of life.
//!
//! When the context is lost, its launches complete as failed, the daemon is told the reason, and
//! the process ends, since only a new process gets a new context.

use super::channel::{Channel, ChannelError};
use super::imports::{ToImport, import_all};
use super::jail;
use super::port::{Port, Request, STAGING_BYTES, Status};
use super::serve::{Parts, SendReports, SentModule, ServeError, answer, exactly, os, read_module, refusal};
use super::wire::{Answer, Order, PROTOCOL_VERSION};
use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_device::KeepReports;
use atoll_device::doorbell::FdBell;
use atoll_device::link::{CommandConsumer, Link};
use atoll_device::process::{LoadModule, LoadedModule, ProcessService, RelayedDevice, StartRelayed};
use atoll_device::record::{COMPLETION_WORDS, Command, Completion};
use atoll_device::ring::Producer;
use atoll_device::{DeviceError, Importer, Lane, LaunchRecord, ModuleId, PARAMS_BYTES_MAX, SubmitError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Interval of signs of life.
const BEAT_EVERY: Duration = Duration::from_millis(200);

/// How long to wait for the completions of launches after the context was lost.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(200);

/// How long the thread spins after the last start or end of a launch: the time of a few short
/// kernels. Waking up takes several times as long as a short kernel.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// The thread spins only on machines with at least this many cores. The daemon's thread and the
/// completion thread spin as well, and clients need a core.
const SPIN_CORES_MIN: usize = 4;

/// An id that no module has.
const NO_MODULE: ModuleId = ModuleId(u32::MAX);

/// Runs launches until the daemon closes the channel or the device is lost.
pub(super) fn run(
    channel: &Arc<Channel>,
    device: Box<dyn StartRelayed>,
    descriptors: Vec<OwnedFd>,
) -> Result<(), ServeError> {
    let mut executor = Relay::start(channel, device, descriptors)?;
    let end = executor.serve();
    while end.is_ok() && executor.detaches {
        // The thread that detaches this process also ends it, together with running kernels.
        std::thread::park();
    }
    // The process ends now, without waiting for running kernels.
    std::mem::forget(executor);
    end
}

#[derive(Debug)]
struct Relay {
    relayed: Box<dyn RelayedDevice>,
    channel: Arc<Channel>,
    link: Link,
    queues: Vec<RelayQueue>,
    reports: SendReports,
    /// Rings for the daemon.
    bell: FdBell,
    port: Port,
    /// Rings for this process.
    wake: FdBell,
    /// Modules by the daemon's ids; `None` while one is being loaded.
    modules: HashMap<u32, Option<ModuleId>>,
    /// Number of modules that the other thread has not loaded yet.
    loading: u32,
    to_load: Sender<ToLoad>,
    loaded: Receiver<Loaded>,
    /// Orders for the thread that opens memory of other processes, if the device can open it.
    to_import: Option<Sender<ToImport>>,
    /// Why that thread found the context lost.
    import_lost: Receiver<String>,
    /// Whether a thread detaches this process from its service once the daemon is gone, and then
    /// ends the process.
    detaches: bool,
    /// Whether a launch began or ended since the last call of [`Relay::spins`].
    has_moved: bool,
    /// When [`Relay::spins`] last found that a launch began or ended.
    idle_since: Instant,
    /// Whether the machine has enough cores to spin.
    has_cores: bool,
}

/// A module that the daemon sent, with its id and target.
type ToLoad = (u32, String, Result<SentModule, DeviceError>);

/// The result of loading it.
type Loaded = (u32, Result<LoadedModule, DeviceError>);

/// Loads modules, one after the other, and rings after each.
fn load_all(load: &LoadModule, inbox: &Receiver<ToLoad>, outbox: &Sender<Loaded>, port: &Port, wake: &FdBell) {
    while let Ok((module, target, sent)) = inbox.recv() {
        let loaded = sent.and_then(|sent| load(sent.image(&target)));
        if outbox.send((module, loaded)).is_err() {
            return;
        }
        port.wake(wake);
    }
}

/// Starts the thread that opens memory of other processes. If it finds the context lost, it says so
/// in `outbox` and rings.
fn start_importing(
    importer: Box<dyn Importer>,
    daemon: &Arc<Channel>,
    outbox: Sender<String>,
    (port, wake): (Port, FdBell),
) -> Result<Sender<ToImport>, ServeError> {
    let ((to_import, inbox), daemon) = (channel(), daemon.clone());
    let give = move |order: u64, done: Result<u64, DeviceError>| {
        let lost = if let Err(DeviceError::Lost(why)) = &done { Some(why.clone()) } else { None };
        // The relay detects that the daemon is gone.
        let _ = daemon.send(&Answer::of_import(order, done), &[], true);
        if lost.is_some_and(|why| outbox.send(why).is_ok()) {
            port.wake(&wake);
        }
    };
    let importing = move || import_all(importer, &inbox, give);
    std::thread::Builder::new().name("atoll-import".to_owned()).spawn(importing).map_err(os("start a thread"))?;
    Ok(to_import)
}

/// A client of the service must be detached before it is killed. If the daemon is gone, the
/// executor detaches itself, on a separate thread: the other threads may be waiting for a kernel
/// that never ends.
fn detach_after(daemon: &Arc<Channel>, service: Arc<dyn ProcessService>) -> Result<(), ServeError> {
    let channel = daemon.clone();
    let detach = move || {
        // `poll` reports the end of the other side without being asked for events.
        while poll(&mut [PollFd::new(&channel, PollFlags::empty())], None) == Err(rustix::io::Errno::INTR) {}
        let _ = service.detach(std::process::id());
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new().name("atoll-detach".to_owned()).spawn(detach).map_err(os("start a thread"))?;
    set_parent_process_death_signal(None).map_err(os("outlive the daemon"))
}

/// The executor's ends of a device queue.
#[derive(Debug)]
struct RelayQueue {
    commands: CommandConsumer,
    completions: Producer<COMPLETION_WORDS>,
    /// Launches in flight on the device, oldest first.
    in_flight: VecDeque<LaunchId>,
}

impl Relay {
    fn start(
        daemon: &Arc<Channel>,
        device: Box<dyn StartRelayed>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Relay, ServeError> {
        let [link, bell, port, wake] = exactly(descriptors)?;
        let shape = device.link_shape();
        let link = Link::attach(link, shape).map_err(os("map the command rings"))?;
        let port = Port::attach(port).map_err(os("map memory for transfers"))?;
        let missing = jail::enter_with_driver().map_err(os("enter the jail"))?;
        let beat = link.clone();
        let beating = move || loop {
            beat.beat_word().fetch_add(1, Relaxed);
            std::thread::sleep(BEAT_EVERY);
        };
        std::thread::Builder::new().name("atoll-beat".to_owned()).spawn(beating).map_err(os("start a thread"))?;
        let detaches = device.service().map(|service| detach_after(daemon, service)).transpose()?.is_some();
        let (region, words_at, _) = port.region();
        let relayed = device.start(region, words_at)?;
        let importer = relayed.importer()?;
        answer(daemon, &Answer::Device { facts: relayed.facts(), memory: relayed.share_memory() })?;
        answer(daemon, &Answer::Ready { version: PROTOCOL_VERSION, missing })?;
        let (to_load, inbox) = channel();
        let (outbox, loaded) = channel();
        let wake = FdBell::from_fd(wake);
        let (loader, same_port, same_wake) =
            (relayed.loader(), port.clone(), wake.try_clone().map_err(os("duplicate an eventfd"))?);
        let loading = move || load_all(&loader, &inbox, &outbox, &same_port, &same_wake);
        std::thread::Builder::new().name("atoll-load".to_owned()).spawn(loading).map_err(os("start a thread"))?;
        let (lost_outbox, import_lost) = channel();
        let to_import = match importer {
            Some(importer) => {
                let bell = (port.clone(), wake.try_clone().map_err(os("duplicate an eventfd"))?);
                Some(start_importing(importer, daemon, lost_outbox, bell)?)
            }
            None => None,
        };
        let queue = |queue| {
            let (commands, completions) = link.device_ends(queue);
            RelayQueue { commands, completions, in_flight: VecDeque::new() }
        };
        Ok(Relay {
            queues: (0..shape.all_queues()).map(queue).collect(),
            reports: SendReports { channel: daemon.clone(), link: link.clone() },
            bell: FdBell::from_fd(bell),
            wake,
            relayed,
            channel: daemon.clone(),
            link,
            port,
            modules: HashMap::new(),
            loading: 0,
            to_load,
            loaded,
            to_import,
            import_lost,
            detaches,
            has_moved: false,
            idle_since: Instant::now(),
            has_cores: std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= SPIN_CORES_MIN),
        })
    }

    fn serve(&mut self) -> Result<(), ServeError> {
        loop {
            match self.step() {
                Ok(true) if self.spins() => std::hint::spin_loop(),
                Ok(true) => self.sleep()?,
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.drain();
                    return Err(error);
                }
            }
        }
    }

    /// Handles everything that is pending. False once the daemon has closed the channel.
    fn step(&mut self) -> Result<bool, ServeError> {
        self.port.silence(&self.wake);
        if !self.take_orders()? {
            return Ok(false);
        }
        self.take_loaded()?;
        if let Ok(why) = self.import_lost.try_recv() {
            return Err(DeviceError::Lost(why).into());
        }
        self.relayed.follow_epochs()?;
        self.take_request()?;
        self.take_commands()?;
        self.give_completions()?;
        match self.relayed.device().lost() {
            Some(why) => Err(DeviceError::Lost(why).into()),
            None => Ok(true),
        }
    }

    /// Sends the completions that the device still returns after its loss; it knows which kernels
    /// may be the cause.
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN_TIME_MAX;
        while self.give_completions().is_ok()
            && self.queues.iter().any(|queue| !queue.in_flight.is_empty())
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether to spin instead of sleeping: launches are in flight, one began or ended within
    /// [`SPIN_TIME`], and the machine has enough cores.
    fn spins(&mut self) -> bool {
        if std::mem::take(&mut self.has_moved) {
            self.idle_since = Instant::now();
        }
        self.has_cores
            && self.queues.iter().any(|queue| !queue.in_flight.is_empty())
            && self.idle_since.elapsed() < SPIN_TIME
    }

    /// Sleeps until something is pending.
    fn sleep(&self) -> Result<(), ServeError> {
        let completion = self.relayed.device().completion_fd();
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&completion, PollFlags::IN),
            PollFd::new(&self.channel, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(os("wait for the daemon")(error)),
        }
    }

    /// Handles messages. False once the daemon has closed the channel.
    fn take_orders(&mut self) -> Result<bool, ServeError> {
        loop {
            match self.channel.receive::<Order>(false) {
                Ok(Some((order, descriptors))) => self.handle(order, descriptors)?,
                Ok(None) => return Ok(true),
                Err(ChannelError::Closed) => return Ok(false),
                Err(error) => return Err(ServeError::BadOrder(error.to_string())),
            }
        }
    }

    fn handle(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Result<(), ServeError> {
        match order {
            Order::Load { module, target, code_bytes, ptx_bytes, facts_bytes } => {
                self.modules.insert(module, None);
                self.loading += 1;
                let sent = read_module(Parts { code_bytes, ptx_bytes, facts_bytes }, descriptors);
                let gone =
                    |_| ServeError::Device(DeviceError::Lost("the thread that loads modules has ended".to_owned()));
                self.to_load.send((module, target, sent)).map_err(gone)
            }
            Order::Unload { module } => {
                // A module that is still being loaded is dropped when it arrives.
                if let Some(Some(id)) = self.modules.remove(&module) {
                    self.relayed.device_mut().unload_module(id);
                }
                Ok(())
            }
            Order::Raise { word, epoch } => {
                self.relayed.device_mut().store_epoch(DeviceOffset(word), Epoch(epoch));
                Ok(())
            }
            Order::Interrupt { queue, launch } => {
                // The launch may still be in its ring. Its epoch was raised before this order was
                // sent, so its blocks will exit at their start. While a module is loaded, the driver
                // may copy its code by a kernel, which would be killed as well.
                if self.loading == 0 {
                    self.relayed.device_mut().interrupt(QueueId(queue), LaunchId(launch), u64::MAX);
                }
                Ok(())
            }
            Order::OpenLane { lane, queues, paired_queues, units } => {
                let all = self.queues.len() as u32;
                if queues.is_empty() || queues.end > all {
                    return Err(ServeError::BadOrder(format!("a lane with device queues {queues:?}; there are {all}")));
                }
                let lane = Lane { id: LaneId(lane), queues, paired_queues };
                Ok(self.relayed.attach_lane(&lane, &units.collect::<Vec<u32>>())?)
            }
            Order::CloseLane { queues } => {
                if queues
                    .clone()
                    .any(|queue| self.queues.get(queue as usize).is_none_or(|queue| !queue.in_flight.is_empty()))
                {
                    return Err(ServeError::BadOrder(format!(
                        "a lane of device queues {queues:?} is closed while launches are in them"
                    )));
                }
                self.relayed.detach_lane(queues);
                Ok(())
            }
            order @ (Order::Import { .. } | Order::CloseImport { .. }) => {
                let cannot = || ServeError::BadOrder("memory of another process, which it cannot open".to_owned());
                let gone =
                    |_| ServeError::Device(DeviceError::Lost("the thread that imports memory has ended".to_owned()));
                self.to_import.as_ref().ok_or_else(cannot)?.send((order, descriptors)).map_err(gone)
            }
            Order::Hello { .. } => Err(ServeError::BadOrder("a second `Hello`".to_owned())),
            Order::Show { .. } | Order::Hide { .. } => {
                Err(ServeError::BadOrder("constants to map, on a device with memory of its own".to_owned()))
            }
        }
    }

    /// Reports modules that were loaded.
    fn take_loaded(&mut self) -> Result<(), ServeError> {
        while let Ok((module, loaded)) = self.loaded.try_recv() {
            self.loading -= 1;
            let refusal = match loaded {
                Ok(loaded) => {
                    if let Some(id) = self.modules.get_mut(&module) {
                        *id = Some(self.relayed.adopt(loaded)?);
                    }
                    None
                }
                Err(DeviceError::Lost(why)) => return Err(DeviceError::Lost(why).into()),
                Err(error) => Some(refusal(error)),
            };
            answer(&self.channel, &Answer::Loaded { module, refusal })?;
        }
        Ok(())
    }

    /// Performs the transfer that the daemon waits for, if there is one.
    fn take_request(&mut self) -> Result<(), ServeError> {
        let Some((ticket, request)) = self.port.next_request() else { return Ok(()) };
        let request = request.ok_or_else(|| ServeError::BadOrder("an invalid transfer".to_owned()))?;
        // Handles the messages that were sent before the request.
        self.take_orders()?;
        self.relayed.follow_epochs()?;
        let answer = self.transfer(request);
        let status = match &answer {
            Ok(()) => Status::Done,
            Err(DeviceError::OutOfRange { .. }) => Status::OutOfRange,
            Err(_) => Status::Failed,
        };
        self.port.complete(ticket, status);
        match answer {
            Ok(()) | Err(DeviceError::OutOfRange { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn transfer(&mut self, request: Request) -> Result<(), DeviceError> {
        let (_, _, staging_at) = self.port.region();
        match request {
            Request::Write { at, bytes } => {
                self.relayed.write_from(DeviceOffset(at), staging_at, bytes.min(STAGING_BYTES))
            }
            Request::Read { at, bytes } => {
                self.relayed.read_into(DeviceOffset(at), staging_at, bytes.min(STAGING_BYTES))
            }
            Request::Copy { from, to, bytes } => {
                self.relayed.device_mut().copy(DeviceOffset(from), DeviceOffset(to), bytes)
            }
            Request::Fill { at, bytes, value } => self.relayed.device_mut().fill(DeviceOffset(at), value, bytes),
            Request::Bind { word, index } => self.relayed.bind_epoch(DeviceOffset(word), index as usize),
        }
    }

    /// Takes launches from the rings, in the order of the queues' numbers.
    ///
    /// Orders that were sent before a launch are handled before it: the daemon may have closed the
    /// lane of a queue, opened another lane, and then put a launch into the queue.
    fn take_commands(&mut self) -> Result<(), ServeError> {
        let corrupt = |_| ServeError::BadOrder("a corrupt ring".to_owned());
        let mut taken = Vec::new();
        for index in 0..self.queues.len() {
            while let Some(command) = self.queues[index].commands.pop_with(Command::take).map_err(corrupt)? {
                taken.push((index, command));
            }
        }
        if !taken.is_empty() {
            self.take_orders()?;
        }
        taken.iter().try_for_each(|(index, command)| self.submit(*index, command))
    }

    fn submit(&mut self, index: usize, command: &Command) -> Result<(), ServeError> {
        let module = self.modules.get(&command.record.module.0).copied().flatten().unwrap_or(NO_MODULE);
        let record = LaunchRecord { module, ..command.record };
        let params = match command.params_bytes as usize {
            bytes if bytes <= PARAMS_BYTES_MAX => command.params.to_bytes(bytes),
            // The ring holds only the size of an oversized block; the device refuses the launch for
            // it.
            _ => vec![0; PARAMS_BYTES_MAX + 1],
        };
        let queue = QueueId(index as u32);
        if !self.relayed.has_queue(queue) {
            return Err(ServeError::BadOrder(format!("a launch for device queue {index}, which belongs to no lane")));
        }
        match self.relayed.device_mut().submit(queue, &record, &params) {
            Ok(()) => {
                self.queues[index].in_flight.push_back(record.launch);
                self.has_moved = true;
            }
            // The daemon completes it once this process is gone.
            Err(SubmitError::Lost) => {}
            Err(SubmitError::Full) => return Err(ServeError::BadOrder("more launches than a queue holds".to_owned())),
        }
        Ok(())
    }

    fn give_completions(&mut self) -> Result<(), ServeError> {
        let mut any = false;
        while let Some(completion) = self.relayed.device_mut().next_completion() {
            if let Some(report) = self.relayed.device_mut().report(completion.launch) {
                self.reports.put(completion.launch, report);
            }
            self.give(&completion)?;
            any = true;
        }
        if any {
            self.has_moved = true;
            self.bell.ring(self.link.completion_flag());
        }
        Ok(())
    }

    fn give(&mut self, completion: &Completion) -> Result<(), ServeError> {
        let queue = self.queues.iter_mut().find(|queue| queue.in_flight.front() == Some(&completion.launch));
        let queue = queue.expect("a device completes the launches of a queue in order");
        queue.in_flight.pop_front();
        queue
            .completions
            .push(&completion.to_words())
            .map_err(|_| ServeError::BadOrder("a corrupt or full ring".to_owned()))
    }
}
