//! The executor of a GPU: what `atoll executor` does where it was given one.
//!
//! One thread has the device. It sleeps until the daemon rings, a message comes or a launch ends, and then does what there is to do: what came by message, transfers and epochs, launches, completions, in this order. So
//! what the daemon sent before it rang is done before what it rang for. Modules are loaded by a second thread, since the driver may take seconds to compile one, and a third one beats.
//!
//! When the context is lost, the launches that it had are answered for, the daemon is told why, and the process ends: nothing else mends a context.

use super::channel::{Channel, ChannelError};
use super::config::DeviceConfig;
use super::jail;
use super::mps::MpsControl;
use super::port::{Port, Request, STAGING_BYTES, Status};
use super::serve::{Parts, SendReports, SentModule, ServeError, answer, exactly, os, read_module, refusal};
use super::wire::{Answer, Order, PROTOCOL_VERSION};
use crate::cuda::{CudaConfig, LoadedModule, Loader, SharedCuda};
use crate::doorbell::FdBell;
use crate::host::{KeepReports, Link};
use crate::record::{COMMAND_WORDS, COMPLETION_WORDS, Command, Completion, PARAMS_BYTES_MAX};
use crate::ring::{Consumer, Producer};
use crate::{Device, DeviceError, LaunchRecord, ModuleId, SubmitError};
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How often it shows a sign of life.
const BEAT_EVERY: Duration = Duration::from_millis(200);

/// How long it waits for launches that the loss of the context ended.
const WIND_UP_WITHIN: Duration = Duration::from_millis(200);

/// A module that is never loaded.
const NO_MODULE: ModuleId = ModuleId(u32::MAX);

/// Runs launches on a GPU until the daemon closes the channel or the GPU's context is lost.
pub(super) fn run(channel: &Arc<Channel>, config: &CudaConfig, descriptors: Vec<OwnedFd>) -> Result<(), ServeError> {
    let mut executor = GpuExecutor::start(channel, config, descriptors)?;
    let end = executor.serve();
    while end.is_ok() && executor.takes_leave {
        // What still runs here is ended by the thread that takes leave, and this process with it.
        std::thread::park();
    }
    // The process ends now: nobody waits for what still runs.
    std::mem::forget(executor);
    end
}

#[derive(Debug)]
struct GpuExecutor {
    gpu: SharedCuda,
    channel: Arc<Channel>,
    link: Link,
    queues: Vec<GpuQueue>,
    reports: SendReports,
    /// Rings for the daemon.
    bell: FdBell,
    port: Port,
    /// Rings here.
    wake: FdBell,
    /// Modules by the daemon's numbers; nothing while one is being loaded.
    modules: HashMap<u32, Option<ModuleId>>,
    to_load: Sender<ToLoad>,
    loaded: Receiver<Loaded>,
    /// Once the daemon is gone, a thread tells MPS and ends the process.
    takes_leave: bool,
}

/// A module that the daemon sent, and its number and target there.
type ToLoad = (u32, String, Result<SentModule, DeviceError>);

/// What became of it.
type Loaded = (u32, Result<LoadedModule, DeviceError>);

/// Loads modules, one after the other, and rings after each.
fn load_all(loader: &Loader, inbox: &Receiver<ToLoad>, outbox: &Sender<Loaded>, port: &Port, wake: &FdBell) {
    while let Ok((module, target, sent)) = inbox.recv() {
        let loaded = sent.and_then(|sent| loader.load(sent.image(&target)));
        if outbox.send((module, loaded)).is_err() {
            return;
        }
        port.wake(wake);
    }
}

