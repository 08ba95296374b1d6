//! Plots of runs: latency distributions, and timelines of the compute units around a preemption.

use super::watch::Seen;
use crate::drawing::{Axis, AxisScale, Gantt, Line, Ran, plot};
use crate::failure::OrUserError;
use anyhow::{Context, Result};
use atoll_core::{Class, Nanos};
use atoll_sim::{Occupied, Report};
use atoll_trace::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Maximum number of points of a line.
const POINTS: usize = 400;

/// Default window around the first preemption, in nanoseconds before and after it.
pub(super) const AROUND_NS: (u64, u64) = (1_000_000, 4_000_000);

/// Destination of the plots.
#[derive(Clone, Debug)]
pub(super) enum Pictures {
    /// One plot with all latencies.
    File(PathBuf),
    /// A plot of each client's latencies, and a timeline of each run.
    Folder(PathBuf),
}

impl Pictures {
    pub(super) fn new(path: &Path) -> Result<Pictures> {
        if path.extension().is_some_and(|extension| extension == "svg") {
            return Ok(Pictures::File(path.to_owned()));
        }
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot create folder {}", path.display()))
            .or_user_error()?;
        Ok(Pictures::Folder(path.to_owned()))
    }

    /// Whether timelines are drawn.
    pub(super) fn has_timelines(&self) -> bool {
        matches!(self, Pictures::Folder(_))
    }

    /// Draws the latencies of all runs.
    pub(super) fn latencies(&self, reports: &[Report]) -> Result<()> {
        match self {
            Pictures::File(path) => {
                let name = |report: &Report, id: &str| Some(format!("{id}, {}", report.policy));
                write(path, &latencies("Latency of calls from their scheduled arrival", &lines(reports, name)))
            }
            Pictures::Folder(folder) => {
                for (variant, client) in clients(reports) {
                    let own = lines(reports, |report, id| {
                        (report.variant == variant && id == client).then(|| report.policy.clone())
                    });
                    let title = format!("Workload {variant}: latency of {client}'s calls from their scheduled arrival");
                    write(&folder.join(file_name(&[variant, client, "latency"])), &latencies(&title, &own))?;
                }
                Ok(())
            }
        }
    }

    /// Draws a timeline.
    pub(super) fn timeline(&self, report: &Report, gantt: Option<Gantt>) -> Result<()> {
        match (self, gantt) {
            (Pictures::Folder(folder), Some(gantt)) => {
                write(&folder.join(file_name(&[&report.variant, &report.policy, "timeline"])), &gantt.svg())
            }
            _ => Ok(()),
        }
    }
}

/// Parses a window: milliseconds since the start of a run. Returns nanoseconds.
pub(super) fn window(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("`{text}` is not START..END in milliseconds");
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let ns = |text: &str| {
        text.parse::<f64>().ok().filter(|ms| (0.0..=86_400_000.0).contains(ms)).map(|ms| (ms * 1e6) as u64)
    };
    let (start, end) = (ns(start).ok_or_else(wrong)?, ns(end).ok_or_else(wrong)?);
    if start < end { Ok(start..end) } else { Err(format!("`{text}` ends before it starts")) }
}

/// The default window around a moment.
pub(super) fn around(ns: u64) -> Range<u64> {
    ns.saturating_sub(AROUND_NS.0)..ns.saturating_add(AROUND_NS.1)
}

/// Every client of every workload, in order.
fn clients(reports: &[Report]) -> Vec<(&str, &str)> {
    let mut clients = Vec::new();
    for report in reports {
        for client in &report.clients {
            let client = (report.variant.as_str(), client.id.as_str());
            if !clients.contains(&client) {
                clients.push(client);
            }
        }
    }
    clients
}

/// Latency distributions: one line per client and policy for which `name` returns a name.
fn lines(reports: &[Report], name: impl Fn(&Report, &str) -> Option<String>) -> Vec<Line> {
    let mut policies: Vec<&str> = Vec::new();
    let mut lines = Vec::new();
    for report in reports {
        if !policies.contains(&report.policy.as_str()) {
            policies.push(&report.policy);
        }
        let group = policies.iter().position(|policy| *policy == report.policy).unwrap_or(0);
        for client in report.clients.iter().filter(|client| !client.latencies_ns.is_empty()) {
            let Some(name) = name(report, &client.id) else { continue };
            lines.push(Line {
                name,
                group,
                dashed: client.class == Class::BestEffort,
                points: distribution(client.latencies_ns.clone()),
            });
        }
    }
    lines
}

