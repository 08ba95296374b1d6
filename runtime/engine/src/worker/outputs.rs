//! Outputs that stay on the device for later invocations.

use super::Worker;
use super::holdings::Holdings;
use crate::event::Submission;
use crate::instance::Instance;
use crate::retained::{OutputRequest, OutputRequests, Part, Retained, RetainedTensor};
use atoll_core::memory::{Event, SlotId};
use atoll_core::{DeviceId, DeviceOffset};
use atoll_device::DeviceError;
use std::sync::Arc;

impl Holdings {
    /// Where an output of an earlier invocation is, if it can be copied to an instance. Notes that it
    /// is lost if it was on this device.
    pub(super) fn place_of(
        &self,
        tensor: &RetainedTensor,
        to: &Instance,
        engine: &Arc<OutputRequests>,
    ) -> Option<DeviceOffset> {
        if !tensor.is_of(engine) {
            return None;
        }
        let from = self.kept.get(&tensor.slot()).filter(|(_, from)| from.is_beside(to));
        if from.is_none() {
            tensor.note_lost();
        }
        from.map(|(_, from)| from.at(tensor.place().offset))
    }
}

impl Worker {
    /// Retains outputs in a slot of an invocation that is about to end. [`Worker::put_away`] follows.
    pub(super) fn retain(&mut self, slot: SlotId, submission: &Submission, parts: Vec<Part>) -> Vec<RetainedTensor> {
        if parts.is_empty() {
            return Vec::new();
        }
        let (tenant, device) = (submission.chain.tenant().clone(), DeviceId::of_id(submission.id.0));
        let (memory, tensors) = Retained::new(slot, tenant, device, parts, Arc::clone(&self.shared.outputs));
        self.holdings.retained.insert(slot, Arc::downgrade(&memory));
        tensors
    }

    /// Tells the memory decisions which slots of an invocation that ends are retained.
    pub(super) fn note_retained(&mut self, slots: &[SlotId]) {
        for &slot in slots {
            if self.holdings.retained.contains_key(&slot) {
                self.note_memory(Event::RetainOutputs { slot });
            }
        }
    }

    /// Handles requests of clients about retained outputs. Returns whether there were any.
    pub(super) fn take_output_requests(&mut self) -> bool {
        let requests = self.shared.outputs.take();
        let any = !requests.is_empty();
        for request in requests {
            match request {
                OutputRequest::Release(slot) => self.release_outputs(slot),
                OutputRequest::Save(memory, then) => {
                    // Lost outputs keep their memory until the last client drops them. Otherwise that
                    // would release it while it is retained for outputs of a later invocation.
                    if self.holdings.retained.contains_key(&memory.slot) && self.save(&memory) {
                        self.release_outputs(memory.slot);
                    }
                    then();
                }
            }
        }
        any
    }

    fn release_outputs(&mut self, slot: SlotId) {
        if self.holdings.retained.remove(&slot).is_some() {
            self.notify_memory(Event::ReleaseOutputs { slot });
            self.act();
        }
    }

    /// Saves the outputs in a slot whose memory is needed for other work.
    pub(super) fn save_outputs(&mut self, slot: SlotId) {
        let memory = self.holdings.retained.remove(&slot).and_then(|memory| memory.upgrade());
        // Without memory, the last client has gone, and its request to release them is on its way.
        if let Some(memory) = memory {
            self.save(&memory);
        }
    }

    /// Copies outputs to host memory. They are lost if that fails. Returns whether they are saved.
    fn save(&mut self, memory: &Retained) -> bool {
        let instance = self.holdings.kept.get(&memory.slot).filter(|_| self.lost.is_none());
        let Some((_, instance)) = instance else {
            memory.note_saved(None);
            return false;
        };
        let holder = instance.holder;
        let places: Vec<_> = memory.parts.iter().map(|part| (instance.at(part.offset), part.bytes)).collect();
        let read = |(at, bytes): (DeviceOffset, u64)| {
            let mut contents = vec![0; bytes as usize];
            self.device.read(at, &mut contents).map(|()| contents)
        };
        let contents: Result<Vec<Vec<u8>>, DeviceError> = places.into_iter().map(read).collect();
        let contents = self.check(contents).ok();
        let bytes = contents.iter().flatten().map(|part| part.len() as u64).sum::<u64>();
        if let Some((account, _)) = holder {
            self.accounts.of(account).read_bytes += bytes;
        }
        let is_saved = contents.is_some();
        memory.note_saved(contents);
        is_saved
    }
}
