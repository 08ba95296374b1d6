//! The engine's thread: one loop that owns the device, the memory, the functions and the
//! invocations.
//!
//! The scheduler decides and this thread acts: it reports each event to the scheduler and carries
//! out the resulting actions in order. An action may cause further events; their actions are
//! appended to the queue.

mod allowance;
mod batches;
mod borders;
mod checks;
mod closing;
mod drains;
mod endings;
mod executors;
mod functions;
mod gathered;
mod holdings;
mod host_steps;
mod in_flight;
mod inputs;
mod instance_memory;
mod lane_state;
mod lanes;
mod launches;
mod loaded;
mod memory;
mod memory_gate;
mod memory_report;
mod outputs;
mod pad_modules;
mod padding;
mod padding_jobs;
mod pads;
mod parked;
mod read_backs;
mod report;
mod sessions;
mod share_lanes;
mod shares;
mod shutdown;
mod suspended;
mod suspension;
mod tasks;
mod time_limit;
mod trace;
mod waiting;

use crate::accounts::Accounts;
use crate::clock::{self, saturating_nanos};
use crate::config::EngineConfig;
use crate::cores::CoreShare;
use crate::error::InvokeError;
use crate::event::Command;
use crate::function::FunctionId;
use crate::histogram::Histogram;
use crate::invocation::Invocation;
use crate::padding_thread::PaddingThread;
use crate::recorder::Recorder;
use crate::shared::{Inbox, PanicGuard, Shared};
use crate::staging::Stager;
use atoll_core::memory::{Event as MemoryEvent, Memory};
use atoll_core::residency::ResidencyPolicyEntry;
use atoll_core::tokens::TokenConfig;
use atoll_core::{Action, DeviceScheduler, Event, LaunchId, Nanos, PolicyEntry, SchedulerConfig, TaskId};
use atoll_device::priority::WakePriority;
use atoll_device::{Device, cpus, priority};
use gathered::Batches;
use holdings::Holdings;
use in_flight::InFlight;
use lane_state::Lanes;
use loaded::{LoadJob, Loaded};
use pads::PaddingState;
use parked::Parked;
use shutdown::Closing;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

pub(crate) struct Worker {
    /// Dropped first, so that clients of a panicked engine see a lost device.
    _panic: PanicGuard,
    started: Nanos,
    /// The scheduling priority of this thread.
    wake_priority: WakePriority,
    /// The CPUs of this thread.
    cores: CoreShare,
    /// Duration of the last complete launch, in nanoseconds.
    launch_ns: u64,
    device: Box<dyn Device>,
    /// Why the device is lost. A lost device is no longer used.
    lost: Option<String>,
    scheduler: DeviceScheduler,
    scheduling: SchedulerConfig,
    /// Actions of the scheduler to carry out, in order.
    actions: VecDeque<Action>,
    /// Buffer for the scheduler's actions; empty between events.
    pending_actions: Vec<Action>,
    shared: Arc<Shared>,
    inbox: Inbox,
    functions: BTreeMap<FunctionId, Loaded>,
    /// Functions being loaded, one after the other.
    loads: VecDeque<LoadJob>,
    /// By task id, which is the invocation's id.
    invocations: BTreeMap<TaskId, Invocation>,
    launches: HashMap<LaunchId, InFlight>,
    batches: Batches,
    memory: Memory,
    holdings: Holdings,
    padding: PaddingState,
    accounts: Accounts,
    /// Invocations that wait for an executor.
    parked: Vec<Parked>,
    /// Retries of invocations.
    retries: u64,
    /// See [`EngineConfig::branch_gain_min`].
    branch_gain_ns_min: u64,
    lanes: Lanes,
    /// Host steps that finished in this iteration of the loop.
    host_steps_done: VecDeque<Event>,
    closing: Option<Closing>,
    rt_start_latency: Histogram,
    preemption_latency: Histogram,
    /// Evicted launches that are still on the device, by the real-time invocation that evicted
    /// them: its submission time and the launches.
    drains: Vec<(Nanos, Vec<LaunchId>)>,
    drain_latency: Histogram,
    flag_latency: Histogram,
    interrupt_latency: Histogram,
    /// As counted by the device, like the next field.
    reexecuted_blocks: u64,
    discarded_ns: u64,
    recorder: Recorder,
}

/// The parts of a worker besides its device.
pub(crate) struct Parts {
    pub(crate) policy: &'static PolicyEntry,
    pub(crate) residency_policy: &'static ResidencyPolicyEntry,
    pub(crate) stager: Stager,
    pub(crate) padding: Option<PaddingThread>,
}

