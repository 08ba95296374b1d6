//! How long a cancelled invocation stays on a host device, and how soon the next one runs. The
//! kernel never ends by itself.
//!
//! ```text
//! cargo run --release -p atoll-engine --example cancel_latency [rounds]
//! ```
//!
//! `answered` is the time from the cancellation to the answer, which is given when nothing of the
//! invocation is on the device and its memory can be reused. `next block` is the time from the
//! cancellation to the first block of an invocation that waited behind it, on the only compute
//! unit. Both contain [`atoll_core::limits::ABORT_GRACE_NS`], the time that a block gets to end by
//! itself.
#![cfg_attr(target_arch = "x86_64", expect(clippy::print_stdout, reason = "it prints a table"))]

#[cfg(not(target_arch = "x86_64"))]
fn main() {}

#[cfg(target_arch = "x86_64")]
#[path = "../tests/suite/toy/mod.rs"]
#[expect(dead_code, reason = "the toy belongs to the tests")]
mod toy;

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::main();
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use crate::toy;
    use atoll_device::{Device, DeviceError};
    use atoll_device_host::{HostConfig, HostDevice};
    use atoll_engine::{
        Class, Engine, EngineConfig, EngineHandle, FunctionKey, FunctionOptions, InvocationId, InvocationResult,
        InvokeError,
    };
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    type Answer = (Result<InvocationResult, InvokeError>, Instant);

    pub(crate) fn main() {
        let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(500);
        let (_engine, handle) = start().expect("an engine");
        let good: Vec<u32> = (0..64).map(|i| i | 1 << 31).collect();
        let mut endless = good.clone();
        endless[34] = toy::HANG;
        let (mut answered, mut next_block) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let (id, answer) = submit(&handle, &endless);
            let submitted = Instant::now();
            let (_, next) = submit(&handle, &good);
            // Long enough for the kernel to be running.
            std::thread::sleep(Duration::from_micros(2_000 + round * 37 % 500));
            let cancelled = Instant::now();
            handle.cancel(id);
            let (outcome, at) = answer.recv().expect("an answer");
            assert_eq!(outcome.err(), Some(InvokeError::Cancelled));
            answered.push(at - cancelled);
            let timing = next.recv().expect("an answer").0.expect("a result").timing;
            let started = submitted + Duration::from_nanos(timing.queue_ns + timing.input_ns);
            next_block.push(started.saturating_duration_since(cancelled));
        }
        println!("{rounds} rounds; ms, p50 / p99 / max");
        println!("answered    {}", percentiles(answered));
        println!("next block  {}", percentiles(next_block));
    }

    fn percentiles(mut times: Vec<Duration>) -> String {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
        format!("{:.2} / {:.2} / {:.2}", at(50), at(99), at(100))
    }

    fn start() -> Result<(Engine, EngineHandle), DeviceError> {
        let config = HostConfig {
            compute_units: 1,
            memory_bytes: 64 << 20,
            time_limit: Duration::from_secs(600),
            ..HostConfig::default()
        };
        let device = HostDevice::start(config)?;
        let target = device.info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
        let engine = Engine::start(Box::new(device), EngineConfig::default()).expect("an engine");
        let handle = engine.handle();
        let options = FunctionOptions {
            key: FunctionKey::local("f"),
            class: Class::BestEffort,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        handle.load(toy::bundle(&target, &toy::compile()), options).expect("a function");
        Ok((engine, handle))
    }

    fn submit(handle: &EngineHandle, input: &[u32]) -> (InvocationId, Receiver<Answer>) {
        let (send, answer) = channel();
        let reply = Box::new(move |result| send.send((result, Instant::now())).expect("the main thread waits"));
        (handle.submit(toy::request("f", Class::BestEffort, input), reply), answer)
    }
}
