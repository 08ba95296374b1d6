//! Segments: consecutive launches that are captured as a CUDA graph and launched with one call of
//! the driver.
//!
//! A driver call takes as long as a short kernel runs. So real-time launches that announce another
//! one ([`followed`](atoll_device::LaunchRecord::followed)) are held until it arrives, up to a
//! maximum number. They are launched as one graph if the same launches, with identical parameters,
//! were launched together before. So launches that occur only once are never captured, and a
//! function whose memory stays in place has its graphs from the second request on. Kernels check
//! their epoch as usual, and each launch of a segment has its own words and progress map. If one
//! launch exits early, the launches behind it in the segment do so as well, as in a stream;
//! preemption waits for running blocks only.

use super::slot::{LaunchWords, WORDS};
use atoll_cuda::{Context, CudaError, Graph, HostWords, Stream};
use std::collections::HashMap;
use std::sync::Arc;

/// Sequences of launches that are remembered; beyond that, the least recently used is dropped.
const KNOWN_MAX: usize = 256;

/// Identifies a sequence of launches: everything passed to the driver except the addresses of
/// their words.
pub(super) type Key = Vec<u64>;

/// A captured graph, and the words of its launches.
#[derive(Debug)]
pub(super) struct Segment {
    graph: Graph,
    words: LaunchWords,
}

impl Segment {
    /// Launches the graph in a stream.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.graph.launch(stream)
    }

    pub(super) fn words(&self) -> &LaunchWords {
        &self.words
    }
}

/// The state of a sequence of launches.
#[derive(Debug)]
enum Known {
    /// It occurred once.
    Seen,
    /// It is captured and can be launched.
    Captured(Segment),
    /// It is running; a graph cannot run twice at a time.
    Running,
}

/// The segments of a device.
#[derive(Debug)]
pub(super) struct Segments {
    launches_max: usize,
    words: Arc<HostWords>,
    /// Indices of launches whose words no segment uses: the first of each group.
    free: Vec<usize>,
    known: HashMap<Key, (Known, u64)>,
    /// Counts lookups, as a clock for the least recently used.
    looks: u64,
}

impl Segments {
    /// Segments of at most `launches_max` launches; with 1, each launch is submitted separately.
    pub(super) fn new(context: &Arc<Context>, launches_max: u32) -> Result<Segments, CudaError> {
        let launches_max = launches_max.max(1) as usize;
        let places = if launches_max > 1 { KNOWN_MAX } else { 0 };
        let words = Arc::new(HostWords::new(context, places * launches_max * WORDS)?);
        let free = (0..places).map(|place| place * launches_max).collect();
        Ok(Segments { launches_max, words, free, known: HashMap::new(), looks: 0 })
    }

    pub(super) fn launches_max(&self) -> usize {
        self.launches_max
    }

    /// The segment for a sequence of launches. `None` if they are submitted separately: the
    /// sequence is new, its graph is running, or no words are free. A sequence that occurs
    /// again is captured with `capture`. The segment is in use until [`Segments::ended`].
    pub(super) fn take(
        &mut self,
        key: &Key,
        capture: impl FnOnce(&LaunchWords) -> Result<Graph, CudaError>,
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
                let words = LaunchWords::new(&self.words, first);
                match capture(&words) {
                    Ok(graph) => Ok(Some(Segment { graph, words })),
                    Err(error) => {
                        self.known.remove(key);
                        self.free.push(first);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Takes back a segment that has ended or was not launched.
    pub(super) fn ended(&mut self, key: &Key, segment: Segment) {
        match self.known.get_mut(key) {
            Some((known @ Known::Running, _)) => *known = Known::Captured(segment),
            _ => self.free.push(segment.words.first()),
        }
    }

    /// Forgets all sequences, because kernels may be unloaded.
    pub(super) fn forget(&mut self) {
        for (_, (known, _)) in self.known.drain() {
            if let Known::Captured(segment) = known {
                self.free.push(segment.words.first());
            }
        }
    }

    /// Disables segments: from now on each launch is submitted separately.
    pub(super) fn disable(&mut self) {
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
            self.free.push(segment.words.first());
        }
    }
}
