//! Segments: launches that follow each other at once, captured as a CUDA graph that goes to the
//! driver in one call.
//!
//! A call of the driver per launch costs as much as a short kernel runs. Real-time launches that
//! say that another one follows ([`LaunchRecord::followed`]) are held until it is there, or as many
//! are as may go together, and are launched as one graph if the very same ones, to the last
//! parameter, were launched together before. So nothing is captured that comes only once, and a
//! function whose memory stays where it is has its graphs from the second request on. Kernels look
//! for their epoch as ever, and each launch of a segment has an evicted word and a progress map of
//! its own: one that leaves takes with it what is behind it in the segment, as in a stream, and
//! preemption waits for no more than what runs.
//!
//! [`LaunchRecord::followed`]: crate::LaunchRecord

use super::slot::EvictedWords;
use atoll_cuda::{Context, CudaError, Graph, HostWords, Stream};
use std::collections::HashMap;
use std::sync::Arc;

/// Sequences of launches that are remembered; those that were not used for longest go first.
const KNOWN_MAX: usize = 256;

/// Launches, by all that the driver is told of them but for where their evicted words are.
pub(super) type Key = Vec<u64>;

/// A graph, and the evicted words of its launches.
#[derive(Debug)]
pub(super) struct Segment {
    graph: Graph,
    evicted: EvictedWords,
}

impl Segment {
    /// Puts its launches into a stream.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.graph.launch(stream)
    }

    pub(super) fn evicted(&self) -> &EvictedWords {
        &self.evicted
    }
}

/// What is known of a sequence of launches.
#[derive(Debug)]
enum Known {
    /// It came once.
    Seen,
    /// Ready to be launched.
    Captured(Segment),
    /// On its way: a graph runs once at a time.
    Running,
}

/// The segments of a device.
#[derive(Debug)]
pub(super) struct Segments {
    launches_max: usize,
    words: Arc<HostWords>,
    /// First words of those that no segment has.
    free: Vec<usize>,
    known: HashMap<Key, (Known, u64)>,
    /// Counts looks, as a clock for what was used last.
    looks: u64,
}

impl Segments {
    /// So many launches go together at most; with 1 each goes by itself.
    pub(super) fn new(context: &Arc<Context>, launches_max: u32) -> Result<Segments, CudaError> {
        let launches_max = launches_max.max(1) as usize;
        let places = if launches_max > 1 { KNOWN_MAX } else { 0 };
        let words = Arc::new(HostWords::new(context, places * launches_max)?);
        let free = (0..places).map(|place| place * launches_max).collect();
        Ok(Segments { launches_max, words, free, known: HashMap::new(), looks: 0 })
    }

    pub(super) fn launches_max(&self) -> usize {
        self.launches_max
    }

    /// The segment of some launches, if they go together now: `capture` makes a graph of those that
    /// come for the second time. Until it is back ([`Segments::ended`]) nobody else gets it.
    pub(super) fn take(
        &mut self,
        key: &Key,
        capture: impl FnOnce(&EvictedWords) -> Result<Graph, CudaError>,
    ) -> Result<Option<Segment>, CudaError> {
        self.looks += 1;
        let Some((known, used)) = self.known.get_mut(key) else {
            self.make_room();
            self.known.insert(key.clone(), (Known::Seen, self.looks));
            return Ok(None);
        };
        *used = self.looks;
        match std::mem::replace(known, Known::Running) {
            Known::Captured(segment) => Ok(Some(segment)),
            Known::Running => Ok(None),
            Known::Seen => {
                let Some(first) = self.free.pop() else {
                    *known = Known::Seen;
                    return Ok(None);
                };
                let evicted = EvictedWords::new(&self.words, first);
                match capture(&evicted) {
                    Ok(graph) => Ok(Some(Segment { graph, evicted })),
                    Err(error) => {
                        self.known.remove(key);
                        self.free.push(first);
                        Err(error)
                    }
                }
            }
        }
    }

    /// A segment was launched and has ended, or was not launched after all.
    pub(super) fn ended(&mut self, key: &Key, segment: Segment) {
        match self.known.get_mut(key) {
            Some((known @ Known::Running, _)) => *known = Known::Captured(segment),
            _ => self.free.push(segment.evicted.first()),
        }
    }

    /// Forgets all that is known: kernels of it may be unloaded.
    pub(super) fn forget(&mut self) {
        for (_, (known, _)) in self.known.drain() {
            if let Known::Captured(segment) = known {
                self.free.push(segment.evicted.first());
            }
        }
    }

    /// No launches go together any more.
    pub(super) fn give_up(&mut self) {
        self.forget();
        self.launches_max = 1;
    }

    fn make_room(&mut self) {
        if self.known.len() < KNOWN_MAX {
            return;
        }
        let idle = self.known.iter().filter(|(_, (known, _))| !matches!(known, Known::Running));
        let Some(oldest) = idle.min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone()) else { return };
        if let Some((Known::Captured(segment), _)) = self.known.remove(&oldest) {
            self.free.push(segment.evicted.first());
        }
    }
}
