//! Load generators: an open loop that follows its schedule regardless of answers, and a closed loop
//! with a fixed number of outstanding requests.

use crate::invoker;
use crate::random::Random;
use crate::tensors::InputSpecs;
use anyhow::Result;
use atoll_engine::{Class, EngineHandle, InvokeError, LaneId};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::Tensor;
use atoll_server::tensor_metadata;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for the answers to the last requests.
pub(crate) const TAIL: Duration = Duration::from_secs(60);

/// Pause of a closed loop after a refused request.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// A loaded model with inputs.
#[derive(Clone)]
pub struct Workload {
    handle: EngineHandle,
    function: String,
    class: Class,
    inputs: Vec<Tensor>,
}

impl Workload {
    /// Loads a bundle and generates random inputs.
    pub fn load(
        handle: &EngineHandle,
        function: &str,
        bundle: &Arc<Bundle>,
        class: Class,
        seed: u64,
    ) -> Result<Workload> {
        Workload::load_into(handle, function, bundle, class, seed, LaneId::DEFAULT)
    }

    /// Like [`Workload::load`], into a lane.
    pub(crate) fn load_into(
        handle: &EngineHandle,
        function: &str,
        bundle: &Arc<Bundle>,
        class: Class,
        seed: u64,
        lane: LaneId,
    ) -> Result<Workload> {
        invoker::load_into(handle, bundle, function, class, lane)?;
        let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
        let inputs = InputSpecs::default().tensors(&metadata, &mut Random::new(seed))?;
        Ok(Workload { handle: handle.clone(), function: function.into(), class, inputs })
    }

    /// Sends one request and waits for the answer; afterwards everything is warm.
    pub fn ask(&self) -> Result<Duration> {
        let start = Instant::now();
        invoker::invoke(&self.handle, invoker::request(&self.function, &self.inputs, Some(self.class)))?;
        Ok(start.elapsed())
    }

    /// Sends a request, and reports its result and the time of its answer to `answers`.
    pub fn submit<T: Send + 'static>(&self, tag: T, answers: &mpsc::Sender<(T, Instant, Result<(), InvokeError>)>) {
        let (request, answers) = (invoker::request(&self.function, &self.inputs, Some(self.class)), answers.clone());
        let reply = move |result: Result<_, InvokeError>| {
            // The receiver is gone when the measurement has ended.
            let _ = answers.send((tag, Instant::now(), result.map(drop)));
        };
        self.handle.submit(request, Box::new(reply));
    }

    /// Sends a request at every arrival, whether or not earlier ones were answered. Latency counts
    /// from the scheduled arrival, so that delays of the generator are included.
    pub fn open_loop(&self, arrivals: &[Duration]) -> OpenLoop {
        let (answers, answered) = mpsc::channel();
        let begin = Instant::now();
        for &arrival in arrivals {
            let due = begin + arrival;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.submit(due, &answers);
        }
        drop(answers);
        let mut found = OpenLoop::default();
        let end = Instant::now() + TAIL;
        while let Ok((due, at, result)) = answered.recv_timeout(end.saturating_duration_since(Instant::now())) {
            match result {
                Ok(()) => found.latencies.push(at.saturating_duration_since(due)),
                Err(InvokeError::QueueFull { .. }) => found.dropped += 1,
                Err(_) => found.failed += 1,
            }
        }
        found.failed += arrivals.len() - found.latencies.len() - found.dropped - found.failed;
        found
    }

    /// Like [`Workload::open_loop`] for requests that do not overlap, with the caches swept between
    /// them, as other work would do.
    pub(crate) fn open_loop_swept(&self, arrivals: &[Duration], working_set: &mut WorkingSet) -> OpenLoop {
        let (answers, answered) = mpsc::channel();
        let begin = Instant::now();
        let mut found = OpenLoop::default();
        for (at, &arrival) in arrivals.iter().enumerate() {
            let due = begin + arrival;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.submit((), &answers);
            match answered.recv_timeout(TAIL) {
                Ok(((), at, Ok(()))) => found.latencies.push(at.saturating_duration_since(due)),
                Ok((_, _, Err(InvokeError::QueueFull { .. }))) => found.dropped += 1,
                _ => found.failed += 1,
            }
            let next = arrivals.get(at + 1).map_or(begin, |next| begin + *next);
            working_set.sweep(next.saturating_duration_since(Instant::now()));
        }
        found
    }

    /// Keeps `concurrency` requests in flight until it is stopped, or until a request fails with an
    /// error other than a full queue.
    pub fn closed_loop(&self, concurrency: usize) -> ClosedLoop {
        let stop = Arc::new(AtomicBool::new(false));
        let (workload, stopping, begin) = (self.clone(), stop.clone(), Instant::now());
        let thread = std::thread::spawn(move || workload.keep_busy(concurrency, &stopping));
        ClosedLoop { stop, thread, begin }
    }

    fn keep_busy(&self, concurrency: usize, stop: &AtomicBool) -> Vec<Answer> {
        let (answers, answered) = mpsc::channel();
        (0..concurrency).for_each(|_| self.submit(Instant::now(), &answers));
        let mut found = Vec::new();
        for _ in 0.. {
            let Ok((submitted, at, result)) = answered.recv() else { break };
            match result {
                Ok(()) => found.push(Answer { at, latency: at - submitted }),
                Err(InvokeError::QueueFull { .. }) => std::thread::sleep(REFUSED_PAUSE),
                // Other failures would occur again.
                Err(_) => break,
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.submit(Instant::now(), &answers);
        }
        found
    }
}

