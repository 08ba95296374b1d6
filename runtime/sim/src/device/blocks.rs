//! The blocks of the simulated device: starts them as capacity allows, ends them and stops them.

use super::{Current, DeviceEvent, Ended, Group, RunningPad, SimDevice, SimLaunch, SimPad, UNIT};
use crate::faults::{LATE_COMPLETION_NS, STUCK_KERNEL_NS};
use atoll_core::{LaunchEnd, Nanos, TaskId};

impl SimDevice {
    /// Assigns blocks to compute units as long as there is capacity.
    pub(super) fn dispatch(&mut self, now: Nanos) {
        let mut order = self.open.clone();
        if self.parameters.has_priorities {
            // The first queue of each lane goes first.
            order.sort_by_key(|&queue| !self.lanes.iter().any(|lane| lane.queues.start == queue));
        }
        for queue in order {
            self.leave_if_raised(queue);
            self.start_blocks(now, queue);
            self.start_pads(now, queue);
            if self.current(queue).is_over() {
                self.open.retain(|other| *other != queue);
                self.close(now, queue);
            }
        }
    }

    fn leave_if_raised(&mut self, queue: usize) {
        let place = &self.queues[queue];
        let is_raised = place.current.as_ref().is_some_and(|current| self.is_raised(&current.launch));
        let current = self.current(queue);
        if is_raised && current.pending > 0 {
            (current.evicted, current.pending) = (true, 0);
        }
    }

    fn start_blocks(&mut self, now: Nanos, queue: usize) {
        let (capacity, used, costs, room) = (self.capacity(), self.used, self.parameters.costs, self.room(queue));
        let lane_used = self.lane(queue).used;
        self.count += 1;
        let group = self.count;
        let current = self.current(queue);
        let own = u64::from(current.running_blocks()) * current.each;
        let room = room.min((u64::from(current.own_units) * UNIT).saturating_sub(own));
        let blocks = (room / current.each).min(u64::from(current.pending)) as u32;
        if blocks == 0 {
            return;
        }
        current.pending -= blocks;
        current.began.get_or_insert(now);
        current.running.push(Group { number: group, blocks, began: now });
        let taken = u64::from(blocks) * current.each;
        // Pads have compute units of their own; all other blocks share compute units with this
        // launch.
        let pads: u64 =
            current.running_pads.iter().map(|running| u64::from(running.pad.shape.compute_units) * UNIT).sum();
        let profile = &current.launch.kernel.profile;
        let load = u128::from(lane_used - pads + taken) * u128::from(profile.occupancy());
        let on_each = load.div_ceil(u128::from(current.own_units) * u128::from(UNIT)) as usize;
        let wave_ns = profile.wave_ns[on_each.clamp(1, profile.wave_ns.len()) - 1];
        let contention = u128::from(costs.contention_permille) * u128::from(used - own - pads) / u128::from(capacity);
        let slower = contention as u64 + self.padding_cost(queue);
        let current = self.current(queue);
        let took = if current.is_stuck { STUCK_KERNEL_NS } else { longer(wave_ns, slower) };
        self.take(queue, taken);
        self.after(now, took, DeviceEvent::GroupEnds { queue, group });
    }

    /// How much longer blocks of the current launch take because of its pads, in thousandths: what
    /// padding costs, and the part of the memory bandwidth that they need together beyond the
    /// device's.
    fn padding_cost(&mut self, queue: usize) -> u64 {
        let (padding, units) = (self.parameters.costs.padding_permille, self.parameters.compute_units);
        let SimLaunch { kernel, pads, .. } = &self.current(queue).launch;
        if pads.is_empty() {
            return 0;
        }
        let of_pad = |pad: &SimPad| u64::from(pad.kernel.profile.bandwidth_on(pad.shape.compute_units, units));
        let used = u64::from(kernel.profile.bandwidth_permille) + pads.iter().map(of_pad).sum::<u64>();
        padding + used.saturating_sub(1000)
    }

