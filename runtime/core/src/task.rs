//! One task between its arrival and its end.
//!
//! A task runs its steps in order. Steps before `completed` are complete, `next` is the next step
//! to issue, and the launches between the two are in flight. After a host step the task may
//! continue at another step: skipped steps count as complete, and steps that run again as not yet
//! run.
//!
//! Invariants, asserted here:
//! - All launches of a task that are in flight carry one epoch. After the epoch is raised nothing
//!   is issued until all of them have ended.
//! - The first launch of an epoch that comes back evicted is the first incomplete step, and every
//!   later launch comes back evicted too. A later launch carries the same epoch and starts after
//!   the evicted one ended, and the epoch word never decreases; so its blocks see the raised word,
//!   or a later one. None of them runs on inputs that the evicted launch had yet to write.
//! - Therefore steps complete one by one, in order.
//!
//! A restartable launch does not report whether it exited early. If it ended after the epoch was
//! raised, it counts as evicted, and every step that may have run is run again, starting with the
//! first such launch. Three rules make that correct: such a launch is issued only behind other
//! restartable launches, all of them at or after its restore point; no launch of another kind is
//! issued behind it; and a launch that ended before the epoch was raised was not evicted.
//!
//! In a fork (`fork.rs`) all of that holds for each branch by itself. The branches share the epoch:
//! after it is raised, neither branch issues anything until everything in flight in both has ended.

use crate::event::{LaunchEnd, Outcome, Step, TaskSpec};
use crate::fork::{Fork, Forked};
use crate::host_queue::Place;
use crate::ids::{Class, Epoch, Nanos, QueueId, TaskId, Urgency};
use crate::padding::LaunchProfile;
use std::sync::Arc;

/// Where a task is in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not ready: its constants or session are missing.
    Unready,
    /// In a host queue.
    Waiting,
    /// Bound to a device queue; its memory and inputs are being prepared.
    Preparing,
    /// Running, or paused by its policy.
    Running,
    /// Finished, except for launches in flight.
    Ending(Outcome),
}

/// A step index that no task reaches.
const NO_FORK: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) spec: TaskSpec,
    pub(crate) phase: Phase,
    /// Its position in the host queue, reserved also while the task is not in the queue.
    pub(crate) place: Place,
    /// The device queue it is bound to, from preparation on.
    pub(crate) queue: Option<QueueId>,
    /// The second device queue it is bound to, for the second branch of a fork.
    pub(crate) paired_queue: Option<QueueId>,
    /// The fork that is running now. Until both branches are complete, `completed` and `next` stay
    /// at its first step.
    forked: Option<Box<Forked>>,
    /// The first step of the next fork; `NO_FORK` if there is none.
    fork_at: u32,
    /// Index of that fork in [`TaskSpec::forks`].
    next_fork: usize,
    pub(crate) preemptions: u32,
    /// How many of the preemptions the perturbation caused.
    pub(crate) perturbations: u32,
    /// When its launches are aborted. Set when the task ends while launches are in flight.
    pub(crate) abort_at: Option<Nanos>,
    /// The value of its epoch word.
    epoch: Epoch,
    /// The epoch of the launches in flight.
    issued: Epoch,
    in_flight: u32,
    /// How many of the launches in flight are preemptible.
    preemptible_in_flight: u32,
    /// How many of those are restartable; they are the last ones.
    restartable_in_flight: u32,
    host_step_running: bool,
    completed: u32,
    next: u32,
    /// Launches of other tasks in which blocks of this task are co-scheduled.
    co_scheduled: u32,
    /// Blocks of the next step that ran co-scheduled.
    padded: u32,
    /// The first step and block that have not been co-scheduled yet.
    co_schedule_next: (u32, u32),
    /// A launch with co-scheduled blocks was aborted while later blocks were in flight: those
    /// blocks may have read incomplete inputs.
    inputs_lost: bool,
    /// A launch of `issued` was evicted, or may have been.
    eviction_seen: bool,
    /// A launch failed or was aborted; results of later launches are ignored.
    failure_seen: bool,
}

/// The effect of an ended launch on its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The task continues.
    Continues,
    /// This was the last step.
    Complete,
    /// The launch failed, and the task with it.
    Failed,
}

impl Task {
    pub(crate) fn new(spec: TaskSpec, place: Place) -> Task {
        let mut task = Task {
            phase: if spec.ready { Phase::Waiting } else { Phase::Unready },
            spec,
            place,
            queue: None,
            paired_queue: None,
            forked: None,
            fork_at: NO_FORK,
            next_fork: 0,
            preemptions: 0,
            perturbations: 0,
            abort_at: None,
            epoch: Epoch::default(),
            issued: Epoch::default(),
            in_flight: 0,
            preemptible_in_flight: 0,
            restartable_in_flight: 0,
            host_step_running: false,
            completed: 0,
            next: 0,
            co_scheduled: 0,
            padded: 0,
            co_schedule_next: (0, 0),
            inputs_lost: false,
            eviction_seen: false,
            failure_seen: false,
        };
        task.find_fork(0);
        task
    }