/// Nobody kills a client of MPS before it has taken leave. So when there is no daemon any more it does so by itself, on a thread of its own: the others may be waiting for a kernel that never ends.
fn take_leave_of(mps: MpsControl, daemon: &Arc<Channel>) -> Result<(), ServeError> {
    let channel = daemon.clone();
    let leave = move || {
        // Without being asked for, the end of the other side is told.
        while poll(&mut [PollFd::new(&channel, PollFlags::empty())], None) == Err(rustix::io::Errno::INTR) {}
        let _ = mps.terminate(std::process::id());
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new().name("atoll-leave".to_owned()).spawn(leave).map_err(os("start a thread"))?;
    set_parent_process_death_signal(None).map_err(os("outlive the daemon"))
}

/// The executor's ends of a device queue.
#[derive(Debug)]
struct GpuQueue {
    commands: Consumer<COMMAND_WORDS>,
    completions: Producer<COMPLETION_WORDS>,
    /// Launches that the device has, oldest first.
    in_flight: VecDeque<LaunchId>,
}

impl GpuExecutor {
    fn start(daemon: &Arc<Channel>, config: &CudaConfig, descriptors: Vec<OwnedFd>) -> Result<GpuExecutor, ServeError> {
        let [link, bell, port, wake] = exactly(descriptors)?;
        let link = Link::attach(link, config.link_shape()?).map_err(os("map the command rings"))?;
        let port = Port::attach(port).map_err(os("map memory for transfers"))?;
        let missing = jail::enter_with_gpu().map_err(os("enter the jail"))?;
        let beat = link.clone();
        let beating = move || loop {
            beat.beat_word().fetch_add(1, Relaxed);
            std::thread::sleep(BEAT_EVERY);
        };
        std::thread::Builder::new().name("atoll-beat".to_owned()).spawn(beating).map_err(os("start a thread"))?;
        let mps = DeviceConfig::Cuda(config.clone()).mps();
        let takes_leave = mps.map(|mps| take_leave_of(mps, daemon)).transpose()?.is_some();
        let (region, words_at, _) = port.region();
        let gpu = SharedCuda::start(config, region, words_at)?;
        answer(daemon, &Answer::Gpu { facts: gpu.device.facts().clone() })?;
        answer(daemon, &Answer::Ready { version: PROTOCOL_VERSION, missing })?;
        let (to_load, inbox) = channel();
        let (outbox, loaded) = channel();
        let wake = FdBell::from_fd(wake);
        let (loader, same_port, same_wake) = (gpu.loader(), port.clone(), wake.try_clone().map_err(os("duplicate an eventfd"))?);
        let loading = move || load_all(&loader, &inbox, &outbox, &same_port, &same_wake);
        std::thread::Builder::new().name("atoll-load".to_owned()).spawn(loading).map_err(os("start a thread"))?;
        let queue = |queue| {
            let (commands, completions) = link.device_ends(queue);
            GpuQueue { commands, completions, in_flight: VecDeque::new() }
        };
        Ok(GpuExecutor {
            queues: (0..config.queues).map(queue).collect(),
            reports: SendReports { channel: daemon.clone(), link: link.clone() },
            bell: FdBell::from_fd(bell),
            wake,
            gpu,
            channel: daemon.clone(),
            link,
            port,
            modules: HashMap::new(),
            to_load,
            loaded,
            takes_leave,
        })
    }

    fn serve(&mut self) -> Result<(), ServeError> {
        loop {
            match self.step() {
                Ok(true) => self.sleep()?,
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.wind_up();
                    return Err(error);
                }
            }
        }
    }

    /// Does what there is to do. False once the daemon closed the channel.
    fn step(&mut self) -> Result<bool, ServeError> {
        self.port.silence(&self.wake);
        if !self.take_orders()? {
            return Ok(false);
        }
        self.take_loaded()?;
        self.gpu.follow_epochs()?;
        self.take_request()?;
        self.take_commands()?;
        self.give_completions()?;
        match self.gpu.device.lost() {
            Some(why) => Err(DeviceError::Lost(why).into()),
            None => Ok(true),
        }
    }

    /// Answers for what was lost, as far as the device still does: it knows which kernels may be why.
    fn wind_up(&mut self) {
        let until = Instant::now() + WIND_UP_WITHIN;
        while self.give_completions().is_ok() && self.queues.iter().any(|queue| !queue.in_flight.is_empty()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Until there is something to do.
    fn sleep(&self) -> Result<(), ServeError> {
        let completion = self.gpu.device.completion_fd();
        let mut fds =
            [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&completion, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(os("wait for the daemon")(error)),
        }
    }

    /// Does what came by message. False once the daemon closed the channel.
    fn take_orders(&mut self) -> Result<bool, ServeError> {
        loop {
            match self.channel.receive::<Order>(false) {
                Ok(Some((order, descriptors))) => self.obey(order, descriptors)?,
                Ok(None) => return Ok(true),
                Err(ChannelError::Closed) => return Ok(false),
                Err(error) => return Err(ServeError::BadOrder(error.to_string())),
            }
        }
    }

    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Result<(), ServeError> {
        match order {
            Order::Load { module, target, code_bytes, ptx_bytes, facts_bytes } => {
                self.modules.insert(module, None);
                let sent = read_module(Parts { code_bytes, ptx_bytes, facts_bytes }, descriptors);
                let gone = |_| ServeError::Device(DeviceError::Lost("the thread that loads modules has ended".to_owned()));
                self.to_load.send((module, target, sent)).map_err(gone)
            }
            Order::Unload { module } => {
                // One that is not there yet goes when it comes.
                if let Some(Some(id)) = self.modules.remove(&module) {
                    self.gpu.device.unload_module(id);
                }
                Ok(())
            }
            Order::Raise { word, epoch } => {
                self.gpu.device.store_epoch(DeviceOffset(word), Epoch(epoch));
                Ok(())
            }
            Order::Hello { .. } => Err(ServeError::BadOrder("a second greeting".to_owned())),
            Order::Show { .. } | Order::Hide { .. } => Err(ServeError::BadOrder("constants of their own, which a GPU has not".to_owned())),
        }
    }

    /// Tells of modules that were loaded.
    fn take_loaded(&mut self) -> Result<(), ServeError> {
        while let Ok((module, loaded)) = self.loaded.try_recv() {
            let refusal = match loaded {
                Ok(loaded) => {
                    if let Some(id) = self.modules.get_mut(&module) {
                        *id = Some(self.gpu.adopt(loaded));
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

    /// Does the transfer that the daemon waits for, if there is one.
    fn take_request(&mut self) -> Result<(), ServeError> {
        let Some((ticket, request)) = self.port.next_request() else { return Ok(()) };
        let request = request.ok_or_else(|| ServeError::BadOrder("a transfer that cannot be".to_owned()))?;
        // What was sent before it was asked for.
        self.take_orders()?;
        self.gpu.follow_epochs()?;
        let answer = self.transfer(request);
        let status = match &answer {
            Ok(()) => Status::Done,
            Err(DeviceError::OutOfRange { .. }) => Status::OutOfRange,
            Err(_) => Status::Failed,
        };
        self.port.settle(ticket, status);
        match answer {
            Ok(()) | Err(DeviceError::OutOfRange { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn transfer(&mut self, request: Request) -> Result<(), DeviceError> {
        let (_, _, staging_at) = self.port.region();
        match request {
            Request::Write { at, bytes } => self.gpu.write(DeviceOffset(at), staging_at, bytes.min(STAGING_BYTES)),
            Request::Read { at, bytes } => self.gpu.read(DeviceOffset(at), staging_at, bytes.min(STAGING_BYTES)),
            Request::Copy { from, to, bytes } => self.gpu.device.copy(DeviceOffset(from), DeviceOffset(to), bytes),
            Request::Fill { at, bytes, value } => self.gpu.device.fill(DeviceOffset(at), value, bytes),
            Request::Bind { word, index } => self.gpu.bind_epoch(DeviceOffset(word), index as usize),
        }
    }

    /// Takes launches, those of the most urgent queue first.
    fn take_commands(&mut self) -> Result<(), ServeError> {
        let corrupt = |_| ServeError::BadOrder("a ring that is corrupt".to_owned());
        for index in 0..self.queues.len() {
            while let Some(words) = self.queues[index].commands.pop().map_err(corrupt)? {
                self.submit(index, &Command::from_words(&words))?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, index: usize, command: &Command) -> Result<(), ServeError> {
        let module = self.modules.get(&command.record.module.0).copied().flatten().unwrap_or(NO_MODULE);
        let record = LaunchRecord { module, ..command.record };
        let mut params = [0; PARAMS_BYTES_MAX];
        params.chunks_exact_mut(8).zip(command.params).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        let params = params.get(..command.params_bytes as usize).unwrap_or_default();
        match self.gpu.device.submit(QueueId(index as u32), &record, params) {
            Ok(()) => self.queues[index].in_flight.push_back(record.launch),
            // The daemon answers for it when this process is gone.
            Err(SubmitError::Lost) => {}
            Err(SubmitError::Full) => return Err(ServeError::BadOrder("more launches than a queue takes".to_owned())),
        }
        Ok(())
    }

    fn give_completions(&mut self) -> Result<(), ServeError> {
        let mut any = false;
        while let Some(completion) = self.gpu.device.next_completion() {
            if let Some(report) = self.gpu.device.report(completion.launch) {
                self.reports.put(completion.launch, report);
            }
            self.give(&completion)?;
            any = true;
        }
        if any {
            self.bell.ring(self.link.completion_flag());
        }
        Ok(())
    }

    fn give(&mut self, completion: &Completion) -> Result<(), ServeError> {
        let queue = self.queues.iter_mut().find(|queue| queue.in_flight.front() == Some(&completion.launch));
        let queue = queue.expect("a device ends launches of a queue in their order");
        queue.in_flight.pop_front();
        queue.completions.push(&completion.to_words()).map_err(|_| ServeError::BadOrder("a ring that is corrupt or full".to_owned()))
    }
}
