//! A device queue: a stream, and the slots of the launches that it holds.

use crate::driver::Driver;
use crate::slot::{LAUNCH_WORDS, LaunchWords, Slot};
use atoll_core::{DeviceOffset, Epoch, LaunchId};
use std::collections::VecDeque;
use std::sync::Arc;

/// A launch whose completion has not been taken.
#[derive(Debug)]
pub(crate) struct InFlight<D: Driver> {
    pub(crate) launch: LaunchId,
    /// Its words, if its blocks can be killed, detected as missing, and run again.
    pub(crate) interruptible: Option<Interruptible<D>>,
}

/// A launch whose blocks may be killed once its epoch was raised.
#[derive(Debug)]
pub(crate) struct Interruptible<D: Driver> {
    pub(crate) words: LaunchWords<D>,
    pub(crate) epoch_word: DeviceOffset,
    /// The epoch under which it was issued.
    pub(crate) epoch: Epoch,
    /// Whether its running blocks were killed. Blocks that started later have exited at once.
    pub(crate) is_killed: bool,
}

/// The engine's side of a device queue.
#[derive(Debug)]
pub(crate) struct Queue<D: Driver> {
    pub(crate) stream: D::Stream,
    /// Free slots.
    slots: Vec<Slot<D>>,
    /// Launches whose completion has not been taken, oldest first.
    pub(crate) in_flight: VecDeque<InFlight<D>>,
    capacity: usize,
}

impl<D: Driver> Queue<D> {
    /// A queue on a set of compute units, or on all.
    pub(crate) fn new(
        context: &Arc<D::Context>,
        units: Option<&D::Units>,
        priority: i32,
        capacity: u32,
    ) -> Result<Queue<D>, D::Error> {
        let capacity = capacity as usize;
        let words = Arc::new(D::words(context, capacity * LAUNCH_WORDS)?);
        let slot = |index| {
            let (began, ended) = (D::event(context)?, D::event(context)?);
            Ok(Slot::<D> { began, ended, words: LaunchWords::new(&words, index), print: None })
        };
        let slots = (0..capacity).map(slot).collect::<Result<_, D::Error>>()?;
        let stream = D::stream(context, units, priority)?;
        Ok(Queue { stream, slots, in_flight: VecDeque::new(), capacity })
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < self.capacity
    }

    /// Whether a completion has not been taken yet.
    pub(crate) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// # Panics
    /// If no slot is free.
    pub(crate) fn take_slot(&mut self) -> Slot<D> {
        self.slots.pop().expect("`has_room` was checked, so a slot is free")
    }

    pub(crate) fn give_slot(&mut self, slot: Slot<D>) {
        self.slots.push(slot);
    }

    /// Counts a launch that was accepted.
    pub(crate) fn begun(&mut self, launch: LaunchId) {
        self.in_flight.push_back(InFlight { launch, interruptible: None });
    }

    /// Records that a completion was taken, and frees its slot. Returns whether the launch's
    /// running blocks were killed.
    pub(crate) fn ended(&mut self, slot: Option<Slot<D>>) -> bool {
        self.slots.extend(slot);
        self.in_flight.pop_front().and_then(|one| one.interruptible).is_some_and(|one| one.is_killed)
    }
}
