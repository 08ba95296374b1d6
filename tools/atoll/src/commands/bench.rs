//! `atoll bench`

use super::remote::Remote;
use crate::random::Random;
use crate::{local, output};
use anyhow::{Context, Result};
use atoll_engine::{Class, EngineConfig, EngineHandle, EngineStatistics, InputTensor, InvocationRequest};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Measure: every figure is a distribution or a ratio of one run
#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Latency(Latency),
    Overhead(Overhead),
}

impl Bench {
    pub(crate) fn run(self) -> Result<()> {
        match self.what {
            What::Latency(bench) => bench.run(),
            What::Overhead(bench) => bench.run(),
        }
    }
}

/// Real-time requests alone, then beside best-effort work in a closed loop
#[derive(clap::Args)]
#[command(after_help = "Examples:
  atoll bench latency --rt magika.kg --be resnet50.kg
  atoll bench latency --rt squeezenet.kg --be vgg19.kg --rate 20 --arrivals poisson --duration 30 --policy reset

Real-time requests arrive whether or not the last one is answered (open loop); a latency counts from when its request was due.")]
struct Latency {
    /// The real-time model: a bundle or ONNX file
    #[arg(long)]
    rt: PathBuf,
    /// The best-effort model
    #[arg(long)]
    be: PathBuf,
    /// Real-time requests a second
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
    /// How real-time requests arrive
    #[arg(long, default_value = "periodic")]
    arrivals: Arrivals,
    /// Seconds of each part
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    /// Clients of the best-effort model
    #[arg(long, default_value_t = 1)]
    be_clients: usize,
    /// Scheduling policy
    #[arg(long)]
    policy: Option<String>,
    /// Worker threads of the host device
    #[arg(long)]
    compute_units: Option<u32>,
    /// Seed of inputs and arrivals
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Arrivals {
    Periodic,
    Poisson,
}

/// What clients saw in one part of a run.
#[derive(Default)]
struct Seen {
    milliseconds: Vec<f64>,
    failed: usize,
}

impl Latency {
    fn run(self) -> Result<()> {
        let (rt, be) = (local::open(&self.rt)?, local::open(&self.be)?);
        let mut config = EngineConfig::default();
        if let Some(policy) = &self.policy {
            config.policy = policy.clone();
        }
        let policy = config.policy.clone();
        let engine = local::engine(self.compute_units, config)?;
        let handle = engine.handle();
        local::load(&handle, &rt, "rt", Class::RealTime)?;
        local::load(&handle, &be, "be", Class::BestEffort)?;
        let none = BTreeMap::new();
        let (rt_inputs, be_inputs) = (local::inputs(&rt, &none, self.seed)?, local::inputs(&be, &none, self.seed)?);
        // Once each, so that no part pays for first touches.
        local::invoke(&handle, "rt", rt_inputs.clone())?;
        local::invoke(&handle, "be", be_inputs.clone())?;
        let alone = self.open_loop(&handle, &rt_inputs);
        let be_alone = closed_loop_for(&handle, &be_inputs, self.duration / 2.0);
        let before = handle.statistics();
        let stop = AtomicBool::new(false);
        let (beside, be_beside) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.be_clients).map(|_| scope.spawn(|| closed_loop(&handle, &be_inputs, &stop))).collect();
            let beside = self.open_loop(&handle, &rt_inputs);
            stop.store(true, Ordering::Relaxed);
            let mut all = Seen::default();
            for client in clients {
                let seen = client.join().unwrap_or_default();
                all.milliseconds.extend(seen.milliseconds);
                all.failed += seen.failed;
            }
            (beside, all)
        });
        let after = handle.statistics();
        engine.shutdown();
        let parts = [
            ("real-time alone", alone),
            ("real-time beside best-effort", beside),
            ("best-effort alone", be_alone),
            ("best-effort beside real-time", be_beside),
        ];
        if self.json { print_json(&policy, &parts, &before, &after) } else { print(&policy, &parts, &before, &after) }
    }

    /// Sends requests when they are due, never waiting for answers.
    fn open_loop(&self, handle: &EngineHandle, inputs: &[InputTensor]) -> Seen {
        let (sender, answers) = mpsc::channel();
        let mut random = Random(self.seed);
        let begin = Instant::now();
        let mut due = Duration::ZERO;
        let mut sent = 0;
        while due.as_secs_f64() < self.duration {
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
            let request = InvocationRequest { function: "rt".into(), inputs: inputs.to_vec(), class: None, deadline: None };
            let sender = sender.clone();
            handle.submit(request, Box::new(move |answer| drop(sender.send(answer.is_ok().then(|| begin.elapsed() - due)))));
            sent += 1;
            let gap = match self.arrivals {
                Arrivals::Periodic => 1.0,
                Arrivals::Poisson => random.exponential(),
            };
            due += Duration::from_secs_f64(gap / self.rate);
        }
        let latencies: Vec<Option<Duration>> = answers.iter().take(sent).collect();
        let failed = latencies.iter().filter(|l| l.is_none()).count();
        Seen { milliseconds: latencies.into_iter().flatten().map(|l| l.as_secs_f64() * 1e3).collect(), failed }
    }
}