impl Worker {
    pub(crate) fn new(
        device: Box<dyn Device>,
        Parts { policy, residency_policy, stager, padding }: Parts,
        config: &EngineConfig,
        shared: Arc<Shared>,
        inbox: Inbox,
    ) -> Worker {
        let info = device.info();
        let scheduler = SchedulerConfig {
            policy,
            queues: info.queues.clamp(1, atoll_core::limits::DEVICE_QUEUES_MAX),
            paired_queues: info.paired_queues && config.branch_gain_min.is_some(),
            queue_capacity: config.device_queue_capacity.min(info.queue_capacity).max(1),
            preempt_level: info.preempt_level,
            can_abort: info.can_abort,
            compute_units: info.compute_units,
            best_effort_wait_ns_max: config.best_effort_wait_max.map(saturating_nanos),
            perturb: config.evict_at_random,
        };
        let mut core = DeviceScheduler::new(&scheduler);
        core.configure_tokens(TokenConfig::for_device(info.launch_ns));
        let memory = memory::of_device(info, config, residency_policy);
        let lanes = Lanes::new(info);
        let cores = config.cores.clone().unwrap_or_else(|| CoreShare::alone(info));
        Worker {
            _panic: PanicGuard(Arc::clone(&shared)),
            started: clock::now(),
            wake_priority: WakePriority::Ordinary,
            cores,
            launch_ns: u64::MAX,
            device,
            lost: None,
            scheduler: core,
            scheduling: scheduler,
            actions: VecDeque::new(),
            pending_actions: Vec::new(),
            shared,
            inbox,
            functions: BTreeMap::new(),
            loads: VecDeque::new(),
            invocations: BTreeMap::new(),
            launches: HashMap::new(),
            batches: Batches::default(),
            memory,
            holdings: Holdings::new(stager, Arc::clone(&config.suspension.host)),
            padding: PaddingState::new(padding),
            accounts: Accounts::default(),
            parked: Vec::new(),
            retries: 0,
            branch_gain_ns_min: config.branch_gain_min.map_or(0, saturating_nanos),
            lanes,
            host_steps_done: VecDeque::new(),
            closing: None,
            rt_start_latency: Histogram::default(),
            preemption_latency: Histogram::default(),
            drains: Vec::new(),
            drain_latency: Histogram::default(),
            flag_latency: Histogram::default(),
            interrupt_latency: Histogram::default(),
            reexecuted_blocks: 0,
            discarded_ns: 0,
            recorder: Recorder::new(),
        }
    }

    /// Runs until shutdown. Unfinished invocations are then answered when they are dropped.
    pub(crate) fn run(mut self) {
        let mut idle_since = None;
        if !self.cores.cpus.is_empty() {
            cpus::keep_to(&self.cores.cpus);
        }
        self.wake_priority = priority::wake_first();
        loop {
            let mut busy = self.take_urgent();
            busy |= self.take_completions();
            busy |= self.take_constants_lost();
            busy |= self.take_command();
            busy |= self.take_host_steps_done();
            self.tick();
            if !self.parked.is_empty() {
                self.serve_parked();
            }
            busy |= self.advance_load();
            busy |= self.advance_loading_aside();
            busy |= self.advance_suspensions();
            busy |= self.take_mapped();
            busy |= self.take_output_requests();
            busy |= self.advance_padding();
            self.update_charges();
            self.report_residency();
            if self.is_done() {
                return;
            }
            // Events handled since may have run further host steps.
            busy |= !self.host_steps_done.is_empty();
            match busy {
                true => idle_since = None,
                false if self.spins(*idle_since.get_or_insert_with(clock::now)) => std::hint::spin_loop(),
                false => self.wait(),
            }
        }
    }

    /// Loads the next chunk of constants, at ordinary priority: copying takes long, and must not
    /// keep compute units from their CPUs.
    fn advance_loading_aside(&mut self) -> bool {
        self.memory.is_loading() && priority::at_ordinary_priority(self.wake_priority, || self.advance_loading())
    }

    fn take_urgent(&mut self) -> bool {
        let mut any = false;
        while let Ok(command) = self.inbox.urgent.try_recv() {
            self.handle(command);
            any = true;
        }
        any
    }

    fn take_completions(&mut self) -> bool {
        let mut any = false;
        while self.lost.is_none()
            && let Some(completion) = self.device.next_completion()
        {
            self.launch_ended(&completion);
            any = true;
        }
        // Once for all completions: launches that are issued together can be submitted together.
        self.act();
        any
    }

