//! Moves tasks to other lanes: from a closing lane to the default lane, and to the lane to which
//! their client's share moved.

use crate::device_scheduler::DeviceScheduler;
use crate::event::{Action, Event};
use crate::ids::{Class, ClientId, Nanos, QueueId, TaskId};
use crate::scheduler::Scheduler;
use crate::task::{Phase, Task};

impl DeviceScheduler {
    /// Handles the move of a client's share to the lane at index `home`. In the other lanes of the
    /// ledger, the client's launches are evicted, and its tasks issue no more.
    pub(crate) fn send_away(&mut self, home: usize, client: ClientId, actions: &mut Vec<Action>) {
        self.lanes[home].away.retain(|other| *other != client);
        for at in 0..self.lanes.len() {
            if at != home && self.has_ledger_of(home, at) {
                self.lanes[at].send_away(client, actions);
            }
        }
    }

    /// The index of the lane in which a client has its share, among those with the ledger of the
    /// default lane.
    pub(crate) fn home_of(&self, client: ClientId) -> Option<usize> {
        let lane = self.ledger_of(0)?.lane_of(client)?;
        self.place_of(lane).filter(|&at| !self.lanes[at].is_closing)
    }

    /// Moves the idle tasks of clients that moved to other lanes.
    pub(crate) fn move_tasks(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        if self.lanes.iter().all(|lane| lane.away.is_empty()) {
            return;
        }
        let mut moved = Vec::new();
        for at in 0..self.lanes.len() {
            // The tasks of a client that lost its share, or moved back, continue here.
            let away = std::mem::take(&mut self.lanes[at].away);
            let is_away = |client: &ClientId| self.home_of(*client).is_some_and(|home| home != at);
            let (away, here): (Vec<ClientId>, Vec<ClientId>) = away.into_iter().partition(is_away);
            let idle = self.lanes[at].release_idle(|task| away.contains(&task.spec.client));
            let homes: Vec<usize> = idle.iter().map(|task| self.home_of(task.spec.client).unwrap_or(at)).collect();
            moved.extend(idle.into_iter().zip(homes));
            let lane = &mut self.lanes[at];
            lane.away = away.into_iter().filter(|client| lane.has_tasks_of(*client)).collect();
            if !here.is_empty() {
                self.tell(at, now, Event::Tick, actions);
            }
        }
        self.adopt_all(now, moved, actions);
    }

    /// Adds released tasks to lanes, given by index.
    pub(crate) fn adopt_all(&mut self, now: Nanos, tasks: Vec<(Task, usize)>, actions: &mut Vec<Action>) {
        let mut lanes: Vec<usize> = Vec::new();
        for (task, at) in tasks {
            match at {
                0 => self.tasks.remove(&task.id()),
                _ => self.tasks.insert(task.id(), self.lanes[at].lane),
            };
            self.lanes[at].adopt(task);
            lanes.push(at);
        }
        lanes.sort_unstable();
        lanes.dedup();
        for at in &lanes {
            self.tell(*at, now, Event::Tick, actions);
        }
        if !lanes.is_empty() {
            self.settle(now, actions);
        }
    }
}

impl Scheduler {
    fn send_away(&mut self, client: ClientId, actions: &mut Vec<Action>) {
        if !self.away.contains(&client) && self.has_tasks_of(client) {
            self.away.push(client);
            self.recall(&[client], actions);
        }
    }

    fn has_tasks_of(&self, client: ClientId) -> bool {
        self.tasks.values().any(|task| task.spec.client == client)
    }

    /// Begins to close the lane: it binds and issues no more, and evicts its launches from the
    /// device.
    pub(crate) fn begin_closing(&mut self, actions: &mut Vec<Action>) {
        self.is_closing = true;
        self.starvation = None;
        self.evict_all(actions);
    }

    /// Removes from the lane the tasks for which `which` is true and that have no launches on the
    /// device. Tasks that are ending stay and finish in this lane.
    pub(crate) fn release_idle(&mut self, which: impl Fn(&Task) -> bool) -> Vec<Task> {
        let is_idle = |task: &Task| !task.is_busy() && !matches!(task.phase, Phase::Ending(_)) && which(task);
        let idle: Vec<TaskId> = self.tasks.iter().filter(|(_, task)| is_idle(task)).map(|(id, _)| *id).collect();
        idle.into_iter().map(|id| self.release(id)).collect()
    }

    fn release(&mut self, id: TaskId) -> Task {
        let mut task = self.unlink(id);
        self.counters.arrived[task.class() as usize] -= 1;
        task.move_to(None);
        task
    }

    /// Takes over a task that another lane released. It keeps its state and queues behind tasks of
    /// its rank that are here.
    pub(crate) fn adopt(&mut self, mut task: Task) {
        let (id, class) = (task.id(), task.class());
        self.counters.arrived[class as usize] += 1;
        task.spec.lane = self.lane;
        let host_queue = &mut self.host_queues[class as usize];
        task.place = host_queue.reserve_unbounded(task.place.rank());
        match task.phase {
            Phase::Unready => {}
            Phase::Waiting => host_queue.enter(id, task.spec.client, task.place),
            Phase::Preparing | Phase::Running => {
                host_queue.cancel_reservation();
                task.move_to(Some(self.bind_adopted(id, class)));
            }
            Phase::Ending(_) => unreachable!("an ending task is not moved"),
        }
        if class == Class::RealTime && task.phase != Phase::Unready {
            self.rt_tasks.insert((task.place.rank(), id));
        }
        self.deadlines.extend(task.spec.deadline.map(|at| (at, id)));
        let old = self.tasks.insert(id, task);
        assert!(old.is_none(), "two tasks with one id: {old:?}");
    }

    /// Binds a task that started in another lane to the queue of its class with the fewest tasks,
    /// preferring queues with room. The queue need not be open for waiting tasks.
    fn bind_adopted(&mut self, id: TaskId, class: Class) -> QueueId {
        let queues = self.policy.queues(class, &self.view());
        let fewest = |&queue: &u32| {
            (!self.device_queues[queue as usize].has_room(), self.device_queues[queue as usize].bound.len())
        };
        let queue = queues.min_by_key(fewest).expect("every class has a queue");
        self.device_queues[queue as usize].bound.push(id);
        QueueId(queue)
    }
}