/// The distribution of times as points: milliseconds, and the share of times up to that.
fn distribution(mut ns: Vec<u64>) -> Vec<(f64, f64)> {
    ns.sort_unstable();
    let count = ns.len();
    let points = count.min(POINTS);
    let rank = |point: usize| (point * count).div_ceil(points);
    (1..=points).map(rank).map(|rank| (ns[rank - 1].max(1) as f64 / 1e6, rank as f64 / count as f64)).collect()
}

fn latencies(title: &str, lines: &[Line]) -> String {
    let axes = [
        Axis { title: "milliseconds", scale: AxisScale::Fine },
        Axis { title: "share of calls that took at most this long", scale: AxisScale::Share },
    ];
    plot(title, axes, lines)
}

/// The timeline of a real device, from its records.
pub(super) fn of_records(seen: &Seen, report: &Report) -> Gantt {
    let Seen { timeline, begin_ns, window } = seen;
    let groups: Vec<String> = report.clients.iter().map(|client| client.id.clone()).collect();
    let ms = |at: Nanos| at.0.saturating_sub(*begin_ns) as f64 / 1e6;
    let mut gantt = empty(report, groups, window);
    let tracks = timeline.groups.iter().filter(|group| group.name == "compute units").flat_map(|group| &group.tracks);
    for (row, track) in tracks.enumerate() {
        gantt.rows.push(track.name.clone());
        for slice in &track.slices {
            let Some(group) = gantt.groups.iter().position(|client| **client == *slice.name) else { continue };
            let fact = |name: &str| slice.facts.iter().find(|fact| fact.0 == name).map(|fact| fact.1.clone());
            let (begin, end) = (ms(slice.begin), ms(slice.end));
            let was_stopped = matches!(fact("end"), Some(Value::Word("stopped" | "interrupted")));
            let blocks = if let Some(Value::Number(blocks)) = fact("blocks") { blocks } else { 0 };
            let label = format!("{}: {blocks} blocks, {:.1} µs", slice.name, (end - begin) * 1e3);
            gantt.boxes.push(Ran { row: row as f64, height: 1.0, begin, end, group, label, was_stopped });
        }
    }
    let decisions = timeline.track("scheduler", "decisions").map_or(&[][..], |track| &track.marks);
    gantt.marks = decisions
        .iter()
        .filter(|mark| mark.name == "preempt")
        .map(|mark| (ms(mark.at), "preempt".to_owned()))
        .collect();
    gantt
}

/// The timeline of a simulated device. The simulation does not assign blocks to compute units, so
/// they are drawn from the top down where there is room.
pub(super) fn of_simulation(occupied: &[Occupied], report: &Report, compute_units: u32, window: &Range<u64>) -> Gantt {
    let ms = |at: Nanos| at.0 as f64 / 1e6;
    let mut gantt = empty(report, report.clients.iter().map(|client| client.id.clone()).collect(), window);
    // Only every tenth row has a label.
    let name = |unit: u32| if unit.is_multiple_of(10) { format!("compute unit {unit}") } else { String::new() };
    gantt.rows = (0..compute_units).map(name).collect();
    for group in occupied {
        let padding = if group.is_padding { ", beside a real-time launch" } else { "" };
        let us = (ms(group.ended) - ms(group.began)) * 1e3;
        let label =
            format!("{}: {}, {} blocks, {us:.1} µs{padding}", gantt.groups[group.client], group.kernel, group.blocks);
        gantt.boxes.extend(group.units.iter().map(|units| Ran {
            row: units.start,
            height: units.end - units.start,
            begin: ms(group.began),
            end: ms(group.ended),
            group: group.client,
            label: label.clone(),
            was_stopped: group.was_stopped,
        }));
    }
    gantt
}

/// An empty timeline of a run.
pub(super) fn empty(report: &Report, groups: Vec<String>, window: &Range<u64>) -> Gantt {
    Gantt {
        title: format!("Workload {} under {} on {}: compute units", report.variant, report.policy, report.device),
        groups,
        window: (window.start as f64 / 1e6, window.end as f64 / 1e6),
        ..Gantt::default()
    }
}