/// Memory that stands for the working set of other work.
pub(crate) struct WorkingSet {
    /// One part per thread.
    parts: Vec<Vec<u8>>,
    /// Duration of the last sweep.
    took: Duration,
}

impl WorkingSet {
    /// A working set of `bytes` bytes in total, swept by `threads` threads.
    pub(crate) fn new(bytes: usize, threads: usize) -> WorkingSet {
        WorkingSet { parts: vec![vec![1; bytes / threads.max(1)]; threads.max(1)], took: Duration::ZERO }
    }

    /// Touches all of it, with one thread per part, if there is enough time.
    fn sweep(&mut self, time: Duration) {
        const LINE_BYTES: usize = 64;
        if time < self.took * 2 {
            return;
        }
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in &mut self.parts {
                scope.spawn(|| part.iter_mut().step_by(LINE_BYTES).for_each(|byte| *std::hint::black_box(byte) ^= 1));
            }
        });
        self.took = start.elapsed();
    }
}

/// Results of an open loop.
#[derive(Debug, Default)]
pub struct OpenLoop {
    /// Latencies of answered requests.
    pub latencies: Vec<Duration>,
    /// Requests refused because the queue was full.
    pub dropped: usize,
    /// Requests that failed otherwise, or were never answered.
    pub failed: usize,
}

/// A running closed loop.
pub struct ClosedLoop {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Answer>>,
    begin: Instant,
}

/// An answer in a closed loop.
struct Answer {
    at: Instant,
    latency: Duration,
}

impl ClosedLoop {
    /// Stops the loop. Returns the latencies of all answers so far, and the answers per second.
    pub fn stop(self) -> (Vec<Duration>, f64) {
        let end = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.thread.join().unwrap_or_default();
        let latencies: Vec<_> =
            answers.into_iter().filter(|answer| answer.at <= end).map(|answer| answer.latency).collect();
        let per_second = latencies.len() as f64 / end.duration_since(self.begin).as_secs_f64();
        (latencies, per_second)
    }

    /// Stops several loops and waits for their outstanding requests. Returns the latencies of all
    /// answers, and the answers per second until the last one, so that all work of the device
    /// counts.
    pub fn finish_all(loops: Vec<ClosedLoop>) -> (Vec<Duration>, f64) {
        loops.iter().for_each(|one| one.stop.store(true, Ordering::Relaxed));
        let begin = loops.iter().map(|one| one.begin).min();
        let answers: Vec<Answer> = loops.into_iter().flat_map(|one| one.thread.join().unwrap_or_default()).collect();
        let end = answers.iter().map(|answer| answer.at).max();
        let busy = begin.zip(end).map(|(begin, end)| end.duration_since(begin).as_secs_f64());
        let per_second = busy.map_or(0.0, |busy_s| answers.len() as f64 / busy_s);
        (answers.into_iter().map(|answer| answer.latency).collect(), per_second)
    }
}

/// Arrival times of requests.
pub(crate) fn arrivals(rate: f64, duration: Duration, poisson: bool, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut gap = || if poisson { random.exponential() / rate } else { 1.0 / rate };
    let mut at = gap();
    let mut arrivals = Vec::new();
    while at < duration.as_secs_f64() {
        arrivals.push(Duration::from_secs_f64(at));
        at += gap();
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate() {
        let periodic = arrivals(4.0, Duration::from_secs(10), false, 0);
        assert_eq!((periodic.len(), periodic[0]), (39, Duration::from_millis(250)));
        let poisson = arrivals(100.0, Duration::from_secs(100), true, 7);
        assert!((9_500..10_500).contains(&poisson.len()) && poisson.is_sorted());
        assert_eq!(
            poisson,
            arrivals(100.0, Duration::from_secs(100), true, 7),
            "the same seed gives the same arrivals"
        );
    }
}
