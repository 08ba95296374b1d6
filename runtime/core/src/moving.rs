//! Moves tasks from a closing lane to the default lane.

use crate::event::Action;
use crate::ids::{Class, QueueId, TaskId};
use crate::scheduler::Scheduler;
use crate::task::{Phase, Task};

impl Scheduler {
    /// Begins to close the lane: it binds and issues no more, and evicts its launches from the
    /// device.
    pub(crate) fn begin_closing(&mut self, actions: &mut Vec<Action>) {
        self.is_closing = true;
        self.starvation = None;
        self.evict_all(actions);
    }

    /// Removes the tasks without launches on the device from the lane. Tasks that are ending stay
    /// and finish in this lane.
    pub(crate) fn release_idle(&mut self) -> Vec<Task> {
        let is_idle = |task: &Task| !task.is_busy() && !matches!(task.phase, Phase::Ending(_));
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