/// A file name that is valid on every system.
fn file_name(parts: &[&str]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = parts.join("-").chars().map(plain).collect();
    format!("{name}.svg")
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display())).or_user_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::{Epoch, LaunchId, TaskId};
    use atoll_sim::{ClientReport, Distribution, PreemptionReport};
    use atoll_trace::{ChunkOutcome, EventKind, FunctionName, Raise, Record, Timeline};

    #[test]
    fn windows_are_milliseconds() {
        assert_eq!(window("1.5..20"), Ok(1_500_000..20_000_000));
        for wrong in ["", "1", "1..", "..2", "a..b", "-1..2", "2..2", "3..2", "1..inf"] {
            assert!(window(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn distributions_end_at_all_and_have_few_points() {
        let times: Vec<u64> = (1..=100_000).map(|us| us * 1000).collect();
        let points = distribution(times);
        assert_eq!((points.len(), points[POINTS / 2 - 1], points[POINTS - 1]), (POINTS, (50.0, 0.5), (100.0, 1.0)));
        assert_eq!(distribution(vec![3_000_000, 2_000_000]), [(2.0, 0.5), (3.0, 1.0)]);
    }

    fn report() -> Report {
        let client = |id: &str, class, latencies_ns: Vec<u64>| ClientReport {
            id: id.into(),
            class,
            scheduled: 2,
            served: 2,
            dropped: 0,
            latency_us: Distribution::of(latencies_ns.clone()),
            latencies_ns,
        };
        let clients = vec![
            client("fast", Class::RealTime, vec![3_000_000, 2_000_000]),
            client("slow", Class::BestEffort, vec![9_000_000]),
            client("never", Class::BestEffort, vec![]),
        ];
        Report {
            variant: "A".into(),
            policy: "reef".into(),
            device: "sim:x".into(),
            duration_s: 1.0,
            clients,
            preemption: PreemptionReport::default(),
            first_block_us: None,
            padded_launches: 0,
            padding_blocks: 0,
            padding_delays_ns: Vec::new(),
            faults: atoll_sim::FaultCounts::default(),
            utilisation: 0.5,
        }
    }

    #[test]
    fn a_simulation_and_records_are_drawn_alike() {
        let (window, us) = (0..1_000_000, |us: u64| Nanos(us * 1000));
        let units = vec![Range { start: 0.0, end: 1.5 }, Range { start: 2.0, end: 2.5 }];
        let occupied = Occupied {
            client: 1,
            kernel: "conv".into(),
            blocks: 4,
            units,
            began: us(100),
            ended: us(300),
            was_stopped: true,
            is_padding: false,
        };
        let simulated = of_simulation(&[occupied], &report(), 60, &window);
        assert_eq!((simulated.rows.len(), simulated.boxes.len()), (60, 2));
        assert!(
            simulated.boxes.iter().all(|ran| ran.group == 1 && ran.was_stopped && (ran.begin, ran.end) == (0.1, 0.3))
        );

        let function =
            FunctionName { tenant: "local".into(), name: "slow".into(), class: Class::BestEffort, nodes: vec![] };
        let (launch, end) = (LaunchId(1), ChunkOutcome::Interrupted);
        let chunk = EventKind::Chunk { unit: 1, launch, first_block: 0, blocks: 4, ended: us(1300), end };
        let preempt = EventKind::Raised { epoch: Epoch(1), why: Raise::Preempted };
        let records = [(1100, chunk), (1200, preempt)].map(|(at, kind)| Record {
            at: us(at),
            task: TaskId(1),
            function: 7,
            kind,
        });
        let timeline = Timeline::of(&records, &[(7, function)].into(), false, None);
        let recorded = of_records(&Seen { timeline, begin_ns: 1_000_000, window }, &report());
        assert_eq!(
            (recorded.rows, recorded.marks),
            (vec!["compute unit 1".to_owned()], vec![(0.2, "preempt".to_owned())])
        );
        let [ran] = &recorded.boxes[..] else { panic!("{:?}", recorded.boxes) };
        assert_eq!((ran.group, ran.was_stopped, ran.begin, ran.end), (1, true, 0.1, 0.3));
    }

    #[test]
    fn a_folder_gets_a_picture_of_each_client_and_each_run() {
        let folder = tempfile::tempdir().unwrap();
        let pictures = Pictures::new(&folder.path().join("new/plots")).unwrap();
        pictures.timeline(&report(), Some(Gantt::default())).unwrap();
        pictures.latencies(&[report()]).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(folder.path().join("new/plots"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["A-fast-latency.svg", "A-never-latency.svg", "A-reef-timeline.svg", "A-slow-latency.svg"]);
        let file = folder.path().join("all.svg");
        Pictures::new(&file).unwrap().latencies(&[report()]).unwrap();
        let plot = std::fs::read_to_string(file).unwrap();
        let has = |name: &str| plot.lines().any(|line| line == name);
        assert!(
            has("fast, reef") && has("slow, reef") && !has("never, reef"),
            "a client without an answer has no line: {plot}"
        );
    }

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(file_name(&["A v1.0", "a/../b", "latency"]), "A-v1.0-a-..-b-latency.svg");
    }
}
