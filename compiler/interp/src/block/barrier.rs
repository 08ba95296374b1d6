//! Barriers of a block, and deadlocks.

use super::{BARRIERS, BlockRun, State};
use crate::fault::{Fault, FaultKind, Waiting};
use crate::lanes::WARP;
use crate::op::{BarrierKind, Dst, Reduction};

#[derive(Clone, Debug, Default)]
pub(super) struct Barrier {
    /// Number of expected threads, if the instruction gives one.
    count: Option<u32>,
    arrived: Vec<u32>,
    waiting: Vec<(u32, Option<Dst>, BarrierKind)>,
    trues: u32,
}

impl BlockRun<'_> {
    pub(super) fn arrive(
        &mut self,
        thread: usize,
        (kind, number, count): (BarrierKind, u32, Option<u32>),
        predicate: bool,
        dst: Option<Dst>,
    ) -> Result<(), FaultKind> {
        let Some(barrier) = self.barriers.get_mut(number as usize) else {
            return Err(FaultKind::Operand(format!("barrier {number} of {BARRIERS}")));
        };
        if count.is_some_and(|c| c == 0 || !c.is_multiple_of(WARP as u32)) {
            return Err(FaultKind::Operand(format!(
                "a barrier for {} threads, which is not a multiple of the warp size",
                count.unwrap_or(0)
            )));
        }
        if !barrier.arrived.is_empty() && barrier.count != count {
            return Err(FaultKind::Operand(format!("threads wait at barrier {number} with different thread counts")));
        }
        barrier.count = count;
        barrier.arrived.push(thread as u32);
        barrier.trues += u32::from(predicate);
        if kind == BarrierKind::Arrive {
            self.threads[thread].at += 1;
        } else {
            barrier.waiting.push((thread as u32, dst, kind));
            self.threads[thread].state = State::AtBarrier(number);
        }
        self.release(number);
        Ok(())
    }

    /// Releases the threads of a barrier if all expected threads have arrived.
    pub(super) fn release(&mut self, number: u32) {
        let barrier = &self.barriers[number as usize];
        if barrier.arrived.is_empty() || !self.is_complete(barrier) {
            return;
        }
        let Barrier { arrived, waiting, trues, .. } = std::mem::take(&mut self.barriers[number as usize]);
        for (thread, dst, kind) in waiting {
            let thread = thread as usize;
            let result = match kind {
                BarrierKind::Reduce(Reduction::And) => u64::from(trues as usize == arrived.len()),
                BarrierKind::Reduce(Reduction::Or) => u64::from(trues > 0),
                _ => trues.into(),
            };
            self.set(thread, dst, result);
            let t = &mut self.threads[thread];
            t.state = State::Ready;
            t.at += 1;
        }
    }

    /// Without a count, all threads that have not exited must wait at the barrier. With a count, a
    /// warp whose remaining lanes have all arrived counts as a full warp.
    fn is_complete(&self, barrier: &Barrier) -> bool {
        let Some(count) = barrier.count else { return barrier.waiting.len() >= self.live() };
        if barrier.arrived.len() >= count as usize {
            return true;
        }
        let contribution = |warp: usize| {
            let there = barrier.arrived.iter().filter(|t| **t as usize / WARP == warp).count();
            let live = self.lanes_of(warp).filter(|t| self.threads[*t].state != State::Exited).count();
            if there > 0 && there >= live { WARP } else { there }
        };
        let total: usize = (0..self.threads.len().div_ceil(WARP)).map(contribution).sum();
        total >= count as usize
    }

    pub(super) fn deadlock(&self) -> Fault {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut first = 0;
        for (index, thread) in self.threads.iter().enumerate().filter(|(_, t)| t.state != State::Exited) {
            let barrier = match thread.state {
                State::AtBarrier(number) => Some(number),
                _ => None,
            };
            let line = self.line(index);
            match waiting.iter_mut().find(|w| (w.line, w.barrier) == (line, barrier)) {
                Some(group) => group.threads += 1,
                None => {
                    if waiting.is_empty() {
                        first = index;
                    }
                    waiting.push(Waiting { line, barrier, threads: 1, first: thread.id });
                }
            }
        }
        self.fault(first, FaultKind::Deadlock(waiting))
    }
}
