//! One task between its arrival and its end.
//!
//! A task runs along the straight line of its steps. `completed` steps lie behind it, `next` is the
//! next one to issue, and between the two are launches in flight.
//!
//! Invariants, asserted here:
//! - All launches of a task that are in flight carry one epoch. After the epoch was raised nothing
//!   is issued until they have all ended (design D5 c).
//! - The first launch of an epoch that comes back evicted is the first incomplete step, and every
//!   launch behind it comes back evicted too. It was issued under the same epoch, it starts after
//!   the evicted one ended, and the epoch word never goes back: so its blocks see the raised word,
//!   or a later one. None of them ever ran on inputs that the evicted launch had yet to write.
//! - Hence steps complete one by one, in order.
//!
//! A restartable launch does not tell whether it was cut. One that ended after the epoch was raised
//! counts as cut, so all that may have run is to be run again from the first of these on. Three
//! rules make that right: such a launch is issued only beside others of its kind from which its
//! memory plan lets the task run again after it; nothing of another kind is issued behind it; and
//! what ended before the epoch was raised was not cut.
//!
//! In a part that runs in two lines (`fork.rs`) all of that holds for each line by itself: the
//! lines share the epoch, so after it was raised nothing is issued in either until everything of
//! both has ended.

use crate::event::{LaunchEnd, Outcome, Step, TaskSpec};
use crate::fork::{Fork, Forked};
use crate::host_queue::Place;
use crate::ids::{Class, Epoch, Nanos, QueueId, TaskId, Urgency};
use crate::padding::LaunchProfile;
use std::sync::Arc;

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Something it needs is missing.
    Away,
    /// In a host queue.
    Waiting,
    /// Bound to a device queue; memory and inputs are being brought into place.
    Preparing,
    /// Running, or paused by its policy.
    Running,
    /// Over, once what is in flight has ended.
    Ending(Outcome),
}

/// No task has so many steps.
const NO_FORK: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) spec: TaskSpec,
    pub(crate) phase: Phase,
    /// Its place in the host queue, also while it is not there.
    pub(crate) place: Place,
    /// The device queue it is bound to, from preparation on.
    pub(crate) queue: Option<QueueId>,
    /// The one that it is bound to besides, for the second line of a part.
    pub(crate) twin: Option<QueueId>,
    /// The part of it that runs in two lines now. Until both are complete, `completed` and `next`
    /// stand at its first step.
    forked: Option<Box<Forked>>,
    /// Where the next part begins that may; out of reach if there is none.
    fork_at: u32,
    /// Which of [`TaskSpec::forks`] that is.
    next_fork: usize,
    pub(crate) preemptions: u32,
    /// How many of these the perturbation caused.
    pub(crate) perturbations: u32,
    /// From when on its launches are aborted; set when the task is over while launches are in
    /// flight.
    pub(crate) abort_at: Option<Nanos>,
    /// What its epoch word holds.
    epoch: Epoch,
    /// The epoch of the launches in flight.
    issued: Epoch,
    in_flight: u32,
    /// How many of the launches in flight may leave early.
    cuttable_in_flight: u32,
    /// How many of these do not tell whether they did; they are the last ones.
    restartable_in_flight: u32,
    host_step_running: bool,
    completed: u32,
    next: u32,
    /// Launches of another task beside which blocks of this one run.
    riding: u32,
    /// Blocks of the next step that ran that way.
    padded: u32,
    /// The step and the block of it that come behind all that is riding.
    ride_next: (u32, u32),
    /// Blocks ran beside a launch that was cut off, and others behind them: nobody knows what they
    /// computed.
    spoiled: bool,
    /// A launch of `issued` came back evicted, or may have been.
    eviction_seen: bool,
    /// A launch failed or was aborted; what ends after it means nothing.
    failure_seen: bool,
}

