//! The decisions of the scheduler after every event: which tasks are evicted, which are bound to a
//! device queue, which launches are issued.

use crate::counters::Counters;
use crate::device_queue::{Abort, CoScheduled, DeviceQueue, InFlight};
use crate::device_scheduler::DeviceWide;
use crate::event::{Action, Step};
use crate::ids::{CLASSES, Class, ClientId, Epoch, LaunchId, PreemptLevel, QueueId, TaskId, Urgency};
use crate::limits;
use crate::padding::{Padding, PaddingDelay};
use crate::policy::View;
use crate::scheduler::Scheduler;
use crate::starvation::Starvation;
use crate::task::{Phase, Task};

impl Scheduler {
    pub(crate) fn decide(&mut self, device: &mut DeviceWide, actions: &mut Vec<Action>) {
        if self.is_closing {
            return self.evict_all(actions);
        }
        if self.tokens.is_some() {
            self.grant_tokens(actions);
        }
        let view = self.view();
        self.update_slice();
        self.evict(&view, actions);
        self.bind(&view, actions);
        self.issue(&view, device, actions);
        // A client whose tasks only run host steps returns its token.
        if self.tokens.is_some() && self.grant_tokens(actions) {
            self.issue(&self.view(), device, actions);
        }
        self.perturb(actions);
    }

    pub(crate) fn view(&self) -> View {
        View {
            queues: self.policy_queues,
            preempt_level: self.preempt_level,
            rt_first: self.rt_first(),
            be_in_flight: self.in_flight[Class::BestEffort as usize],
        }
    }

    // Slices of best-effort work.

    /// Whether best-effort tasks and real-time tasks are ready at the same time, so that
    /// best-effort tasks may have to wait.
    pub(crate) fn best_effort_starves(&self) -> bool {
        let at = Class::BestEffort as usize;
        let unready = self.host_queues[at].unready() as u64;
        !self.rt_tasks.is_empty() && self.counters.arrived[at] - self.counters.finished[at] > unready
    }

    /// Notes progress of best-effort work.
    pub(crate) fn note_best_effort_progress(&mut self) {
        if let Some(starvation) = &mut self.starvation {
            starvation.note_progress(self.now);
        }
    }

    /// Begins and ends slices of best-effort tasks that made no progress for too long.
    fn update_slice(&mut self) {
        let (now, starves) = (self.now, self.best_effort_starves());
        let Some(starvation) = &mut self.starvation else { return };
        let is_due = starvation.is_due(starves, now);
        let has_begun = starvation.running().is_some();
        let mut holder = starvation.holder();
        // The task with a promised slice may wait for a token while another task gets one.
        let may_change = self.tokens.is_some() && !has_begun && holder.is_some_and(|id| self.tasks.contains_key(&id));
        if is_due || may_change {
            holder = self.oldest_best_effort();
            self.counters.best_effort_slices += u64::from(is_due && holder.is_some());
        }
        let task = holder.and_then(|id| self.tasks.get(&id));
        let (phase, has_token) = (task.map(|task| task.phase), task.is_some_and(|task| self.has_token(task)));
        let starvation = self.starvation.as_mut().expect("present: checked above");
        match (holder, phase) {
            (Some(task), Some(Phase::Waiting | Phase::Preparing)) if starves => starvation.promise(task),
            (Some(task), Some(Phase::Running)) if starves && has_token => starvation.run(task, now),
            (Some(task), Some(Phase::Running)) if starves && !has_begun => starvation.promise(task),
            // The slice is over, or no real-time task is left that blocks best-effort work.
            (Some(_), _) => starvation.end(now),
            // All remaining best-effort tasks are ending.
            (None, _) if is_due => starvation.note_progress(now),
            // The clients of all remaining best-effort tasks have used up their limits.
            (None, _) if may_change => starvation.end(now),
            (None, _) => {}
        }
    }

