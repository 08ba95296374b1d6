//! Prints how many placement decisions a second each policy makes on a pool under full load, by CPU
//! time: `cargo run --release -p atoll-sim --example placement_decisions -- 1000 200 cost,balance`.
//! All arguments may be left out: devices, functions, policies, placements per round.
//!
//! `atoll bench cluster --decisions` measures the same pool by the clock, and the parts of a
//! placement. This program depends on little, so it builds fast and suits a profiler.

use atoll_core::placement::PLACEMENTS;
use atoll_sim::cluster::{FullLoad, FullLoadSetup};
use std::io::Write;
use std::time::{Duration, Instant};

/// The median of this many rounds is printed.
const ROUNDS: usize = 7;
/// Placements per round.
const PLACEMENTS_PER_ROUND: u64 = 100_000;

/// The CPU time of this thread. Where the kernel does not report it, the time since `begun`.
fn cpu_time(begun: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let on_cpu_ns = stat.and_then(|stat| stat.split_ascii_whitespace().next()?.parse().ok());
    on_cpu_ns.map_or_else(|| begun.elapsed(), Duration::from_nanos)
}

/// Nanoseconds of CPU time per dispatch in one round.
fn round(load: &mut FullLoad, placements: u64, begun: Instant) -> f64 {
    let (dispatches, before) = (load.dispatches(), cpu_time(begun));
    (0..placements).for_each(|_| load.place(|_| ()));
    let time = cpu_time(begun).saturating_sub(before);
    time.as_nanos() as f64 / (load.dispatches() - dispatches).max(1) as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let devices: u16 = argument(0).unwrap_or("1000").parse()?;
    let functions: u32 = argument(1).unwrap_or("200").parse()?;
    let named = |name: &str| argument(2).is_none_or(|names| names.split(',').any(|wanted| wanted == name));
    let placements = argument(3).map_or(Ok(PLACEMENTS_PER_ROUND), str::parse)?;
    let (begun, mut out) = (Instant::now(), std::io::stdout().lock());
    writeln!(out, "{devices} devices, {functions} functions, median of {ROUNDS} rounds of {placements} placements")?;
    for policy in PLACEMENTS.iter().filter(|policy| named(policy.name)) {
        let mut load = FullLoad::new(&FullLoadSetup { policy, devices, functions, seed: 1 });
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(&mut load, placements, begun)).collect();
        rounds.sort_by(f64::total_cmp);
        let ns = rounds[ROUNDS / 2];
        let (least, name) = (rounds[0], policy.name);
        writeln!(out, "{name:<12} {ns:>7.0} ns (least {least:.0}), {:.3} million decisions/s", 1e3 / ns)?;
    }
    Ok(())
}
