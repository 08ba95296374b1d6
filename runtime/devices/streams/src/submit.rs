//! Submitting launches to streams.

use crate::completion::{Flight, Run};
use crate::device::StreamDevice;
use crate::driver::{Driver, DriverError};
use crate::launch::{self, Bound, Refusal};
use atoll_core::{LaunchId, QueueId};
use atoll_device::{Fault, FaultKind, LaunchRecord, now_ns, refusal};
use std::sync::atomic::Ordering::SeqCst;

impl<D: Driver> StreamDevice<D> {
    /// Accepts a launch. A launch that the driver refuses completes as failed.
    pub(crate) fn accept(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) {
        self.queue(queue).begun(record.launch);
        match self.bind(record, params) {
            Ok(bound) => self.put(queue, bound),
            Err(refusal) => {
                self.refuse(queue, record.launch, launch::kernel_name(record, &self.modules), &refusal);
            }
        }
    }

    /// Checks a launch and resolves its kernel and addresses.
    fn bind(&mut self, record: &LaunchRecord, params: &[u8]) -> Result<Bound<D>, Refusal<D::Error>> {
        let limits = self.limits();
        let kernel = launch::kernel(record, &self.modules)?;
        if kernel.facts.preempt_offset.is_some() {
            if record.epoch_word.0.checked_add(4).is_none_or(|end| end > limits.memory_bytes) {
                return Err(refusal::Refusal::PreemptWords.into());
            }
            self.epochs.watch(record.epoch_word, &self.service, &self.memory).map_err(Refusal::Driver)?;
        }
        let bound = launch::bind(record, params, kernel, limits, |word| self.epochs.find(word))?;
        kernel.allow(record.shared_bytes).map_err(Refusal::Driver)?;
        Ok(bound)
    }

    /// Puts a launch into its stream.
    fn put(&mut self, queue: QueueId, mut bound: Bound<D>) {
        // Taken before the call, since the launch may begin before it returns.
        let submitted_ns = now_ns();
        self.common.begun.fetch_add(1, SeqCst);
        let mut slot = self.queue(queue).take_slot();
        slot.words.clear();
        self.mark_interruptible(queue, &bound, &slot);
        let prepared = bound.prepare(&self.context, &mut slot);
        let begun = prepared.and_then(|()| slot.begin(&self.queue(queue).stream, |stream| bound.put(stream, &slot)));
        let Bound { launch, facts, evicted_slot, evicted_word, task, units, .. } = bound;
        match begun {
            Ok(()) => {
                // On error the launch may run, and its end cannot be detected. The device is lost,
                // so that the slot is not used again.
                if let Err(error) = slot.end(&self.queue(queue).stream) {
                    self.set_lost(&format!("the end of `{}` cannot be detected: {error}", facts.name));
                }
                let evicted_word = evicted_slot.map(|_| evicted_word);
                let run = Run { launch, facts, slot, submitted_ns, units, evicted_word, task };
                self.send(queue, Flight::Run(Box::new(run)));
            }
            Err(error) => {
                self.queue(queue).give_slot(slot);
                self.common.begun.fetch_sub(1, SeqCst);
                self.refuse(queue, launch, facts.name, &Refusal::Driver(error));
            }
        }
    }

    /// Completes a launch that is not in its stream as failed, after the launches before it.
    fn refuse(&mut self, queue: QueueId, launch: LaunchId, kernel: String, refusal: &Refusal<D::Error>) {
        let lost = match refusal {
            Refusal::Driver(error) if error.is_device_lost() => Some(error.fault()),
            _ => None,
        };
        let kind = match lost.clone() {
            Some(cause) => FaultKind::Lost { cause, may_have_run: false },
            None => FaultKind::Refused { reason: refusal.to_string() },
        };
        self.common.begun.fetch_add(1, SeqCst);
        self.send(queue, Flight::Refused(launch, Fault::of_kernel(kind, &kernel)));
        if let Some(cause) = lost {
            self.mark_lost(&cause);
        }
    }

    fn send(&self, queue: QueueId, flight: Flight<D>) {
        let flights = self.flights.as_ref().expect("only `drop` takes it");
        // The thread ends after the last sender is dropped, or by a panic, which was reported.
        let _ = flights.send((queue, flight));
    }
}