    /// The best-effort task that started first, or else the next one to start. Tasks that have a
    /// token come first. Tasks whose client has used up its limit do not count, since they could
    /// not issue.
    fn oldest_best_effort(&self) -> Option<TaskId> {
        let bound = self.device_queues.iter().flat_map(|queue| &queue.bound).copied();
        let can_go_on = |id: &TaskId| {
            let task = &self.tasks[id];
            let is_alive = task.class() == Class::BestEffort && matches!(task.phase, Phase::Preparing | Phase::Running);
            is_alive && self.may_get_token(task.spec.client, Class::BestEffort)
        };
        let oldest = bound.filter(can_go_on).min_by_key(|id| (!self.has_token(&self.tasks[id]), *id));
        oldest.or_else(|| self.first_that_may_start(Class::BestEffort))
    }

    /// Whether a task may issue: every launch passes this check. It depends on the time tokens of
    /// the task's client, on the policy, and on whether a best-effort slice is running.
    fn may_issue(&self, task: &Task, view: &View) -> bool {
        if !self.has_token(task) {
            return false;
        }
        match self.starvation.as_ref().and_then(Starvation::running) {
            Some(holder) if task.id() == holder => true,
            Some(_) if task.class() == Class::RealTime => false,
            _ => self.policy.may_issue(task.urgency(), view),
        }
    }

    fn has_slice(&self, id: TaskId) -> bool {
        self.starvation.as_ref().and_then(Starvation::holder) == Some(id)
    }

    // Eviction.

    fn evict(&mut self, view: &View, actions: &mut Vec<Action>) {
        let holder = self.starvation.as_ref().and_then(Starvation::holder);
        for class in CLASSES {
            // If the policy keeps the least urgent task of a class, it keeps the others too.
            let nothing_to_evict =
                self.in_flight[class as usize] == 0 || !self.policy.evicts(Urgency::least(class), view);
            if nothing_to_evict || self.preempt_level < PreemptLevel::Deactivate {
                continue;
            }
            for queue in self.policy.queues(class, view) {
                for &id in &self.device_queues[queue as usize].bound {
                    let task = self.tasks.get_mut(&id).expect("bound tasks exist");
                    if task.class() == class && holder != Some(id) && self.policy.evicts(task.urgency(), view) {
                        actions.extend(preempt(task, &mut self.counters));
                    }
                }
            }
        }
    }

    /// Evicts all launches on the device that can be preempted: the lane is closing.
    pub(crate) fn evict_all(&mut self, actions: &mut Vec<Action>) {
        if self.preempt_level < PreemptLevel::Deactivate {
            return;
        }
        for id in self.device_queues.iter().flat_map(|queue| &queue.bound) {
            let task = self.tasks.get_mut(id).expect("bound tasks exist");
            if task.phase == Phase::Running {
                actions.extend(preempt(task, &mut self.counters));
            }
        }
    }

    /// Raises a task's epoch if that makes a launch exit.
    pub(crate) fn raise(&mut self, id: TaskId) -> Option<Epoch> {
        if self.preempt_level < PreemptLevel::Deactivate {
            return None;
        }
        self.tasks.get_mut(&id).expect("the caller names an unfinished task").raise()
    }

    // Binding.

    /// Binds waiting tasks to device queues, real-time tasks first.
    fn bind(&mut self, view: &View, actions: &mut Vec<Action>) {
        let promised = self.starvation.as_ref().and_then(Starvation::holder);
        if let Some(id) = promised.filter(|id| self.tasks[id].phase == Phase::Waiting)
            && let Some(queue) = self.open_queue(id, view)
        {
            self.start(id, queue, actions);
        }
        for class in CLASSES {
            while let Some(id) = self.first_waiting(class)
                && self.policy.may_start(self.tasks[&id].urgency(), view)
                && let Some(queue) = self.open_queue(id, view)
            {
                self.start(id, queue, actions);
            }
        }
    }

    fn start(&mut self, id: TaskId, queue: QueueId, actions: &mut Vec<Action>) {
        let task = self.tasks.get_mut(&id).expect("a waiting task exists");
        self.host_queues[task.class() as usize].remove(task.place);
        task.phase = Phase::Preparing;
        task.queue = Some(queue);
        self.device_queues[queue.0 as usize].bound.push(id);
        actions.push(Action::Prepare { task: id });
    }

