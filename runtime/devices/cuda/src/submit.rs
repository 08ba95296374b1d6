//! Submitting launches to streams: one by one, or several as a segment.

use super::bound::Bound;
use super::completion::{Flight, Run};
use super::device::{CudaDevice, watch};
use super::error;
use super::launch::{self, Checked, Refusal};
use super::segment::{Key, Segment};
use super::slot::LaunchWords;
use atoll_core::{LaunchId, QueueId};
use atoll_cuda::{Graph, GraphLaunch};
use atoll_device::now_ns;
use atoll_device::{Fault, FaultKind, LaunchRecord};
use std::sync::atomic::Ordering::SeqCst;

impl CudaDevice {
    /// Accepts a launch, and submits launches that are not held back. A launch that the driver
    /// refuses completes as failed.
    pub(super) fn accept(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) {
        self.queue(queue).begun();
        let is_last = match self.bind(record, params) {
            Ok(bound) => {
                self.queue(queue).held.push(bound);
                record.followed == 0 || self.queue(queue).held.len() >= self.segments.launches_max()
            }
            Err(refusal) => {
                self.release(queue);
                self.refuse(queue, record.launch, launch::kernel_name(record, &self.modules), &refusal);
                false
            }
        };
        if is_last {
            self.release(queue);
        }
    }

    /// Checks a launch and resolves its kernel and addresses.
    fn bind(&mut self, record: &LaunchRecord, params: &[u8]) -> Result<Bound, Refusal> {
        let kernel = launch::kernel(record, &self.modules)?;
        if kernel.facts.preempt_offset.is_some() {
            watch(&mut self.epochs, record.epoch_word, &self.service, &self.memory)?;
        }
        let Checked { kernel, shape, params, evicted_slot, fault_slot, blocks } =
            launch::bind(record, params, kernel, &self.memory, self.info.shared_bytes_max, |word| {
                self.epochs.find(word)
            })?;
        kernel.allow(shape.shared_bytes)?;
        Ok(Bound {
            launch: record.launch,
            name: kernel.facts.name.clone(),
            kernel: kernel.handle.clone(),
            code: (record.module, record.kernel),
            shape,
            params,
            evicted_slot,
            fault_slot,
            evicted_word: record.evicted_word,
            task: record.epoch_word,
            units: blocks.min(u64::from(self.info.compute_units)),
        })
    }

    /// Submits the held launches of a queue.
    pub(super) fn release(&mut self, queue: QueueId) {
        let mut held = std::mem::take(&mut self.queue(queue).held);
        if held.len() > 1
            && let Some((key, segment)) = self.segment(queue, &mut held)
        {
            return self.put(queue, held, Some((key, segment)));
        }
        for bound in held {
            self.put(queue, vec![bound], None);
        }
    }

    /// The segment for these launches, if they can go together.
    fn segment(&mut self, queue: QueueId, launches: &mut [Bound]) -> Option<(Key, Segment)> {
        let stream = &self.queues[queue.0 as usize].as_ref()?.stream;
        let mut key = vec![u64::from(queue.0)];
        launches.iter().for_each(|bound| bound.add_to(&mut key));
        let capture = |words: &LaunchWords| {
            let params: Vec<Vec<u8>> =
                launches.iter_mut().enumerate().map(|(index, bound)| bound.params_with(words, index)).collect();
            let launches: Vec<GraphLaunch<'_>> =
                launches.iter().zip(&params).filter_map(|(bound, params)| bound.in_graph(params)).collect();
            Graph::capture(stream, &launches)
        };
        match self.segments.take(&key, capture) {
            Ok(segment) => segment.map(|segment| (key, segment)),
            // Submitting them will report the loss.
            Err(error) if error.is_context_lost() => None,
            Err(error) => {
                tracing::warn!(%error, "the driver cannot capture launches; from now on each goes by itself");
                self.segments.disable();
                None
            }
        }
    }

    /// Puts launches into their stream: one, or those of a segment.
    fn put(&mut self, queue: QueueId, mut launches: Vec<Bound>, segment: Option<(Key, Segment)>) {
        // Taken before the call, since the launches may begin before it returns.
        let submitted_ns = now_ns();
        self.common.begun.fetch_add(launches.len() as u64, SeqCst);
        let slot = self.queue(queue).take_slot();
        let words = segment.as_ref().map_or(&slot.words, |(_, segment)| segment.words()).clone();
        words.clear(launches.len());
        let begun = slot.enclose(&self.queue(queue).stream, |stream| match &segment {
            Some((_, segment)) => segment.launch(stream),
            None => launches.iter_mut().try_for_each(|bound| bound.put(stream, &words)),
        });
        match begun {
            Ok(()) => {
                let launches = launches.into_iter().map(Bound::into_run).collect();
                self.send(queue, Flight::Run(Run { launches, slot, words, segment, submitted_ns }));
            }
            Err(error) => {
                self.queue(queue).give_slot(slot);
                if let Some((key, segment)) = segment {
                    self.segments.ended(&key, segment);
                }
                self.common.begun.fetch_sub(launches.len() as u64, SeqCst);
                let refusal = Refusal::Driver(error);
                launches.into_iter().for_each(|bound| self.refuse(queue, bound.launch, bound.name, &refusal));
            }
        }
    }

    /// Completes a launch that is not in its stream as failed, after the launches before it.
    fn refuse(&mut self, queue: QueueId, launch: LaunchId, kernel: String, refusal: &Refusal) {
        let lost = match refusal {
            Refusal::Driver(error) if error.is_context_lost() => Some(error::fault(error)),
            _ => None,
        };
        let kind = match lost.clone() {
            Some(cause) => FaultKind::Lost { cause, may_have_run: false },
            None => FaultKind::Refused { reason: refusal.to_string() },
        };
        self.send_refused(queue, launch, Fault::of_kernel(kind, &kernel));
        if let Some(cause) = lost {
            self.mark_lost(&cause);
        }
    }

    /// Fails held launches after the device was lost.
    pub(super) fn abandon_held(&mut self) {
        let cause = self.common.lost.get().cloned().unwrap_or_default();
        for index in 0..self.queues.len() {
            let Some(queue) = &mut self.queues[index] else { continue };
            for Bound { launch, name, .. } in std::mem::take(&mut queue.held) {
                let kind = FaultKind::Lost { cause: cause.clone(), may_have_run: false };
                self.send_refused(QueueId(index as u32), launch, Fault::of_kernel(kind, &name));
            }
        }
    }

    /// Sends a launch that is not in its stream to the completion thread, with the reason.
    fn send_refused(&self, queue: QueueId, launch: LaunchId, fault: Fault) {
        self.common.begun.fetch_add(1, SeqCst);
        self.send(queue, Flight::Refused(launch, fault));
    }

    fn send(&self, queue: QueueId, flight: Flight) {
        let flights = self.flights.as_ref().expect("only `drop` takes it");
        // The thread ends after the last sender is dropped, or by a panic, which was reported.
        let _ = flights.send((queue, flight));
    }
}