    pub(crate) fn id(&self) -> TaskId {
        self.spec.task
    }

    pub(crate) fn class(&self) -> Class {
        self.spec.class
    }

    /// How urgent it is, as its policy ranks it.
    pub(crate) fn urgency(&self) -> Urgency {
        Urgency { class: self.spec.class, rank: self.place.rank() }
    }

    /// Whether the device or the host works on it right now.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight > 0 || self.host_step_running || self.co_scheduled > 0
    }

    /// Whether launches of it are on the device.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether every step is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.completed as usize == self.spec.steps.len()
    }

    /// Whether the epoch was raised and launches of the old epoch are still in flight.
    pub(crate) fn is_draining(&self) -> bool {
        self.in_flight > 0 && self.issued != self.epoch
    }

    /// Whether nothing is left to issue, unless a launch is evicted.
    pub(crate) fn has_issued_all(&self) -> bool {
        match self.phase {
            Phase::Unready | Phase::Waiting | Phase::Preparing => false,
            Phase::Running => {
                self.next as usize == self.spec.steps.len() && !self.is_draining() && !self.host_step_running
            }
            Phase::Ending(_) => true,
        }
    }

    /// Whether it issues launches or waits to issue them, and does not wait for a host step.
    pub(crate) fn wants_device(&self) -> bool {
        self.phase == Phase::Running && !self.host_step_running
    }

    /// The next step, if it may be issued now.
    pub(crate) fn ready_step(&self) -> Option<(u32, Step)> {
        if self.phase != Phase::Running || self.is_draining() || self.host_step_running || self.co_scheduled > 0 {
            return None;
        }
        if self.next == self.fork_at {
            return None;
        }
        let step = *self.spec.steps.get(self.next as usize)?;
        let ready = match step {
            Step::Preemptible => self.restartable_in_flight == 0,
            Step::Restartable { restore_point } => {
                self.restartable_in_flight == 0 || self.next - self.restartable_in_flight >= restore_point
            }
            Step::NotPreemptible => self.preemptible_in_flight == 0,
            Step::Host => self.in_flight == 0,
        };
        ready.then_some((self.next, step))
    }

    /// Records that step `next` was submitted to the device; returns the epoch it carries.
    pub(crate) fn issue(&mut self, step: Step) -> Epoch {
        self.begin_issue();
        self.next += 1;
        self.in_flight += 1;
        self.preemptible_in_flight += u32::from(is_preemptible(step));
        self.restartable_in_flight += u32::from(is_restartable(step));
        self.epoch
    }

    fn begin_issue(&mut self) {
        assert!(self.in_flight == 0 || self.issued == self.epoch, "{:?}: launches of two epochs in flight", self.id());
        if self.in_flight == 0 {
            assert_eq!(
                self.next,
                self.completed,
                "{:?}: nothing is in flight, but the next step is not the first incomplete one",
                self.id()
            );
            self.issued = self.epoch;
            self.eviction_seen = false;
        }
    }

    // Forks.

    /// The fork at the task's current step, if the task has just reached it. The caller then calls
    /// [`Task::fork`] or [`Task::pass_fork`].
    pub(crate) fn fork_ahead(&self) -> Option<&Fork> {
        if self.next != self.fork_at || self.forked.is_some() || self.phase != Phase::Running || self.is_busy() {
            return None;
        }
        self.spec.forks.as_ref()?.get(self.next_fork)
    }

    /// Starts the fork, each branch in its own queue.
    pub(crate) fn fork(&mut self, queues: [QueueId; 2]) {
        let fork = self.fork_ahead().expect("a fork begins when the task has reached it");
        self.forked = Some(Box::new(Forked::begin(fork, queues)));
        self.paired_queue = Some(queues[1]);
    }

    /// Runs the fork's steps in order, in one queue.
    pub(crate) fn pass_fork(&mut self) {
        self.find_fork(self.next_fork + 1);
    }

    fn find_fork(&mut self, from: usize) {
        let fork = self.spec.forks.as_ref().and_then(|forks| forks.get(from));
        (self.next_fork, self.fork_at) = (from, fork.map_or(NO_FORK, |fork| fork.steps().start));
    }

    /// Whether its next step is the first of a fork, or the fork is running.
    pub(crate) fn is_at_fork(&self) -> bool {
        self.next == self.fork_at
    }

    /// The second queue, once it is not needed because both branches are complete.
    pub(crate) fn take_paired_queue(&mut self) -> Option<QueueId> {
        if self.forked.is_some() { None } else { self.paired_queue.take() }
    }

    /// Moves the task to another lane. The remaining steps of a fork run there in one queue.
    pub(crate) fn move_to(&mut self, queue: Option<QueueId>) {
        (self.queue, self.paired_queue) = (queue, None);
        if let (Some(forked), Some(queue)) = (&mut self.forked, queue) {
            forked.move_to(queue);
        }
    }

    /// The next step of the branch in this queue, if it may be issued now.
    pub(crate) fn ready_branch_step(&self, queue: QueueId) -> Option<u32> {
        let may_issue = self.phase == Phase::Running && !self.is_draining();
        self.forked.as_ref().filter(|_| may_issue)?.ready_step(queue)
    }

    /// Records that a step of a branch was submitted to the device; returns the epoch it carries.
    pub(crate) fn issue_in_branch(&mut self, step: u32) -> Epoch {
        self.begin_issue();
        self.forked.as_mut().expect("a step of a branch belongs to a running fork").issued(step);
        self.in_flight += 1;
        self.preemptible_in_flight += 1;
        self.epoch
    }

    /// A step is complete.
    fn completed(&mut self, step: u32) {
        let Some(forked) = &mut self.forked else {
            assert_eq!(step, self.completed, "{:?}: a step completed out of order", self.id());
            self.completed += 1;
            self.padded = 0;
            return;
        };
        forked.completed(step);
        if forked.is_complete() {
            self.completed = forked.end();
            self.forked = None;
            self.find_fork(self.next_fork + 1);
        }
    }

    fn evicted(&mut self, step: u32) {
        match &mut self.forked {
            Some(forked) => forked.evicted(step),
            None => self.eviction_seen = true,
        }
    }

    /// The profile of a step, if its blocks can be padded or can pad others.
    pub(crate) fn profile(&self, step: u32) -> Option<&LaunchProfile> {
        self.spec.profiles.as_ref()?.get(step as usize)?.as_ref()
    }

    /// The next step whose blocks may be co-scheduled, with the number of its blocks that were or
    /// are. Launches of real-time tasks run in order, so blocks may follow others that are still in
    /// flight.
    pub(crate) fn padding_candidate(&self) -> Option<(u32, u32, &LaunchProfile)> {
        if self.phase != Phase::Running || self.in_flight > 0 || self.host_step_running || self.inputs_lost {
            return None;
        }
        let (step, done) = if self.co_scheduled > 0 { self.co_schedule_next } else { (self.next, self.padded) };
        let is_preemptible = self.spec.steps.get(step as usize) == Some(&Step::Preemptible);
        self.profile(step).filter(|_| is_preemptible).map(|profile| (step, done, profile))
    }

    /// Records that `blocks` more blocks of [`Task::padding_candidate`] are co-scheduled with
    /// another task's launch; returns the epoch they carry.
    pub(crate) fn co_schedule(&mut self, blocks: u32) -> Epoch {
        assert!(
            self.next == self.completed,
            "{:?}: blocks are co-scheduled while launches of the task are in flight",
            self.id()
        );
        let (step, done, profile) = self.padding_candidate().expect("only padding candidates are co-scheduled");
        let is_whole = done + blocks == profile.blocks;
        self.co_schedule_next = if is_whole { (step + 1, 0) } else { (step, done + blocks) };
        self.co_scheduled += 1;
        self.epoch
    }

    /// Records the end of the oldest co-scheduled launch: `ran` blocks ran, or it is unknown.
    pub(crate) fn co_scheduled_ended(&mut self, ran: Option<u32>) -> Progress {
        self.co_scheduled = self.co_scheduled.checked_sub(1).expect("a co-scheduled launch ends once");
        match ran {
            Some(blocks) if !self.inputs_lost => self.padded += blocks,
            // Blocks behind it may have read incomplete inputs, and may have overwritten them.
            _ => self.inputs_lost |= self.co_scheduled > 0,
        }
        if self.profile(self.next).is_some_and(|profile| self.padded == profile.blocks) {
            self.completed += 1;
            (self.next, self.padded) = (self.completed, 0);
        }
        match self.inputs_lost {
            true => Progress::Failed,
            false if self.is_complete() => Progress::Complete,
            false => Progress::Continues,
        }
    }

    pub(crate) fn start_host_step(&mut self) {
        assert!(
            !self.is_busy() && self.next == self.completed,
            "{:?}: a host step while launches are in flight",
            self.id()
        );
        self.next += 1;
        self.host_step_running = true;
    }

    /// Replaces the steps behind the host step that is running.
    pub(crate) fn replace_steps(&mut self, steps: Arc<[Step]>) {
        assert!(self.host_step_running, "{:?}: steps are replaced while no host step is running", self.id());
        let behind = self.next as usize;
        assert_eq!(
            steps.get(..behind),
            self.spec.steps.get(..behind),
            "{:?}: completed steps were replaced",
            self.id()
        );
        self.spec.steps = steps;
    }

    /// Records the end of a host step. The task continues at step `next`, if one is given.
    pub(crate) fn host_step_done(&mut self, next: Option<u32>) {
        assert!(self.host_step_running, "{:?}: a host step ended that was not started", self.id());
        self.host_step_running = false;
        self.completed += 1;
        if let Some(to) = next {
            self.jump(to);
        }
    }

    /// Continues at another step. Steps before `to` count as complete and the others as not yet
    /// run, which is right because no launch is in flight.
    fn jump(&mut self, to: u32) {
        let (low, high) = (to.min(self.completed), to.max(self.completed));
        let forks = self.spec.forks.iter().flat_map(|forks| forks.iter());
        let is_clear = forks.map(Fork::steps).all(|steps| steps.end <= low || steps.start >= high);
        assert!(
            is_clear && to as usize <= self.spec.steps.len(),
            "{:?}: it jumps to step {to}, past a fork or its end",
            self.id()
        );
        (self.completed, self.next) = (to, to);
    }

    /// Raises the epoch if a launch in flight is preemptible and not yet told to exit.
    pub(crate) fn raise(&mut self) -> Option<Epoch> {
        if self.preemptible_in_flight == 0 || self.is_draining() {
            return None;
        }
        self.epoch = self.epoch.next();
        Some(self.epoch)
    }

    /// Whether a launch can have ended in this way. The device reports the end from memory that a
    /// faulty kernel may have overwritten.
    fn is_credible(&self, step: u32, epoch: Epoch, end: LaunchEnd) -> bool {
        let (is_first, eviction_seen) = match &self.forked {
            Some(forked) => forked.place_of(step),
            None => (step == self.completed, self.eviction_seen),
        };
        match end {
            LaunchEnd::Complete => !eviction_seen || is_restartable(self.spec.steps[step as usize]),
            LaunchEnd::Evicted => {
                let could_exit_early = is_preemptible(self.spec.steps[step as usize]) && epoch.is_raised_by(self.epoch);
                could_exit_early && (eviction_seen || is_first)
            }
            LaunchEnd::Failed | LaunchEnd::Aborted => true,
        }
    }

    /// Whether a launch that ended, and does not report early exits, may have been evicted.
    pub(crate) fn may_be_evicted(&self, step: u32, epoch: Epoch) -> bool {
        is_restartable(self.spec.steps[step as usize]) && epoch.is_raised_by(self.epoch)
    }

    /// Records the end of a launch.
    pub(crate) fn launch_ended(&mut self, step: u32, epoch: Epoch, end: LaunchEnd) -> Progress {
        let id = self.id();
        assert!(
            self.in_flight > 0 && epoch == self.issued,
            "{id:?}: step {step} ended under {epoch:?}, in flight are launches of {:?}",
            self.issued
        );
        let kind = self.spec.steps[step as usize];
        self.in_flight -= 1;
        self.preemptible_in_flight -= u32::from(is_preemptible(kind));
        self.restartable_in_flight -= u32::from(is_restartable(kind));
        match end {
            _ if self.failure_seen => return Progress::Failed,
            LaunchEnd::Failed | LaunchEnd::Aborted => {
                self.failure_seen = true;
                return Progress::Failed;
            }
            _ if !self.is_credible(step, epoch, end) => {
                self.failure_seen = true;
                return Progress::Failed;
            }
            LaunchEnd::Complete if self.may_be_evicted(step, epoch) => self.eviction_seen = true,
            LaunchEnd::Complete => self.completed(step),
            LaunchEnd::Evicted => self.evicted(step),
        }
        if self.in_flight == 0 {
            // Evicted steps are issued again, starting with the first incomplete one.
            self.next = self.completed;
            if let Some(forked) = &mut self.forked {
                forked.rewind();
            }
        }
        if self.is_complete() { Progress::Complete } else { Progress::Continues }
    }
}

/// Whether launches of a step may exit early.
fn is_preemptible(step: Step) -> bool {
    matches!(step, Step::Preemptible | Step::Restartable { .. })
}

fn is_restartable(step: Step) -> bool {
    matches!(step, Step::Restartable { .. })
}

#[cfg(test)]
mod tests;