    /// The device queue that can take launches of a task now, if any.
    fn open_queue(&self, id: TaskId, view: &View) -> Option<QueueId> {
        let task = &self.tasks[&id];
        let has_room = |queue: &u32| self.device_queues[*queue as usize].has_room();
        let mut queues = self.policy.queues(task.class(), view);
        let queue = match task.class() {
            // Real-time tasks run one after the other, across all queues.
            Class::RealTime if !queues.clone().all(|queue| self.is_settled(queue, view)) => None,
            // Prefer the queue of launches that run to their end; otherwise the shallowest queue,
            // since evicted launches exit soon.
            Class::RealTime => match queues.clone().find(|&queue| self.runs_to_end(queue, view)) {
                Some(queue) => Some(queue).filter(has_room),
                None => self.shallowest(queues.filter(has_room)),
            },
            Class::BestEffort if self.has_share(task) => self.queue_of_share(task, queues),
            Class::BestEffort if self.policy.may_issue(task.urgency(), view) || self.has_slice(id) => {
                self.shallowest(queues.filter(|queue| has_room(queue) && self.is_settled(*queue, view)))
            }
            // A task that only pads has a queue to itself.
            Class::BestEffort => queues.find(|&queue| self.device_queues[queue as usize].bound.is_empty()),
        };
        queue.map(QueueId)
    }

    fn shallowest(&self, queues: impl Iterator<Item = u32>) -> Option<u32> {
        queues.min_by_key(|&queue| self.device_queues[queue as usize].depth())
    }

    /// Whether tasks bound to a queue have issued everything or may not issue now.
    fn is_settled(&self, queue: u32, view: &View) -> bool {
        self.device_queues[queue as usize].bound.iter().all(|id| {
            let task = &self.tasks[id];
            task.has_issued_all() || !self.policy.may_issue(task.urgency(), view) || !self.has_token(task)
        })
    }

    /// Whether a queue holds launches that may run to their end.
    fn runs_to_end(&self, queue: u32, view: &View) -> bool {
        let mut bound = self.device_queues[queue as usize].bound.iter().map(|id| &self.tasks[id]);
        bound.any(|task| task.is_in_flight() && !task.is_draining() && self.policy.may_issue(task.urgency(), view))
    }

    // Issue.

    fn issue(&mut self, view: &View, device: &mut DeviceWide, actions: &mut Vec<Action>) {
        // If the most urgent best-effort task has to wait, the best-effort queues are skipped.
        let is_slice = self.starvation.as_ref().and_then(Starvation::running).is_some();
        let all = is_slice || self.policy.may_issue(Urgency::most(Class::BestEffort), view);
        let queues = if all { 0..view.queues } else { self.policy.queues(Class::RealTime, view) };
        for queue in queues {
            // Most queues are full; skipping them here saves most of the cost of a decision.
            if self.device_queues[queue as usize].has_room() {
                self.issue_from(queue, view, device, actions);
            }
        }
        if self.forked > 0 {
            for paired_queue in self.policy_queues..self.device_queues.len() as u32 {
                self.issue_from(paired_queue, view, device, actions);
            }
        }
    }

    /// Issues launches of the tasks bound to one queue.
    fn issue_from(&mut self, queue: u32, view: &View, device: &mut DeviceWide, actions: &mut Vec<Action>) {
        let at_queue = queue as usize;
        for at in 0..self.device_queues[at_queue].bound.len() {
            // While the queue is full, host steps are not started either: they can wait for the
            // next end of a launch, and looking for them would cost time in every decision.
            if !self.device_queues[at_queue].has_room() {
                break;
            }
            let id = self.device_queues[at_queue].bound[at];
            if !self.may_issue(&self.tasks[&id], view) {
                continue;
            }
            self.issue_task(id, QueueId(queue), view, device, actions);
            // A task of a client with a share does not block those behind it in the queue.
            let task = &self.tasks[&id];
            if !task.has_issued_all() && !self.has_share(task) {
                break;
            }
        }
    }