    /// Starts the pads of the current launch of a queue as soon as there is capacity.
    fn start_pads(&mut self, now: Nanos, queue: usize) {
        while let Some(pad) = self.current(queue).pending_pads.last().cloned()
            && u64::from(pad.shape.compute_units) * UNIT <= self.room(queue)
        {
            self.count += 1;
            let (group, slower) = (self.count, self.padding_cost(queue));
            self.take(queue, u64::from(pad.shape.compute_units) * UNIT);
            self.after(now, longer(pad.ns(), slower), DeviceEvent::GroupEnds { queue, group });
            let current = self.current(queue);
            current.pending_pads.pop();
            current.running_pads.push(RunningPad { number: group, began: now, pad });
        }
    }

    pub(super) fn group_ends(&mut self, now: Nanos, queue: usize, group: u64) {
        let Some(current) = &mut self.queues[queue].current else { return };
        let runs = current.running.iter().position(|running| running.number == group);
        if current.is_stuck && runs.is_some() {
            current.has_failed = true;
            self.stop_blocks(now, queue);
        } else if let Some(at) = runs {
            let group = current.running.swap_remove(at);
            let each = current.each;
            current.ran += group.blocks;
            self.free(queue, u64::from(group.blocks) * each);
            if self.watched.is_some() {
                let launch = self.current(queue).launch.clone();
                self.note(&launch, each, &group, now, false);
            }
        } else if let Some(at) = current.running_pads.iter().position(|running| running.number == group) {
            let running = current.running_pads.swap_remove(at);
            self.note_pad(&running, now);
            let SimPad { task, step, shape, kernel } = running.pad;
            self.free(queue, u64::from(shape.compute_units) * UNIT);
            let ran = self.ran.entry((task, step)).or_default();
            *ran = (*ran + shape.blocks).min(kernel.profile.blocks);
        } else {
            // The group was stopped before.
            return;
        }
        self.dispatch(now);
    }

    /// Stops the running blocks of a task in launches whose epoch was raised.
    pub(super) fn interrupt(&mut self, now: Nanos, task: TaskId) {
        for queue in self.open.clone() {
            let launch = self.current(queue).launch.clone();
            if launch.task != task || !self.is_raised(&launch) {
                continue;
            }
            self.stop_blocks(now, queue);
        }
        self.dispatch(now);
    }

    /// Stops the running blocks of the current launch of a queue, and evicts those that have not
    /// started.
    fn stop_blocks(&mut self, now: Nanos, queue: usize) {
        let current = self.current(queue);
        let (mut freed, each, launch) = (0, current.each, current.launch.clone());
        let stopped = std::mem::take(&mut current.running);
        current.pending = 0;
        for group in &stopped {
            current.evicted = true;
            current.stopped_blocks += group.blocks;
            freed += u64::from(group.blocks) * current.each;
            current.wasted_ns +=
                u64::from(group.blocks) * (now.0 - group.began.0) / u64::from(launch.kernel.profile.occupancy());
        }
        self.free(queue, freed);
        stopped.iter().for_each(|group| self.note(&launch, each, group, now, true));
    }

    /// Finishes the current launch of a queue and starts the next one.
    pub(super) fn close(&mut self, now: Nanos, queue: usize) {
        let current = self.queues[queue].current.take().expect("the queue has come to a launch");
        let Current { launch, ran, began, evicted, has_failed, stopped_blocks, wasted_ns, .. } = current;
        if evicted {
            self.ran.insert((launch.task, launch.step), ran);
        }
        let end = match (has_failed, evicted) {
            (true, _) => LaunchEnd::Failed,
            (false, true) => LaunchEnd::Evicted,
            (false, false) => LaunchEnd::Complete,
        };
        let late_ns = if self.faults.late_completions.happens() { LATE_COMPLETION_NS } else { 0 };
        let place = &mut self.queues[queue];
        place.unreported.push_back(Ended { launch: launch.launch, end, began, at: now, stopped_blocks, wasted_ns });
        place.report_from = place.report_from.max(Nanos(now.0 + self.parameters.costs.completion_ns + late_ns));
        let reported = place.report_from;
        self.after(reported, 0, DeviceEvent::Report { queue });
        self.fetch(now, queue);
    }
}

/// A time increased by `permille` thousandths.
fn longer(ns: u64, permille: u64) -> u64 {
    ns + (u128::from(ns) * u128::from(permille) / 1000) as u64
}
