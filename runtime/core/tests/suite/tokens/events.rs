//! Event lists of the three rules on the same loads: `tests/suite/tokens/*.load` has the loads,
//! `*.RULE` the actions of each rule. `ATOLL_RECORD=1` writes the lists anew.

use super::device::{Device, Work};
use atoll_core::tokens::{RULES, Rule, ShareRequest, ShareSpec, TokenConfig};
use atoll_core::{Class, ClientId};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const MS: u64 = 1_000_000;

/// A load: the window, the clients, and for each piece of work its time and device time. Times are
/// in milliseconds.
struct LoadFile {
    window: u64,
    until: u64,
    shares: BTreeMap<ClientId, ShareSpec>,
    arrivals: Vec<(u64, ClientId, Work)>,
}

fn parse(text: &str) -> LoadFile {
    let mut load = LoadFile { window: 0, until: 0, shares: BTreeMap::new(), arrivals: Vec::new() };
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<f64>().unwrap_or_else(|_| panic!("`{line}`: no number at {at}"));
        let ns = |at: usize| (number(at) * MS as f64) as u64;
        let client = |word: &str| ClientId(word[1..].parse().unwrap_or_else(|_| panic!("`{line}`: no client")));
        match words[0] {
            "window" => load.window = ns(1),
            "until" => load.until = ns(1),
            "share" => {
                let (sm_partition, quota_request, quota_limit, group) = (number(2), number(3), number(4), 0);
                let share = ShareRequest { sm_partition, quota_request, quota_limit, group };
                load.shares.insert(client(words[1]), ShareSpec::new(&share).expect("a valid share"));
            }
            "at" => {
                let class = if words.contains(&"real-time") { Class::RealTime } else { Class::BestEffort };
                let work = Work { class, left: ns(3), launch: ns(4), block: ns(5) };
                load.arrivals.push((ns(1), client(words[2]), work));
            }
            other => panic!("`{other}` in `{line}`"),
        }
    }
    load
}

/// The actions of a rule: a line for each token that is given, expires or frees its compute units,
/// and the use in each window.
fn run(load: &LoadFile, rule: &'static Rule) -> String {
    let config = TokenConfig::for_device(0).with_window(load.window, MS).expect("a window").with_rule(rule);
    let mut device = Device::new(config);
    for (client, share) in &load.shares {
        assert!(device.set(*client, *share));
    }
    let (mut text, mut arrivals) = (String::new(), load.arrivals.iter().peekable());
    let mut before: BTreeMap<ClientId, (Option<u64>, bool)> = BTreeMap::new();
    let mut most = 0;
    loop {
        let next = device.next().into_iter().chain(arrivals.peek().map(|(at, ..)| *at)).min();
        let Some(now) = next.filter(|now| *now <= load.until) else { break };
        while let Some((_, client, work)) = arrivals.next_if(|(at, ..)| *at <= now) {
            device.workers.get_mut(client).expect("a client").work = Some(*work);
        }
        device.advance(now);
        most = most.max(device.running());
        for client in load.shares.keys() {
            let state = device.state(*client);
            let after = (state.token_until.map(|until| until.0), state.is_draining);
            let was = before.insert(*client, after).unwrap_or_default();
            let ms = |ns: u64| ns as f64 / MS as f64;
            let what = match (was, after) {
                (was, after) if was == after => continue,
                ((None, _), (Some(until), _)) => format!("has a token until {}", ms(until)),
                ((Some(_), _), (Some(until), _)) => format!("goes on until {}", ms(until)),
                (_, (None, true)) => "is told to exit".to_owned(),
                (_, (None, false)) => "has no token".to_owned(),
            };
            writeln!(text, "{:>8} F{} {what}", ms(now), client.0).expect("written");
        }
    }
    for window in 0..load.until / load.window {
        let used = device.workers.iter().map(|(client, worker)| {
            let ns = worker.used.get(&window).copied().unwrap_or(0);
            format!("F{} {}", client.0, ns as f64 / MS as f64)
        });
        writeln!(text, "window {window}: {}", used.collect::<Vec<_>>().join(", ")).expect("written");
    }
    writeln!(text, "most partitions at once: {} %", f64::from(most) / 1e4).expect("written");
    text
}

#[test]
fn the_rules_do_what_their_event_lists_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/tokens");
    for name in ["paper", "split", "real-time"] {
        let load = parse(&std::fs::read_to_string(folder.join(format!("{name}.load"))).expect("a load"));
        for rule in RULES {
            let path = folder.join(format!("{name}.{}", rule.name));
            let list = run(&load, rule);
            if std::env::var_os("ATOLL_RECORD").is_some() {
                std::fs::write(&path, &list).expect("written");
            }
            let recorded = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(list, recorded, "{} differs; ATOLL_RECORD=1 writes it anew", path.display());
        }
    }
}