    /// Handles one command at a time, so that a long queue of commands delays neither real-time
    /// submissions nor completions.
    fn take_command(&mut self) -> bool {
        let command = self.inbox.normal.try_recv();
        let any = command.is_ok();
        if let Ok(command) = command {
            self.handle(command);
        }
        any
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(submission, reply) => self.arrive(*submission, reply),
            Command::Cancel(id) => {
                // The invocation to cancel may still be in the other channel.
                self.take_urgent();
                self.cancel_parked(Some(id), &InvokeError::Cancelled);
                let task = TaskId(id.0);
                let is_batch = self.invocations.get(&task).is_some_and(|invocation| invocation.batch.is_some());
                match self.batches.knows(task) {
                    true => self.answer_early(task, InvokeError::Cancelled),
                    // The request has been answered; its id is now that of its batch.
                    false if is_batch => {}
                    false => self.notify_scheduler(Event::CancelTask { task }),
                }
            }
            Command::CloseSession(session) => {
                // A step of the session may still be in the other channel.
                self.take_urgent();
                self.close_session(session);
            }
            Command::SessionAddress { session, answer } => drop(answer.send(self.session_address(session))),
            Command::Suspension(command) => self.handle_suspension(command),
            Command::Load { function, answer } => self.begin_load(function, answer),
            Command::Unload { key, answer } => self.unload(&key, answer),
            Command::Preload { key } => self.preload(&key),
            Command::Reclaim { key } => self.reclaim(&key),
            Command::OpenLane { spec, answer } => drop(answer.send(self.open_lane(&spec))),
            Command::CloseLane { lane, answer } => self.begin_close_lane(lane, Some(answer)),
            Command::SetShare { client, lane, share, answer } => {
                drop(answer.send(self.set_share(&client, lane, share)))
            }
            Command::LimitMemory { client, limit } => self.limit_memory(&client, limit),
            Command::RemoveShare { client, answer } => drop(answer.send(self.remove_share(&client))),
            Command::PaddingResult(result) => self.padding_compiled(*result),
            Command::Statistics { answer } => drop(answer.send(self.statistics())),
            Command::Trace { from, answer } => drop(answer.send(self.recorder.batch(from, &mut *self.device))),
            Command::Shutdown { grace } => self.close(grace),
        }
        self.act();
    }

    /// Handles the passing of time: deadlines, perturbation, shutdown.
    fn tick(&mut self) {
        let now = clock::now();
        if self.memory.next_wakeup().is_some_and(|at| at <= now) {
            self.notify_memory(MemoryEvent::Tick);
            self.act();
        }
        if self.scheduler.next_wakeup().is_some_and(|at| at <= now) {
            self.notify_scheduler(Event::Tick);
            self.act();
        }
        self.tick_batches(now);
        self.tick_closing(now);
    }

    // The scheduler.

    /// Sends an event to the scheduler; its actions wait for [`Worker::act`].
    fn notify_scheduler(&mut self, event: Event) {
        let now = clock::now();
        self.record_event(now, &event);
        self.scheduler.handle(now, event, &mut self.pending_actions);
        self.actions.extend(self.pending_actions.drain(..));
    }

    /// Carries out all actions of the scheduler and of batching.
    fn act(&mut self) {
        self.act_on_tasks();
        while self.act_on_batches() {
            self.act_on_tasks();
        }
    }

    fn act_on_tasks(&mut self) {
        while let Some(action) = self.actions.pop_front() {
            self.record_action(&action);
            match action {
                Action::RaiseEpoch { task, epoch } => self.raise_epoch(task, epoch),
                Action::Prepare { task } => self.prepare(task),
                Action::Pad { task, step, first, shape, epoch } => self.pad(task, step, first, shape, epoch),
                Action::Issue { launch, task, step, queue, epoch } if self.has_pads() => {
                    self.issue_shared(launch, task, step, queue, epoch)
                }
                Action::Issue { launch, task, step, queue, epoch } => self.issue(launch, task, step, queue, epoch),
                Action::Abort { launch, queue } => self.abort(launch, queue),
                Action::DeclareHung { launch, .. } => self.hung(launch),
                Action::RunHostStep { task, step } => self.run_host_step(task, step),
                Action::CloseLane { lane } => self.close_lane(lane),
                Action::FinishTask { task, outcome, preemptions } => self.finish(task, outcome, preemptions),
            }
        }
    }
}