/// What became of a launch that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The task goes on.
    Continues,
    /// It was the last step.
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
            twin: None,
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

    /// How urgent it is, as its policy sees it.
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

    /// Whether the launches in flight were told to leave and have not all ended.
    pub(crate) fn is_draining(&self) -> bool {
        self.in_flight > 0 && self.issued != self.epoch
    }

    /// Whether nothing is left to issue, as things stand.
    pub(crate) fn has_issued_all(&self) -> bool {
        match self.phase {
            Phase::Away | Phase::Waiting | Phase::Preparing => false,
            Phase::Running => {
                self.next as usize == self.spec.steps.len() && !self.is_draining() && !self.host_step_running
            }
            Phase::Ending(_) => true,
        }
    }

    /// The next step, if it may be taken now.
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

    /// Notes that step `next` was handed to the device; returns the epoch it carries.
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

    // Parts that run in two lines.

    /// The part that it has come to and that may run in two lines. Whoever asks decides:
    /// [`Task::fork`] or [`Task::pass_fork`].
    pub(crate) fn fork_ahead(&self) -> Option<&Fork> {
        if self.next != self.fork_at || self.forked.is_some() || self.phase != Phase::Running || self.is_busy() {
            return None;
        }
        self.spec.forks.as_ref()?.get(self.next_fork)
    }

    /// Begins the part in two lines, each in its queue.
    pub(crate) fn fork(&mut self, queues: [QueueId; 2]) {
        let fork = self.fork_ahead().expect("only a part that is ahead begins");
        self.forked = Some(Box::new(Forked::begin(fork, queues)));
        self.twin = Some(queues[1]);
    }

    /// The part runs in line.
    pub(crate) fn pass_fork(&mut self) {
        self.find_fork(self.next_fork + 1);
    }

    fn find_fork(&mut self, from: usize) {
        let fork = self.spec.forks.as_ref().and_then(|forks| forks.get(from));
        (self.next_fork, self.fork_at) = (from, fork.map_or(NO_FORK, |fork| fork.steps().start));
    }

    /// Whether its next step is the first of a part that may run in two lines, or does.
    pub(crate) fn is_at_fork(&self) -> bool {
        self.next == self.fork_at
    }

    /// The queue that is not needed any more, because both lines are complete.
    pub(crate) fn take_twin(&mut self) -> Option<QueueId> {
        if self.forked.is_some() { None } else { self.twin.take() }
    }

    /// It is in another lane now, and what is left of two lines runs there in one queue.
    pub(crate) fn move_to(&mut self, queue: Option<QueueId>) {
        (self.queue, self.twin) = (queue, None);
        if let (Some(forked), Some(queue)) = (&mut self.forked, queue) {
            forked.move_to(queue);
        }
    }

    /// The next step of a line in this queue, if it may be taken now.
    pub(crate) fn ready_line_step(&self, queue: QueueId) -> Option<u32> {
        let may_issue = self.phase == Phase::Running && !self.is_draining();
        self.forked.as_ref().filter(|_| may_issue)?.ready_step(queue)
    }

    /// Notes that a step of a line was handed to the device; returns the epoch it carries.
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

    /// What is known about a step, if its blocks can be padded or pad.
    pub(crate) fn profile(&self, step: u32) -> Option<&LaunchProfile> {
        self.spec.profiles.as_ref()?.get(step as usize)?.as_ref()
    }

    /// The next step, if its blocks may run beside another task's, with how many of them did.
    /// Launches of real-time tasks run one after the other, so blocks may follow others that are
    /// still riding.
    pub(crate) fn padding_candidate(&self) -> Option<(u32, u32, &LaunchProfile)> {
        if self.phase != Phase::Running || self.in_flight > 0 || self.host_step_running || self.spoiled {
            return None;
        }
        let (step, done) = if self.riding > 0 { self.ride_next } else { (self.next, self.padded) };
        let is_cuttable = self.spec.steps.get(step as usize) == Some(&Step::Cuttable);
        self.profile(step).filter(|_| is_cuttable).map(|profile| (step, done, profile))
    }

    /// Notes that so many blocks of [`Task::padding_candidate`] run beside another task's; returns
    /// the epoch they carry.
    pub(crate) fn ride(&mut self, blocks: u32) -> Epoch {
        assert!(self.next == self.completed, "{:?}: blocks beside launches of their own", self.id());
        let (step, done, profile) = self.padding_candidate().expect("only candidates ride");
        let is_whole = done + blocks == profile.blocks;
        self.ride_next = if is_whole { (step + 1, 0) } else { (step, done + blocks) };
        self.riding += 1;
        self.epoch
    }

    /// Notes that the oldest of them ran, or that nobody knows.
    pub(crate) fn rode(&mut self, ran: Option<u32>) -> Progress {
        self.riding = self.riding.checked_sub(1).expect("what ends was riding");
        match ran {
            Some(blocks) if !self.spoiled => self.padded += blocks,
            // What is riding behind it computes on inputs that are not there, and may overwrite them.
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

    /// The steps behind the host step that is being carried out are these.
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

    /// Raises the epoch if a launch in flight could leave by it.
    pub(crate) fn raise(&mut self) -> Option<Epoch> {
        if self.cuttable_in_flight == 0 || self.is_draining() {
            return None;
        }
        self.epoch = self.epoch.next();
        Some(self.epoch)
    }

    /// Whether a launch can have ended like that. A device reads from its memory how a launch
    /// ended, and kernels that store anywhere may have written there.
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

    /// Whether a launch that ended, and does not tell whether it was cut, may have been.
    pub(crate) fn may_be_cut(&self, step: u32, epoch: Epoch) -> bool {
        is_restartable(self.spec.steps[step as usize]) && epoch.is_raised_by(self.epoch)
    }

    /// Notes the end of a launch.
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
            // What left is issued again, from the first incomplete step on.
            self.next = self.completed;
            if let Some(forked) = &mut self.forked {
                forked.rewind();
            }
        }
        if self.is_complete() { Progress::Complete } else { Progress::Continues }
    }
}

/// Whether the launches of a step may leave early.
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
