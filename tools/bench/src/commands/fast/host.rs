//! Figures 9 and 13, measured on this machine.

use super::Args;
use super::figures::{MIB, of_isolation};
use super::pods::{RESNET, RNNT, Shape};
use crate::commands::shares::{OUTSTANDING, Work, client, open, rate, spinning};
use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::figures::Cells;
use anyhow::{Context, Result, anyhow};
use atoll_core::POLICY_DEFAULT;
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_engine::{Engine, EngineHandle, ShareRequest, ShareSpec};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Compute units of the device: a partition of half of it is one unit.
const UNITS: u32 = 2;

/// Time of a block of the two pods, in microseconds.
const BLOCK_US: u32 = 500;

/// Time before a measurement.
const WARM_UP: Duration = Duration::from_millis(500);

/// Requests that the functions queue.
const QUEUE: usize = 16;

/// The pods of Fig. 9 with their quotas: request and limit. Both run the same kernels here.
const PODS: [(Shape, f64, f64); 2] = [(RESNET, 0.5, 0.8), (RNNT, 0.5, 0.5)];

/// The model of Fig. 13.
const MODEL: &str = "squeezenet";

fn engine() -> Result<Engine> {
    bench_engine(DeviceName::Host, UNITS, POLICY_DEFAULT, DEVICE_QUEUE_CAPACITY_DEFAULT)
}

/// Figure 9 on two cores: pods that share both of them in time, and pods with one of them each.
pub(super) fn isolation(args: &Args) -> Result<Vec<Cells>> {
    let engine = engine()?;
    let handle = engine.handle();
    let rows = pods_beside(args, &handle);
    engine.shutdown();
    rows
}

fn pods_beside(args: &Args, handle: &EngineHandle) -> Result<Vec<Cells>> {
    let bundle = spinning(handle, BLOCK_US)?;
    let work = Work::of_bundle(handle, &bundle, &["pod"], QUEUE, args.seed)?;
    let mut rows = Vec::new();
    for (sharing, sm_partition) in [("time", 100.0), ("space", 50.0)] {
        for (shape, quota_request, quota_limit) in PODS {
            let share = ShareRequest { sm_partition, quota_request, quota_limit, group: 0 };
            let share = ShareSpec::new(&share).map_err(|error| anyhow!("{error}"))?;
            handle.place_share(client(shape.name), share)?;
        }
        let beside = throughput(handle, &PODS.map(|(shape, ..)| work.of(shape.name)), args.seconds)?;
        for ((shape, ..), beside) in PODS.into_iter().zip(beside) {
            let alone = throughput(handle, &[work.of(shape.name)], args.seconds)?[0];
            rows.push(vec![
                ("sharing", sharing.into()),
                ("model", shape.name.into()),
                ("alone_per_s", alone.into()),
                ("beside_per_s", beside.into()),
                ("beside_over_alone", (beside / alone.max(f64::MIN_POSITIVE)).into()),
                ("paper", of_isolation(sharing, shape).into()),
            ]);
        }
    }
    Ok(rows)
}

/// Answers per second to clients that are busy at the same time.
fn throughput(handle: &EngineHandle, works: &[Work], seconds: u64) -> Result<Vec<f64>> {
    let (stop, period) = (AtomicBool::new(false), Duration::from_secs(seconds));
    let (from, ended) = std::thread::scope(|scope| {
        let stop = &stop;
        let start = |work: &Work| {
            let work = work.clone();
            scope.spawn(move || work.keep_busy(handle, OUTSTANDING, stop))
        };
        let clients: Vec<_> = works.iter().map(start).collect();
        std::thread::sleep(WARM_UP);
        let from = Instant::now();
        std::thread::sleep(period);
        stop.store(true, Ordering::Relaxed);
        let ended = clients.into_iter().map(|client| client.join().map_err(|_| anyhow!("a client panicked"))?);
        (from, ended.collect::<Result<Vec<Vec<Instant>>>>())
    });
    let ended = ended?;
    let per_s = ended.iter().map(|ended| rate(from, period, ended).context("too few answers; use more --seconds"));
    per_s.collect()
}

/// Figure 13 here: memory of one and three instances of a model, and how long a function takes to
/// its first answer, with constants that the device does not have yet (the paper's STORE) and that
/// it has (GET).
pub(super) fn memory(args: &Args) -> Result<Vec<Cells>> {
    let bundle = open(MODEL)?;
    let engine = engine()?;
    let handle = engine.handle();
    let start = |name: &str| -> Result<(Work, f64)> {
        let began = Instant::now();
        let work = Work::of_bundle(&handle, &bundle, &[name], QUEUE, args.seed)?;
        work.ask(&handle)?;
        Ok((work, began.elapsed().as_secs_f64() * 1e3))
    };
    let (work, store_ms) = start("first")?;
    let one = handle.statistics().device;
    let began = Instant::now();
    work.ask(&handle)?;
    let request_ms = began.elapsed().as_secs_f64() * 1e3;
    let names = ["instance-1", "instance-2", "instance-3"];
    for name in names {
        let share = ShareRequest { sm_partition: 100.0, quota_request: 0.3, quota_limit: 1.0, group: 0 };
        handle.place_share(client(name), ShareSpec::new(&share).map_err(|error| anyhow!("{error}"))?)?;
    }
    throughput(&handle, &names.map(|name| work.of(name)), 1)?;
    let three = handle.statistics().device;
    let (_, get_ms) = start("second")?;
    engine.shutdown();
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    Ok(vec![vec![
        ("model", MODEL.into()),
        ("constants_mib", mib(one.constant_bytes).into()),
        ("one_instance_mib", mib(one.memory_used_bytes_max).into()),
        ("three_instances_mib", mib(three.memory_used_bytes_max).into()),
        ("three_without_sharing_mib", (3.0 * mib(one.memory_used_bytes_max)).into()),
        ("store_ms", store_ms.into()),
        ("get_ms", get_ms.into()),
        ("request_ms", request_ms.into()),
        ("paper", "no times; 300 MiB more for the process with the constants".into()),
    ]])
}