    /// Issues steps of a task until one has to wait or the queue is full.
    fn issue_task(
        &mut self,
        id: TaskId,
        queue: QueueId,
        view: &View,
        device: &mut DeviceWide,
        actions: &mut Vec<Action>,
    ) {
        loop {
            let task = &self.tasks[&id];
            let Some((step, kind)) = task.ready_step() else {
                if task.is_at_fork() {
                    self.issue_fork(id, queue, view, device, actions);
                }
                return;
            };
            if kind == Step::Host {
                self.tasks.get_mut(&id).expect("bound tasks exist").start_host_step();
                actions.push(Action::RunHostStep { task: id, step });
                return;
            }
            if !self.device_queues[queue.0 as usize].has_room() {
                return;
            }
            let launch = device.next_launch(self.lane);
            if self.policy.pads() {
                self.pad((id, step, launch), queue, &mut device.padding_delay, actions);
            }
            let task = self.tasks.get_mut(&id).expect("bound tasks exist");
            let (epoch, class, client) = (task.issue(kind), task.class(), task.spec.client);
            self.submit(InFlight { launch, task: id, step, epoch, abort: Abort::No }, class, client, queue, actions);
        }
    }

    /// Issues steps of a task that has reached a fork or is in one. The fork runs in two branches
    /// if the paired queue is empty and no task bound there may issue; otherwise its steps run in
    /// order. Under a policy that pads, forks always run in order, because co-scheduled blocks
    /// already fill the idle compute units.
    #[cold]
    fn issue_fork(
        &mut self,
        id: TaskId,
        queue: QueueId,
        view: &View,
        device: &mut DeviceWide,
        actions: &mut Vec<Action>,
    ) {
        if self.tasks[&id].fork_ahead().is_some() {
            let paired_queue = queue.0 + self.policy_queues;
            let is_free = !self.policy.pads()
                && self.device_queues.get(paired_queue as usize).is_some_and(DeviceQueue::is_empty)
                && self.is_settled(paired_queue, view);
            let task = self.tasks.get_mut(&id).expect("bound tasks exist");
            if !is_free {
                task.pass_fork();
                return self.issue_task(id, queue, view, device, actions);
            }
            task.fork([queue, QueueId(paired_queue)]);
            self.device_queues[paired_queue as usize].bound.push(id);
            self.forked += 1;
            self.counters.forks += 1;
        }
        self.issue_branch(id, queue, device, actions);
    }

    /// Issues steps of the branch in a queue.
    fn issue_branch(&mut self, id: TaskId, queue: QueueId, device: &mut DeviceWide, actions: &mut Vec<Action>) {
        while self.device_queues[queue.0 as usize].has_room()
            && let Some(step) = self.tasks[&id].ready_branch_step(queue)
        {
            let launch = device.next_launch(self.lane);
            let task = self.tasks.get_mut(&id).expect("bound tasks exist");
            let (epoch, class, client) = (task.issue_in_branch(step), task.class(), task.spec.client);
            self.submit(InFlight { launch, task: id, step, epoch, abort: Abort::No }, class, client, queue, actions);
        }
    }

    /// Puts a launch into a queue. Inlined: a call costs 5 % of a decision here.
    #[inline(always)]
    fn submit(&mut self, launch: InFlight, class: Class, client: ClientId, queue: QueueId, actions: &mut Vec<Action>) {
        if let Some(tokens) = &mut self.tokens {
            tokens.issued(self.now, client);
        }
        let InFlight { launch: name, task, step, epoch, .. } = launch;
        self.counters.issued_launches += 1;
        self.in_flight[class as usize] += 1;
        self.device_queues[queue.0 as usize].push(launch);
        actions.push(Action::Issue { launch: name, task, step, queue: self.device_name(queue), epoch });
    }