/// One request after another until told to stop.
fn closed_loop(handle: &EngineHandle, inputs: &[InputTensor], stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        match local::invoke(handle, "be", inputs.to_vec()) {
            Ok(_) => seen.milliseconds.push(start.elapsed().as_secs_f64() * 1e3),
            Err(_) => seen.failed += 1,
        }
    }
    seen
}

fn closed_loop_for(handle: &EngineHandle, inputs: &[InputTensor], seconds: f64) -> Seen {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| closed_loop(handle, inputs, &stop));
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap_or_default()
    })
}

/// The percentiles that are shown, in milliseconds: mean, p50, p90, p99, max.
fn summary(milliseconds: &[f64]) -> Option<[f64; 5]> {
    let mut sorted = milliseconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = *sorted.last()?;
    let at = |p: f64| sorted[((sorted.len() - 1) as f64 * p).round() as usize];
    Some([sorted.iter().sum::<f64>() / sorted.len() as f64, at(0.5), at(0.9), at(0.99), last])
}

fn row(name: &str, seen: &Seen) -> Vec<String> {
    let mut row = vec![name.to_string(), seen.milliseconds.len().to_string(), seen.failed.to_string()];
    row.extend(summary(&seen.milliseconds).map_or_else(|| vec!["-".into(); 5], |s| s.iter().map(|v| format!("{v:.2}")).collect()));
    row
}

fn print(policy: &str, parts: &[(&str, Seen)], before: &EngineStatistics, after: &EngineStatistics) -> Result<()> {
    output::line(format!("policy {policy}; latency in milliseconds\n"));
    let rows: Vec<_> = parts.iter().map(|(name, seen)| row(name, seen)).collect();
    output::table(&["", "count", "failed", "mean", "p50", "p90", "p99", "max"], &rows);
    output::line(format!("\npreemptions        {}", after.preemptions - before.preemptions));
    output::line(format!("evicted launches   {}", after.evicted_launches - before.evicted_launches));
    let latency = &after.preemption_latency;
    if latency.count() > 0 {
        let microseconds = |q| latency.quantile_ns(q) as f64 / 1e3;
        let (p50, p99) = (microseconds(0.5), microseconds(0.99));
        output::line(format!("preemption latency p50 {p50:.0} µs, p99 {p99:.0} µs (request submitted to its first block)"));
    }
    Ok(())
}

fn print_json(policy: &str, parts: &[(&str, Seen)], before: &EngineStatistics, after: &EngineStatistics) -> Result<()> {
    let part = |(name, seen): &(&str, Seen)| {
        let [mean, p50, p90, p99, max] = summary(&seen.milliseconds).unwrap_or_default();
        json!({"part": name, "count": seen.milliseconds.len(), "failed": seen.failed, "mean_ms": mean, "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": max})
    };
    output::json(&json!({
        "policy": policy,
        "parts": parts.iter().map(part).collect::<Vec<Value>>(),
        "preemptions": after.preemptions - before.preemptions,
        "evicted_launches": after.evicted_launches - before.evicted_launches,
        "preemption_latency_ns": {"p50": after.preemption_latency.quantile_ns(0.5), "p99": after.preemption_latency.quantile_ns(0.99)},
    }))
}

/// The round trip of a small request to a daemon
#[derive(clap::Args)]
#[command(after_help = "Example:\n  atoll bench overhead --model null --url 127.0.0.1:8000 --count 2000")]
struct Overhead {
    /// A served model, best one that computes next to nothing
    #[arg(long)]
    model: String,
    /// The daemon's HTTP address
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    url: String,
    /// How many requests, one after another
    #[arg(long, default_value_t = 1000)]
    count: usize,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Overhead {
    fn run(self) -> Result<()> {
        let remote = Remote::new(&self.url);
        let inputs = remote.inputs(&self.model, &BTreeMap::new(), 0)?;
        let mut milliseconds = Vec::new();
        for _ in 0..self.count {
            let start = Instant::now();
            remote.infer(&self.model, &inputs)?;
            milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let [mean, p50, p90, p99, max] = summary(&milliseconds).context("no request was sent")?.map(|ms| ms * 1e3);
        if self.json {
            return output::json(&json!({"count": self.count, "mean_us": mean, "p50_us": p50, "p90_us": p90, "p99_us": p99, "max_us": max}));
        }
        output::table(
            &["round trip, µs", "mean", "p50", "p90", "p99", "max"],
            &[[vec![self.model], [mean, p50, p90, p99, max].iter().map(|v| format!("{v:.0}")).collect()].concat()],
        );
        Ok(())
    }
}
