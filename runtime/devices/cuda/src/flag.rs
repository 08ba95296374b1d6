//! Where kernels read the epoch: measured on each device, since GPUs differ.
//!
//! A word in mapped host memory is raised by one store, but every block that reads it waits for the
//! bus. A word in device memory is raised through a stream and costs almost nothing to read. The
//! best route is the cheapest to read among those that are raised in time.

use atoll_cuda::{
    Arg, BarWords, Context, DeviceMemory, FLAG_PTX, HostWords, Kernel, LoadError, Module, Stream, TransferError,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Rounds of a measurement; the median counts.
const ROUNDS: u32 = 32;

/// Reads per measurement, each after the other.
const READS: u32 = 500;

/// The longest delay of a raised epoch that is accepted for cheaper reads, in nanoseconds.
const VISIBLE_NS_MAX: u64 = 10_000;

/// Time limit for an answer, on a device that may be shared with other processes.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(200);

/// When the answering kernel gives up, in nanoseconds.
const ECHO_NS_MAX: u64 = 2_000_000_000;

/// The places where kernels may read epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagRoute {
    /// In host memory; raising is one store.
    Mapped,
    /// In device memory, written through a stream.
    StreamWrite,
    /// In device memory that the host reaches through the GPU's BAR; raising is one store. Requires
    /// GDRCopy.
    Bar,
}

/// The cost of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCost {
    /// Time from raising until the host sees a kernel's answer, in nanoseconds.
    pub visible_ns: u64,
    /// Time of one read by a thread that waits for it, in nanoseconds.
    pub read_ns: u64,
}

/// The routes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagRoutes {
    /// `None` if the route does not work.
    pub mapped: Option<RouteCost>,
    /// `None` if the route does not work.
    pub stream_write: Option<RouteCost>,
    /// `None` if the route does not work.
    pub bar: Option<RouteCost>,
    /// The route in use.
    pub chosen: FlagRoute,
}

impl FlagRoutes {
    /// The route with the cheapest read among those that are fast enough; of two that read the same
    /// memory, the faster one. If none is fast enough, the fastest.
    fn choose(mapped: Option<RouteCost>, stream_write: Option<RouteCost>, bar: Option<RouteCost>) -> FlagRoutes {
        let reads_of_device = stream_write.into_iter().chain(bar).map(|cost| cost.read_ns).min().unwrap_or(0);
        let rank = |read_ns, visible_ns| {
            if visible_ns <= VISIBLE_NS_MAX { (0, read_ns, visible_ns) } else { (1, visible_ns, 0) }
        };
        let of_device =
            |route, cost: Option<RouteCost>| cost.map(|cost| (rank(reads_of_device, cost.visible_ns), route));
        let mapped_rank = mapped.map(|cost| (rank(cost.read_ns, cost.visible_ns), FlagRoute::Mapped));
        let ranks = [mapped_rank, of_device(FlagRoute::Bar, bar), of_device(FlagRoute::StreamWrite, stream_write)];
        let chosen =
            ranks.into_iter().flatten().min_by_key(|(rank, _)| *rank).map_or(FlagRoute::Mapped, |(_, route)| route);
        FlagRoutes { mapped, stream_write, bar, chosen }
    }