    /// Finds best-effort blocks to co-schedule with a launch of a real-time task's step.
    fn pad(
        &mut self,
        (id, step, launch): (TaskId, u32, LaunchId),
        queue: QueueId,
        delay: &mut PaddingDelay,
        actions: &mut Vec<Action>,
    ) {
        let task = &self.tasks[&id];
        let profile = task
            .profile(step)
            .filter(|_| task.class() == Class::RealTime && task.spec.steps[step as usize] == Step::Preemptible);
        let Some(padding) = profile.map(|profile| Padding::of(profile, self.compute_units)) else { return };
        let launch_ns = padding.launch_ns();
        let padding = padding.with_delay(delay.earn(id, launch_ns));
        let mut padding = if delay.options.bandwidth { padding.within_bandwidth() } else { padding };
        let before = self.co_scheduled_blocks.len();
        for at in 0..self.device_queues.len() {
            for bound in 0..self.device_queues[at].bound.len() {
                if !padding.has_room() {
                    break;
                }
                let co_scheduled_task = self.device_queues[at].bound[bound];
                if self.is_co_scheduled_elsewhere(co_scheduled_task, queue) {
                    continue;
                }
                if !self.may_pad(co_scheduled_task) {
                    continue;
                }
                let task = self.tasks.get_mut(&co_scheduled_task).expect("bound tasks exist");
                if task.class() != Class::BestEffort {
                    continue;
                }
                let shape = task.padding_candidate().and_then(|(step, done, profile)| {
                    let shape = padding.take(profile, done)?;
                    Some((step, done, shape, shape.ns(profile)))
                });
                let Some((step, first, shape, ns)) = shape else { continue };
                let epoch = task.co_schedule(shape.blocks);
                let blocks = shape.blocks;
                let charge_ns = self.padding_charge(co_scheduled_task, shape, ns);
                let co_scheduled = CoScheduled { beside: launch, task: co_scheduled_task, blocks, charge_ns };
                self.co_scheduled_blocks.push(co_scheduled);
                self.counters.padding_blocks += u64::from(shape.blocks);
                actions.push(Action::Pad { task: co_scheduled_task, step, first, shape, epoch });
            }
        }
        delay.spend(id, padding.delay_ns());
        self.counters.padded_launches += u64::from(self.co_scheduled_blocks.len() > before);
    }

    /// Whether blocks of a task are co-scheduled with launches in another queue. Blocks in this
    /// queue could not be ordered behind those.
    fn is_co_scheduled_elsewhere(&self, co_scheduled_task: TaskId, queue: QueueId) -> bool {
        let here = &self.device_queues[queue.0 as usize];
        self.co_scheduled_blocks.iter().any(|other| other.task == co_scheduled_task && !here.holds(other.beside))
    }

    fn perturb(&mut self, actions: &mut Vec<Action>) {
        let Some(perturbation) = &mut self.perturbation else { return };
        if !perturbation.is_due(self.now) {
            return;
        }
        let may_be_perturbed = |id: &&TaskId| {
            let task = &self.tasks[*id];
            task.phase == Phase::Running
                && task.is_busy()
                && !task.is_draining()
                && task.perturbations < limits::PERTURBATIONS_PER_TASK_MAX
        };
        let victims: Vec<TaskId> =
            self.device_queues.iter().flat_map(|queue| &queue.bound).filter(may_be_perturbed).copied().collect();
        if victims.is_empty() {
            return;
        }
        let id = victims[perturbation.pick(victims.len())];
        let task = self.tasks.get_mut(&id).expect("bound tasks exist");
        task.perturbations += 1;
        if self.preempt_level >= PreemptLevel::Deactivate {
            actions.extend(preempt(task, &mut self.counters));
        }
    }
}

/// Evicts a task's launches in favour of another task.
pub(crate) fn preempt(task: &mut Task, counters: &mut Counters) -> Option<Action> {
    let epoch = task.raise()?;
    counters.preemptions += 1;
    task.preemptions += 1;
    Some(Action::RaiseEpoch { task: task.id(), epoch })
}
