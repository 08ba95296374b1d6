//! Outputs that stay in device memory after their invocation, as inputs of later invocations.
//!
//! The memory of the invocation is kept until the last [`RetainedTensor`] of it is dropped. If other
//! work needs the memory before, the engine copies the outputs to host memory, from where they are
//! written to a device like any input. So no invocation waits for retained memory.

use crate::doorbell::Doorbell;
use atoll_core::memory::SlotId;
use atoll_core::{DeviceId, Tenant};
use atoll_kgraph::{DType, InputForm, Place};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An output of an invocation that stayed on the device. Cheap to clone.
#[derive(Clone)]
pub struct RetainedTensor {
    dtype: DType,
    shape: Arc<[i64]>,
    memory: Arc<Retained>,
    /// Its index in the parts of that memory.
    part: usize,
}

/// The memory of an invocation, retained for some of its outputs.
pub(crate) struct Retained {
    pub(crate) slot: SlotId,
    tenant: Tenant,
    device: DeviceId,
    /// The places of the outputs in it.
    pub(crate) parts: Vec<Place>,
    /// The contents of the parts, once they are in host memory.
    saved: OnceLock<Vec<Vec<u8>>>,
    is_lost: AtomicBool,
    requests: Arc<OutputRequests>,
}

/// An output to retain: its place in the memory of the invocation, and its form.
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
}

impl RetainedTensor {
    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.place().bytes
    }

    /// The device that it stayed on.
    pub fn device(&self) -> DeviceId {
        self.memory.device
    }

    /// Its contents, once they are in host memory. Any device takes it as an input then.
    pub fn saved(&self) -> Option<&[u8]> {
        self.memory.saved.get().map(|parts| parts[self.part].as_slice())
    }

    /// Whether its contents are lost, with the device or the executor that had them.
    pub fn is_lost(&self) -> bool {
        let is_gone = self.memory.is_lost.load(Ordering::Acquire) || self.memory.requests.is_closed();
        // In this order, since contents are saved before the device can be lost.
        is_gone && self.saved().is_none()
    }

    /// Copies its contents to host memory. Calls `then` when they are there or lost, on this thread
    /// or on the engine's, which it must not block. Drops `then` if the engine stops.
    pub fn save(&self, then: Box<dyn FnOnce() + Send>) {
        if self.saved().is_some() || self.is_lost() {
            return then();
        }
        self.memory.requests.push(OutputRequest::Save(Arc::clone(&self.memory), then));
    }

    pub(crate) fn form(&self) -> InputForm<'_> {
        InputForm { dtype: Some(self.dtype), shape: &self.shape, bytes: self.bytes(), data: self.saved() }
    }

    /// Notes that its contents are lost.
    pub(crate) fn note_lost(&self) {
        self.memory.note_saved(None);
    }

    pub(crate) fn tenant(&self) -> &Tenant {
        &self.memory.tenant
    }

    pub(crate) fn slot(&self) -> SlotId {
        self.memory.slot
    }

    pub(crate) fn place(&self) -> Place {
        self.memory.parts[self.part]
    }

    /// Whether it stayed on the device of this engine.
    pub(crate) fn is_of(&self, engine: &Arc<OutputRequests>) -> bool {
        Arc::ptr_eq(&self.memory.requests, engine)
    }
}

/// Two tensors are equal if they are the same output.
impl PartialEq for RetainedTensor {
    fn eq(&self, other: &RetainedTensor) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.part == other.part
    }
}

impl Eq for RetainedTensor {}

impl fmt::Debug for RetainedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Retained { slot, device, .. } = &*self.memory;
        write!(f, "RetainedTensor({} {:?}, {slot:?} of {device:?})", self.dtype, self.shape)
    }
}

impl Retained {
    /// Retains outputs in a slot. Returns their memory and the outputs, in order.
    pub(crate) fn new(
        slot: SlotId,
        tenant: Tenant,
        device: DeviceId,
        parts: Vec<Part>,
        requests: Arc<OutputRequests>,
    ) -> (Arc<Retained>, Vec<RetainedTensor>) {
        let (saved, is_lost) = (OnceLock::new(), AtomicBool::new(false));
        let places = parts.iter().map(|part| part.place).collect();
        let memory = Arc::new(Retained { slot, tenant, device, parts: places, saved, is_lost, requests });
        let tensor = |(part, Part { dtype, shape, .. }): (usize, Part)| RetainedTensor {
            dtype,
            shape: shape.into(),
            memory: Arc::clone(&memory),
            part,
        };
        let tensors = parts.into_iter().enumerate().map(tensor).collect();
        (memory, tensors)
    }