    /// Measures all available routes on an idle device; takes a few milliseconds.
    pub(super) fn measure(
        context: &Arc<Context>,
        service: &Stream,
        bar: Option<&BarWords>,
    ) -> Result<FlagRoutes, MeasureError> {
        let bench = Bench::new(context)?;
        let mapped = bench.cost(bench.host.address(), |value| {
            bench.host.word(WORD).store(value, Release);
            Ok(())
        });
        let written = bench.cost(bench.memory.address(), |value| service.write_word(&bench.memory, 0, value));
        let through_bar = bar.map(|bar| {
            let cost = bench.cost(bar.address(), |value| {
                bar.store(WORD, value);
                Ok(())
            });
            bar.store(WORD, 0);
            cost
        });
        Ok(FlagRoutes::choose(mapped?, written?, through_bar.transpose()?.flatten()))
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeasureError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Driver(#[from] atoll_cuda::CudaError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Indices of host words: the flag, and the kernel's answer.
const WORD: usize = 0;
const ANSWER: usize = 1;

struct Bench {
    echo: Kernel,
    read_chain: Kernel,
    stream: Stream,
    host: HostWords,
    /// The flag, followed by the measured time of a read.
    memory: DeviceMemory,
}

impl Bench {
    fn new(context: &Arc<Context>) -> Result<Bench, MeasureError> {
        let module = Module::load(context, FLAG_PTX.as_bytes())?;
        let (echo, read_chain) = (module.kernel("echo")?, module.kernel("read_chain")?);
        let (stream, host, memory) =
            (Stream::new(context, 0)?, HostWords::new(context, 2)?, DeviceMemory::new(context, 16)?);
        stream.fill(&memory, 0, 0, 16)?;
        Ok(Bench { echo, read_chain, stream, host, memory })
    }

    /// The cost of a route that raises a word; `None` if the kernel does not see the raise in time.
    fn cost(
        &self,
        word: u64,
        raise: impl Fn(u32) -> Result<(), TransferError>,
    ) -> Result<Option<RouteCost>, MeasureError> {
        let read_ns = self.read_ns(word)?;
        let answer = self.host.address() + ANSWER as u64 * 4;
        self.host.word(ANSWER).store(0, Release);
        let args = [Arg::U64(word), Arg::U64(answer), Arg::U32(1), Arg::U32(ROUNDS), Arg::U64(ECHO_NS_MAX)];
        self.echo.launch(&self.stream, 1, 1, &args)?;
        let mut visible_ns: Vec<u64> = (1..=ROUNDS).map_while(|round| self.round(round, &raise)).collect();
        // If a round was missed, its kernel still waits and then gives up by itself.
        self.stream.synchronize()?;
        visible_ns.sort_unstable();
        let all = visible_ns.len() == ROUNDS as usize;
        Ok(all.then(|| RouteCost { visible_ns: visible_ns[visible_ns.len() / 2], read_ns }))
    }

    fn round(&self, round: u32, raise: &impl Fn(u32) -> Result<(), TransferError>) -> Option<u64> {
        let begun = Instant::now();
        raise(round).ok()?;
        while self.host.word(ANSWER).load(Acquire) != round {
            if begun.elapsed() > ANSWER_TIME_MAX {
                return None;
            }
            std::hint::spin_loop();
        }
        Some(begun.elapsed().as_nanos() as u64)
    }

    /// The time of reading a word that is 0.
    fn read_ns(&self, word: u64) -> Result<u64, MeasureError> {
        let sink = self.memory.address() + 8;
        self.read_chain.launch(&self.stream, 1, 1, &[Arg::U64(word), Arg::U64(sink), Arg::U32(READS)])?;
        let mut took = [0; 8];
        self.stream.read(&self.memory, 8, &mut took)?;
        Ok(u64::from_le_bytes(took) / u64::from(READS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_read_in_time_is_chosen() {
        let cost = |visible_ns, read_ns| Some(RouteCost { visible_ns, read_ns });
        let chosen = |mapped, written| FlagRoutes::choose(mapped, written, None).chosen;
        assert_eq!(chosen(cost(2_000, 900), cost(7_000, 300)), FlagRoute::StreamWrite);
        assert_eq!(chosen(cost(2_000, 900), cost(30_000, 300)), FlagRoute::Mapped, "too late");
        assert_eq!(chosen(cost(50_000, 900), cost(30_000, 1_000)), FlagRoute::StreamWrite, "both are late");
        assert_eq!(chosen(cost(2_000, 900), None), FlagRoute::Mapped);
        assert_eq!(chosen(None, cost(90_000, 9_000)), FlagRoute::StreamWrite);
        assert_eq!(chosen(None, None), FlagRoute::Mapped);
        let three = |mapped, written, bar| FlagRoutes::choose(mapped, written, bar).chosen;
        assert_eq!(
            three(cost(2_000, 900), cost(7_000, 300), cost(1_500, 310)),
            FlagRoute::Bar,
            "the same memory, and faster"
        );
        assert_eq!(three(cost(2_000, 200), cost(7_000, 300), cost(1_500, 310)), FlagRoute::Mapped);
        assert_eq!(three(cost(2_000, 900), cost(7_000, 300), cost(30_000, 300)), FlagRoute::StreamWrite);
    }
}
