//! One task between its arrival and its end.
//!
//! A task runs its steps in order. Steps before `completed` are complete, `next` is the next step
//! to issue, and the launches between the two are in flight.
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
    Away,
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
    cuttable_in_flight: u32,
    /// How many of those are restartable; they are the last ones.
    restartable_in_flight: u32,
    host_step_running: bool,
    completed: u32,
    next: u32,
    /// Launches of other tasks in which blocks of this task are co-scheduled.
    riding: u32,
    /// Blocks of the next step that ran co-scheduled.
    padded: u32,
    /// The step, and the block of it, that follow everything co-scheduled so far.
    ride_next: (u32, u32),
    /// A launch with co-scheduled blocks was aborted while later blocks were in flight: those
    /// blocks may have read incomplete inputs.
    spoiled: bool,
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
            phase: if spec.ready { Phase::Waiting } else { Phase::Away },
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
            cuttable_in_flight: 0,
            restartable_in_flight: 0,
            host_step_running: false,
            completed: 0,
            next: 0,
            riding: 0,
            padded: 0,
            ride_next: (0, 0),
            spoiled: false,
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
        self.in_flight > 0 || self.host_step_running || self.riding > 0
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
            Phase::Away | Phase::Waiting | Phase::Preparing => false,
            Phase::Running => {
                self.next as usize == self.spec.steps.len() && !self.is_draining() && !self.host_step_running
            }
            Phase::Ending(_) => true,
        }
    }

    /// The next step, if it may be issued now.
    pub(crate) fn ready_step(&self) -> Option<(u32, Step)> {
        if self.phase != Phase::Running || self.is_draining() || self.host_step_running || self.riding > 0 {
            return None;
        }
        if self.next == self.fork_at {
            return None;
        }
        let step = *self.spec.steps.get(self.next as usize)?;
        let ready = match step {
            Step::Cuttable => self.restartable_in_flight == 0,
            Step::Restartable { from } => {
                self.restartable_in_flight == 0 || self.next - self.restartable_in_flight >= from
            }
            Step::Solid => self.cuttable_in_flight == 0,
            Step::Host => self.in_flight == 0,
        };
        ready.then_some((self.next, step))
    }

    /// Records that step `next` was submitted to the device; returns the epoch it carries.
    pub(crate) fn issue(&mut self, step: Step) -> Epoch {
        self.begin_issue();
        self.next += 1;
        self.in_flight += 1;
        self.cuttable_in_flight += u32::from(may_leave(step));
        self.restartable_in_flight += u32::from(is_restartable(step));
        self.epoch
    }

    fn begin_issue(&mut self) {
        assert!(self.in_flight == 0 || self.issued == self.epoch, "{:?}: launches of two epochs in flight", self.id());
        if self.in_flight == 0 {
            assert_eq!(
                self.next,
                self.completed,
                "{:?}: nothing is in flight, yet steps are neither complete nor to be issued",
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
        let fork = self.fork_ahead().expect("only a part that is ahead begins");
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

    /// Moves the task to another lane; what is left of a fork runs there in one queue.
    pub(crate) fn move_to(&mut self, queue: Option<QueueId>) {
        (self.queue, self.paired_queue) = (queue, None);
        if let (Some(forked), Some(queue)) = (&mut self.forked, queue) {
            forked.move_to(queue);
        }
    }

    /// The next step of the branch in this queue, if it may be issued now.
    pub(crate) fn ready_line_step(&self, queue: QueueId) -> Option<u32> {
        let may_issue = self.phase == Phase::Running && !self.is_draining();
        self.forked.as_ref().filter(|_| may_issue)?.ready_step(queue)
    }

    /// Records that a step of a branch was submitted to the device; returns the epoch it carries.
    pub(crate) fn issue_in_line(&mut self, step: u32) -> Epoch {
        self.begin_issue();
        self.forked.as_mut().expect("a line's step is one of a part in two lines").issued(step);
        self.in_flight += 1;
        self.cuttable_in_flight += 1;
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
        if self.phase != Phase::Running || self.in_flight > 0 || self.host_step_running || self.spoiled {
            return None;
        }
        let (step, done) = if self.riding > 0 { self.ride_next } else { (self.next, self.padded) };
        let is_cuttable = self.spec.steps.get(step as usize) == Some(&Step::Cuttable);
        self.profile(step).filter(|_| is_cuttable).map(|profile| (step, done, profile))
    }

    /// Records that `blocks` more blocks of [`Task::padding_candidate`] are co-scheduled with
    /// another task's launch; returns the epoch they carry.
    pub(crate) fn ride(&mut self, blocks: u32) -> Epoch {
        assert!(self.next == self.completed, "{:?}: blocks beside launches of their own", self.id());
        let (step, done, profile) = self.padding_candidate().expect("only candidates ride");
        let is_whole = done + blocks == profile.blocks;
        self.ride_next = if is_whole { (step + 1, 0) } else { (step, done + blocks) };
        self.riding += 1;
        self.epoch
    }

    /// Records the end of the oldest co-scheduled launch: `ran` blocks ran, or it is unknown.
    pub(crate) fn rode(&mut self, ran: Option<u32>) -> Progress {
        self.riding = self.riding.checked_sub(1).expect("what ends was riding");
        match ran {
            Some(blocks) if !self.spoiled => self.padded += blocks,
            // Blocks behind it may have read incomplete inputs, and may have overwritten them.
            _ => self.spoiled |= self.riding > 0,
        }
        if self.profile(self.next).is_some_and(|profile| self.padded == profile.blocks) {
            self.completed += 1;
            (self.next, self.padded) = (self.completed, 0);
        }
        match self.spoiled {
            true => Progress::Failed,
            false if self.is_complete() => Progress::Complete,
            false => Progress::Continues,
        }
    }

    pub(crate) fn start_host_step(&mut self) {
        assert!(!self.is_busy() && self.next == self.completed, "{:?}: a host step beside launches", self.id());
        self.next += 1;
        self.host_step_running = true;
    }

    /// Replaces the steps behind the host step that is running.
    pub(crate) fn know_steps(&mut self, steps: Arc<[Step]>) {
        assert!(
            self.host_step_running,
            "{:?}: more steps are known without a host step that could find out",
            self.id()
        );
        let behind = self.next as usize;
        assert_eq!(
            steps.get(..behind),
            self.spec.steps.get(..behind),
            "{:?}: steps that are complete are other ones now",
            self.id()
        );
        self.spec.steps = steps;
    }

    pub(crate) fn host_step_done(&mut self) {
        assert!(self.host_step_running, "{:?}: the end of a host step that was not started", self.id());
        self.host_step_running = false;
        self.completed += 1;
    }

    /// Raises the epoch if a launch in flight is preemptible and not yet told to exit.
    pub(crate) fn raise(&mut self) -> Option<Epoch> {
        if self.cuttable_in_flight == 0 || self.is_draining() {
            return None;
        }
        self.epoch = self.epoch.next();
        Some(self.epoch)
    }

    /// Whether a launch can have ended like that. The device reports the end from its memory, and
    /// kernels that store anywhere may have written there.
    fn is_credible(&self, step: u32, epoch: Epoch, end: LaunchEnd) -> bool {
        let (is_first, eviction_seen) = match &self.forked {
            Some(forked) => forked.place_of(step),
            None => (step == self.completed, self.eviction_seen),
        };
        match end {
            LaunchEnd::Complete => !eviction_seen || is_restartable(self.spec.steps[step as usize]),
            LaunchEnd::Evicted => {
                let could_leave = may_leave(self.spec.steps[step as usize]) && epoch.is_raised_by(self.epoch);
                could_leave && (eviction_seen || is_first)
            }
            LaunchEnd::Failed | LaunchEnd::Aborted => true,
        }
    }

    /// Whether a launch that ended, and does not report early exits, may have been evicted.
    pub(crate) fn may_be_cut(&self, step: u32, epoch: Epoch) -> bool {
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
        self.cuttable_in_flight -= u32::from(may_leave(kind));
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
            LaunchEnd::Complete if self.may_be_cut(step, epoch) => self.eviction_seen = true,
            LaunchEnd::Complete => self.completed(step),
            LaunchEnd::Evicted => self.evicted(step),
        }
        if self.in_flight == 0 {
            // What was evicted is issued again, starting with the first incomplete step.
            self.next = self.completed;
            if let Some(forked) = &mut self.forked {
                forked.rewind();
            }
        }
        if self.is_complete() { Progress::Complete } else { Progress::Continues }
    }
}

/// Whether launches of a step may exit early.
fn may_leave(step: Step) -> bool {
    matches!(step, Step::Cuttable | Step::Restartable { .. })
}

fn is_restartable(step: Step) -> bool {
    matches!(step, Step::Restartable { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn running(steps: &[Step]) -> Task {
        let spec = TaskSpec {
            task: TaskId(1),
            lane: crate::ids::LaneId::DEFAULT,
            client: crate::ids::ClientId(0),
            class: Class::BestEffort,
            priority: 0,
            steps: Arc::from(steps),
            deadline: None,
            profiles: None,
            forks: None,
            ready: true,
        };
        let mut queue = crate::host_queue::HostQueue::new(1);
        let mut task = Task::new(spec, queue.push(TaskId(1), 0).expect("room"));
        task.phase = Phase::Running;
        task
    }

    #[test]
    fn a_raised_task_drains_and_continues_at_the_first_incomplete_step() {
        let mut task = running(&[Step::Cuttable; 5]);
        let old = task.issue(Step::Cuttable);
        for _ in 0..2 {
            task.issue(Step::Cuttable);
        }
        let new = task.raise().expect("three launches are in flight");
        assert!(old.is_raised_by(new));
        assert_eq!(task.raise(), None, "they have been told to leave");
        assert_eq!(task.ready_step(), None, "nothing is issued behind them");
        assert_eq!(task.launch_ended(0, old, LaunchEnd::Complete), Progress::Continues);
        assert_eq!(task.launch_ended(1, old, LaunchEnd::Evicted), Progress::Continues);
        assert_eq!(task.launch_ended(2, old, LaunchEnd::Evicted), Progress::Continues);
        assert_eq!(task.ready_step(), Some((1, Step::Cuttable)));
        assert_eq!(task.issue(Step::Cuttable), new);
    }

    #[test]
    fn what_cannot_have_happened_counts_as_failed() {
        let issued = |kinds: &[Step]| {
            let mut task = running(kinds);
            let epoch = task.issue(kinds[0]);
            (task, epoch)
        };
        let (mut task, epoch) = issued(&[Step::Cuttable; 2]);
        task.issue(Step::Cuttable);
        task.raise();
        assert_eq!(task.launch_ended(0, epoch, LaunchEnd::Evicted), Progress::Continues);
        assert_eq!(
            task.launch_ended(1, epoch, LaunchEnd::Complete),
            Progress::Failed,
            "it ran on inputs that are not there"
        );
        let (mut task, epoch) = issued(&[Step::Cuttable]);
        assert_eq!(task.launch_ended(0, epoch, LaunchEnd::Evicted), Progress::Failed, "nobody asked it to leave");
        let (mut task, epoch) = issued(&[Step::Solid]);
        task.raise();
        assert_eq!(task.launch_ended(0, epoch, LaunchEnd::Evicted), Progress::Failed, "it cannot leave");
    }

    #[test]
    fn launches_that_do_not_tell_are_run_again_from_the_first_that_may_have_been_cut() {
        let steps = [
            Step::Cuttable,
            Step::Restartable { from: 0 },
            Step::Restartable { from: 1 },
            Step::Restartable { from: 3 },
        ];
        let mut task = running(&steps);
        let old = task.issue(steps[0]);
        task.issue(steps[1]);
        assert_eq!(task.ready_step(), Some((2, steps[2])), "after it the task may run again from the one in front");
        task.issue(steps[2]);
        assert_eq!(task.ready_step(), None, "it overwrites what the two in front of it read");
        assert_eq!(task.launch_ended(0, old, LaunchEnd::Complete), Progress::Continues);
        task.raise().expect("two launches can leave");
        assert!(task.may_be_cut(1, old));
        assert_eq!(task.launch_ended(1, old, LaunchEnd::Complete), Progress::Continues);
        assert_eq!(task.launch_ended(2, old, LaunchEnd::Evicted), Progress::Continues);
        assert_eq!(task.ready_step(), Some((1, steps[1])));
        let new = task.issue(steps[1]);
        assert_eq!(task.launch_ended(1, new, LaunchEnd::Complete), Progress::Continues);
        assert_eq!(task.ready_step(), Some((2, steps[2])), "before the epoch was raised nobody left");
    }

    #[test]
    fn blocks_that_rode_behind_others_that_were_cut_short_computed_nonsense() {
        let riding = |rides: u32| {
            let mut task = running(&[Step::Cuttable; 2]);
            let profile = LaunchProfile::new(4, [1]);
            task.spec.profiles = Some(vec![Some(profile); 2].into());
            for _ in 0..rides {
                task.ride(2);
            }
            task
        };
        let mut task = riding(1);
        assert_eq!(task.rode(None), Progress::Continues, "nothing was behind them");
        assert_eq!(task.padding_candidate().map(|(step, done, _)| (step, done)), Some((0, 0)));
        let mut task = riding(3);
        assert_eq!(task.rode(Some(2)), Progress::Continues);
        assert_eq!(task.rode(None), Progress::Failed);
        assert_eq!(task.rode(Some(2)), Progress::Failed);
        let mut task = riding(4);
        assert_eq!([2, 2, 2].map(|blocks| task.rode(Some(blocks))), [Progress::Continues; 3]);
        assert_eq!(task.rode(Some(2)), Progress::Complete);
    }

    #[test]
    fn nothing_that_tells_stands_behind_a_launch_that_does_not() {
        for behind in [Step::Cuttable, Step::Solid, Step::Host] {
            let steps = [Step::Restartable { from: 0 }, behind];
            let mut task = running(&steps);
            let epoch = task.issue(steps[0]);
            assert_eq!(task.ready_step(), None, "{behind:?}");
            task.launch_ended(0, epoch, LaunchEnd::Complete);
            assert_eq!(task.ready_step(), Some((1, behind)));
        }
    }

    #[test]
    fn solid_launches_and_host_steps_wait_for_what_may_leave() {
        let mut task = running(&[Step::Cuttable, Step::Solid, Step::Cuttable, Step::Host]);
        let epoch = task.issue(Step::Cuttable);
        assert_eq!(task.ready_step(), None, "a solid launch would run on inputs that are not there");
        task.launch_ended(0, epoch, LaunchEnd::Complete);
        assert_eq!(task.ready_step(), Some((1, Step::Solid)));
        task.issue(Step::Solid);
        assert_eq!(task.raise(), None, "a solid launch does not leave");
        assert_eq!(task.ready_step(), Some((2, Step::Cuttable)), "behind a solid launch anything may stand");
        task.issue(Step::Cuttable);
        assert_eq!(task.ready_step(), None, "the host waits for both");
        task.launch_ended(1, epoch, LaunchEnd::Complete);
        task.launch_ended(2, epoch, LaunchEnd::Complete);
        assert_eq!(task.ready_step(), Some((3, Step::Host)));
        task.start_host_step();
        assert!(!task.is_complete());
        task.host_step_done();
        assert!(task.is_complete());
    }
}