    /// Notes the contents of its parts, or that they are lost.
    pub(crate) fn note_saved(&self, contents: Option<Vec<Vec<u8>>>) {
        match contents {
            // They are saved once.
            Some(contents) => drop(self.saved.set(contents)),
            None => self.is_lost.store(true, Ordering::Release),
        }
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // The memory of saved outputs is free already.
        if self.saved.get().is_none() {
            self.requests.push(OutputRequest::Release(self.slot));
        }
    }
}

/// What clients ask of the engine's thread about retained outputs.
pub(crate) enum OutputRequest {
    /// The outputs in this slot are not needed any more.
    Release(SlotId),
    /// Copy outputs to host memory, then call this.
    Save(Arc<Retained>, Box<dyn FnOnce() + Send>),
}

/// The requests that the engine's thread has not taken yet. There are at most two for each slot,
/// and one for each waiting client.
pub(crate) struct OutputRequests {
    pending: Mutex<Pending>,
    /// Whether there may be any, so that the engine's thread need not lock to look.
    has_any: AtomicBool,
    doorbell: Arc<Doorbell>,
}

#[derive(Default)]
struct Pending {
    requests: Vec<OutputRequest>,
    /// The device is lost, or the engine has stopped.
    is_closed: bool,
}

impl OutputRequests {
    pub(crate) fn new(doorbell: &Arc<Doorbell>) -> Arc<OutputRequests> {
        let (pending, has_any) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(OutputRequests { pending, has_any, doorbell: Arc::clone(doorbell) })
    }

    // Pending requests are a list that no panic leaves half changed.
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Adds a request, unless the engine takes none any more.
    fn push(&self, request: OutputRequest) {
        let mut pending = self.lock();
        if pending.is_closed {
            // Dropping a request may add another one.
            drop(pending);
            return drop(request);
        }
        pending.requests.push(request);
        self.has_any.store(true, Ordering::Release);
        drop(pending);
        self.doorbell.ring();
    }

    /// The requests since the last call.
    pub(crate) fn take(&self) -> Vec<OutputRequest> {
        match self.has_any.swap(false, Ordering::AcqRel) {
            true => std::mem::take(&mut self.lock().requests),
            false => Vec::new(),
        }
    }

    /// Takes no more requests: the outputs that are not saved are lost.
    pub(crate) fn close(&self) {
        let mut pending = self.lock();
        pending.is_closed = true;
        let requests = std::mem::take(&mut pending.requests);
        drop(pending);
        drop(requests);
    }
}

impl fmt::Debug for OutputRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputRequests").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn retained(requests: &Arc<OutputRequests>) -> (Arc<Retained>, Vec<RetainedTensor>) {
        let part = |offset| Part { place: Place { offset, bytes: 4 }, dtype: DType::F32, shape: vec![1] };
        let tenant = "a".parse().expect("a name");
        Retained::new(SlotId(7), tenant, DeviceId(1), vec![part(0), part(4)], Arc::clone(requests))
    }

    fn requests() -> Arc<OutputRequests> {
        OutputRequests::new(&Doorbell::new().expect("an eventfd"))
    }

    #[test]
    fn memory_is_released_with_the_last_tensor() {
        let requests = requests();
        let (memory, mut tensors) = retained(&requests);
        drop(memory);
        tensors.pop();
        assert!(requests.take().is_empty());
        tensors.pop();
        assert!(matches!(requests.take()[..], [OutputRequest::Release(SlotId(7))]));
    }

    #[test]
    fn saved_tensors_outlive_the_engine_and_others_are_lost() {
        let requests = requests();
        let (memory, tensors) = retained(&requests);
        memory.note_saved(Some(vec![vec![1; 4], vec![2; 4]]));
        let (_, lost) = retained(&requests);
        requests.close();
        assert_eq!(tensors[1].saved(), Some(&[2; 4][..]));
        assert_eq!((tensors[0].is_lost(), lost[0].is_lost()), (false, true));
        drop((memory, tensors, lost));
        assert!(requests.take().is_empty(), "there is nothing to release");
    }

    #[test]
    fn an_engine_that_stops_ends_all_waiting() {
        let requests = requests();
        let (_memory, tensors) = retained(&requests);
        let (send, saved) = channel::<()>();
        let waits = send.clone();
        tensors[0].save(Box::new(move || waits.send(()).expect("the test waits")));
        requests.close();
        tensors[0].save(Box::new(move || send.send(()).expect("the test waits")));
        assert_eq!(saved.iter().count(), 1, "the first one is dropped, and the second one is told at once");
    }
}
