//! The way of launches into streams: alone, or several together.

use super::completion::{Flight, InRun, Run};
use super::launch::{self, Checked, Params, Refusal};
use super::queue::EvictedWords;
use super::segment::{Key, Segment};
use super::{CudaDevice, error, watch};
use atoll_core::{DeviceOffset, LaunchId, QueueId};
use atoll_cuda::{CudaError, Graph, GraphLaunch, Kernel, LaunchShape, Stream};
use atoll_device::now_ns;
use atoll_device::{Fault, FaultKind, LaunchRecord, ModuleId};
use std::sync::atomic::Ordering::SeqCst;

/// A launch that may go to the driver, but for where its evicted word is.
#[derive(Debug)]
pub(super) struct Bound {
    launch: LaunchId,
    name: String,
    kernel: Kernel,
    /// Module and kernel, for telling launches apart.
    code: (ModuleId, u32),
    shape: LaunchShape,
    params: Params,
    evicted_slot: Option<usize>,
    /// Where the engine looks for the evicted word.
    evicted_word: DeviceOffset,
    task: DeviceOffset,
    units: u64,
}

impl Bound {
    /// Adds what tells it from others: not itself, nor where its evicted word is.
    fn add_to(&self, key: &mut Vec<u64>) {
        let LaunchShape { grid: [x, y, z], shared_bytes, .. } = self.shape;
        let [x, y, z] = [x, y, z].map(u64::from);
        key.extend([u64::from(self.code.0.0), u64::from(self.code.1), x, y, z, u64::from(shared_bytes)]);
        let word = |(at, word)| if Some(at) == self.evicted_slot { 0 } else { word };
        key.extend(self.params.words().enumerate().map(word));
    }

    /// The parameter block, as that of a launch whose evicted word is the `index`th of some.
    fn params_with(&mut self, evicted: &EvictedWords, index: usize) -> Vec<u8> {
        if let Some(at) = self.evicted_slot {
            self.params.put_address(at, evicted.address(index));
        }
        self.params.to_bytes()
    }

    /// One without blocks is nothing to the driver.
    fn has_blocks(&self) -> bool {
        !self.shape.grid.contains(&0)
    }

    fn put(&mut self, stream: &Stream, evicted: &EvictedWords) -> Result<(), CudaError> {
        let params = self.params_with(evicted, 0);
        if self.has_blocks() { self.kernel.launch_with(stream, self.shape, &params) } else { Ok(()) }
    }

    fn into_run(self) -> InRun {
        let Bound { launch, name: kernel, task, units, evicted_slot, evicted_word, .. } = self;
        InRun { launch, kernel, task, units, evicted_word: evicted_slot.map(|_| evicted_word) }
    }
}

impl CudaDevice {
    /// Takes a launch, and gives to the driver what waits no longer. What the driver does not take is answered for.
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

    /// Checks a launch and binds it to the device.
    fn bind(&mut self, record: &LaunchRecord, params: &[u8]) -> Result<Bound, Refusal> {
        let kernel = launch::kernel(record, &self.modules)?;
        if kernel.facts.preempt_offset.is_some() {
            watch(&mut self.epochs, record.epoch_word, &self.service, &self.memory)?;
        }
        let Checked { kernel, shape, params, evicted_slot, blocks } =
            launch::bind(record, params, kernel, &self.memory, self.info.shared_bytes_max, |word| self.epochs.find(word))?;
        kernel.allow(shape.shared_bytes)?;
        Ok(Bound {
            launch: record.launch,
            name: kernel.facts.name.clone(),
            kernel: kernel.handle.clone(),
            code: (record.module, record.kernel),
            shape,
            params,
            evicted_slot,
            evicted_word: record.evicted_word,
            task: record.epoch_word,
            units: blocks.min(u64::from(self.info.compute_units)),
        })
    }

    /// Gives the driver what is held of a queue.
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

