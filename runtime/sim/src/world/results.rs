//! The results that a simulation returns.

use super::{Simulation, World};
use crate::device::SimDevice;
use crate::occupancy::{Group, Occupied, place};
use crate::report::{ClientReport, Distribution, PreemptionReport, Report};
use std::ops::Range;

/// What was recorded about preemptions; times in nanoseconds.
#[derive(Default)]
pub(super) struct Preemptions {
    /// From the arrival of calls that preempted others to their first blocks.
    pub(super) totals: Vec<u64>,
    /// From the arrival of real-time calls that found only best-effort launches on the device to their
    /// first blocks.
    pub(super) first_blocks: Vec<u64>,
    /// From the arrival of calls to the end of the launches that they evicted.
    pub(super) drains: Vec<u64>,
    pub(super) stopped_blocks: u64,
    pub(super) wasted_ns: u64,
}

impl World<'_> {
    /// The blocks that ran, placed on compute units.
    pub(super) fn occupied(self) -> Vec<Occupied> {
        let (owners, unit) = (self.owners, SimDevice::UNIT as f64);
        let occupied = |(group, pieces): (Group, Vec<Range<u64>>)| Occupied {
            client: owners[group.task.0 as usize],
            kernel: group.kernel.name.clone(),
            blocks: group.blocks,
            units: pieces.into_iter().map(|piece| piece.start as f64 / unit..piece.end as f64 / unit).collect(),
            began: group.began,
            ended: group.ended,
            was_stopped: group.was_stopped,
            is_padding: group.is_padding,
        };
        place(self.node.device.watched()).into_iter().map(occupied).collect()
    }

    /// The figures of the run.
    pub(super) fn report(mut self) -> Report {
        let Simulation { policy, device, workload, .. } = self.simulation;
        for call in self.calls.values() {
            self.callers[call.client].dropped += 1;
        }
        self.callers.iter_mut().for_each(|caller| caller.dropped += u64::from(caller.is_late));
        let clients = self.callers.into_iter().zip(&workload.clients).map(|(caller, client)| ClientReport {
            id: client.id.clone(),
            class: client.class,
            scheduled: caller.scheduled,
            served: caller.latencies.len() as u64,
            dropped: caller.dropped,
            latency_us: Distribution::of(caller.latencies.clone()),
            latencies_ns: caller.latencies,
        });
        let Preemptions { totals, first_blocks, drains, stopped_blocks, wasted_ns } = self.preemptions;
        let count = totals.len() as u64;
        let us = |ns: u64| ns as f64 / 1e3;
        let preemption = PreemptionReport {
            count,
            total_us: Distribution::of(totals),
            flag_us: Some(us(device.costs.flag_ns)),
            drain_us: Distribution::of(drains),
            interrupt_us: Some(us(device.costs.interrupt_ns)),
            restore_us: Some(us(wasted_ns) / count.max(1) as f64),
            reexecuted_blocks: stopped_blocks,
        };
        Report {
            variant: workload.variant(self.simulation.as_disb),
            policy: policy.name.to_owned(),
            device: format!("sim:{}", device.name),
            duration_s: workload.duration_ns as f64 / 1e9,
            clients: clients.collect(),
            preemption,
            first_block_us: Some(Distribution::of(first_blocks)),
            padded_launches: self.node.scheduler.counters().padded_launches,
            padding_blocks: self.node.scheduler.counters().padding_blocks,
            padding_delays_ns: self.node.padding_delays,
            faults: self.faults.counts(self.node.device.faults()),
            utilisation: self.node.device.utilisation(),
        }
    }
}
