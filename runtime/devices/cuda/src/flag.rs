//! Where kernels look for the epoch: measured on the device, since no two kinds of them agree.
//!
//! A word in mapped host memory is raised by one store, and every block that reads it waits for the
//! bus; a word in device memory is raised through a stream, and reading it costs next to nothing.
//! So what is wanted is the cheapest read of those that are raised in time.

use atoll_cuda::{
    Arg, BarWords, Context, DeviceMemory, FLAG_PTX, HostWords, Kernel, LoadError, Module, Stream, TransferError,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Rounds whose median counts.
const ROUNDS: u32 = 32;

/// Reads, one after the other.
const READS: u32 = 500;

/// How late a raised epoch may be seen for the sake of cheap reads.
const VISIBLE_NS_MAX: u64 = 10_000;

/// How long an answer may take, on a device that is shared with others.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(200);

/// When the answering kernel gives up.
const ECHO_NS_MAX: u64 = 2_000_000_000;

/// Where kernels look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagRoute {
    /// In host memory, where raising is one store.
    Mapped,
    /// In device memory, which a stream writes.
    StreamWrite,
    /// In device memory that the host sees through the GPU's BAR, where raising is one store. For
    /// machines with GDRCopy.
    Bar,
}

/// What a route costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCost {
    /// From the raise until the host sees a kernel's answer to it.
    pub visible_ns: u64,
    /// One read by a thread that waits for it.
    pub read_ns: u64,
}

/// The routes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagRoutes {
    /// `None` where the route does not work.
    pub mapped: Option<RouteCost>,
    /// The same.
    pub stream_write: Option<RouteCost>,
    /// The same.
    pub bar: Option<RouteCost>,
    /// The one that is used.
    pub chosen: FlagRoute,
}

impl FlagRoutes {
    /// The cheapest read among the routes that are fast enough, the faster one of two that read the
    /// same memory; where none is fast enough, the fastest.
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

    /// Measures all that are there on an idle device; some milliseconds.
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

/// Words of host memory: the flag, and the kernel's answer.
const WORD: usize = 0;
const ANSWER: usize = 1;

struct Bench {
    echo: Kernel,
    read_chain: Kernel,
    stream: Stream,
    host: HostWords,
    /// The flag, and behind it what reading took.
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

    /// The cost of a route that raises a word; `None` where it does not get there.
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
        // Where a round was missed the kernel waits still, and ends by itself.
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

    /// A read of a word that is 0.
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
    fn the_cheapest_read_that_is_in_time_is_chosen() {
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
            "the same memory, and sooner"
        );
        assert_eq!(three(cost(2_000, 200), cost(7_000, 300), cost(1_500, 310)), FlagRoute::Mapped);
        assert_eq!(three(cost(2_000, 900), cost(7_000, 300), cost(30_000, 300)), FlagRoute::StreamWrite);
    }
}