    /// The segment of launches, if they go together now.
    fn segment(&mut self, queue: QueueId, launches: &mut [Bound]) -> Option<(Key, Segment)> {
        let stream = &self.queues[queue.0 as usize].as_ref()?.stream;
        let mut key = vec![u64::from(queue.0)];
        launches.iter().for_each(|bound| bound.add_to(&mut key));
        let capture = |evicted: &EvictedWords| {
            let params: Vec<Vec<u8>> = launches.iter_mut().enumerate().map(|(index, bound)| bound.params_with(evicted, index)).collect();
            let launch = |(bound, params)| graph_launch(bound, params);
            let launches: Vec<GraphLaunch<'_>> = launches.iter().zip(&params).filter_map(launch).collect();
            Graph::capture(stream, &launches)
        };
        match self.segments.take(&key, capture) {
            Ok(segment) => segment.map(|segment| (key, segment)),
            // Whoever launches them will hear of it.
            Err(error) if error.is_context_lost() => None,
            Err(error) => {
                tracing::warn!(%error, "the driver captures no launches; each goes by itself from now on");
                self.segments.give_up();
                None
            }
        }
    }

    /// Puts launches into their stream: one, or those of a segment.
    fn put(&mut self, queue: QueueId, mut launches: Vec<Bound>, segment: Option<(Key, Segment)>) {
        // Before the driver has them: they may begin before the call returns.
        let submitted_ns = now_ns();
        self.begun.fetch_add(launches.len() as u64, SeqCst);
        let slot = self.queue(queue).take_slot();
        let evicted = segment.as_ref().map_or(&slot.evicted, |(_, segment)| segment.evicted()).clone();
        evicted.clear(launches.len());
        let begun = slot.enclose(&self.queue(queue).stream, |stream| match &segment {
            Some((_, segment)) => segment.launch(stream),
            None => launches.iter_mut().try_for_each(|bound| bound.put(stream, &evicted)),
        });
        match begun {
            Ok(()) => {
                let launches = launches.into_iter().map(Bound::into_run).collect();
                self.send(queue, Flight::Run(Run { launches, slot, evicted, segment, submitted_ns }));
            }
            Err(error) => {
                self.queue(queue).give_slot(slot);
                if let Some((key, segment)) = segment {
                    self.segments.ended(&key, segment);
                }
                self.begun.fetch_sub(launches.len() as u64, SeqCst);
                let refusal = Refusal::Driver(error);
                launches.into_iter().for_each(|bound| self.refuse(queue, bound.launch, bound.name, &refusal));
            }
        }
    }

    /// Answers for a launch that is not in its stream; it ends behind those in front of it.
    fn refuse(&mut self, queue: QueueId, launch: LaunchId, kernel: String, refusal: &Refusal) {
        let lost = match refusal {
            Refusal::Driver(error) if error.is_context_lost() => Some(error::fault(error)),
            _ => None,
        };
        let kind = match lost.clone() {
            Some(cause) => FaultKind::Lost { cause, may_have_run: false },
            None => FaultKind::Refused { reason: refusal.to_string() },
        };
        self.begun.fetch_add(1, SeqCst);
        self.send(queue, Flight::Refused(launch, Fault::of_kernel(kind, &kernel)));
        if let Some(cause) = lost {
            self.lose(&cause);
        }
    }

    /// The device was lost while launches waited for those that follow.
    pub(super) fn abandon_held(&mut self) {
        let cause = self.lost.get().cloned().unwrap_or_default();
        for index in 0..self.queues.len() {
            for Bound { launch, name, .. } in std::mem::take(self.queues[index].as_mut().map_or(&mut Vec::new(), |queue| &mut queue.held)) {
                let kind = FaultKind::Lost { cause: cause.clone(), may_have_run: false };
                self.begun.fetch_add(1, SeqCst);
                self.send(QueueId(index as u32), Flight::Refused(launch, Fault::of_kernel(kind, &name)));
            }
        }
    }

    fn send(&self, queue: QueueId, flight: Flight) {
        let flights = self.flights.as_ref().expect("taken away by `drop` alone");
        // The thread ends with the last sender, or by a panic, which was reported.
        let _ = flights.send((queue, flight));
    }
}

/// A launch as a graph has it; one without blocks is not in it.
fn graph_launch<'a>(bound: &'a Bound, params: &'a Vec<u8>) -> Option<GraphLaunch<'a>> {
    bound.has_blocks().then_some(GraphLaunch { kernel: &bound.kernel, shape: bound.shape, params })
}
