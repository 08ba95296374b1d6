//! Workload files of the benchmark DISB (v1.0): which client calls which model, and when.
//!
//! The class of a client follows from the suffix of its id (`_rt`, `_be`), as in REEF's published
//! configurations. Without such a suffix it follows from `priority`: 0 is real-time.

use crate::error::SimError;
use crate::limits::{CLIENTS_MAX, RATE_MAX, SECONDS_MAX, TRACE_MAX};
use crate::reef::read_json;
use atoll_core::Class;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A workload: clients that call models for some time.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name in reports.
    pub name: String,
    /// For how long calls arrive, in nanoseconds.
    pub duration_ns: u64,
    /// The clients.
    pub clients: Vec<Client>,
}

/// One client, which calls one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// Its id in the file.
    pub id: String,
    /// Its class.
    pub class: Class,
    /// The name of the model in the file.
    pub model: String,
    /// The arrivals of its calls.
    pub load: Load,
}

/// The arrivals of the calls of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// A closed loop: the next call follows the answer to the last one.
    Continuous,
    /// A rate in calls per second, at equal intervals.
    Periodic(f64),
    /// A Poisson process with this average rate, in calls per second.
    Poisson(f64),
    /// A trace of arrival times, in nanoseconds from the start, ascending.
    Trace(Arc<[u64]>),
    /// Each call follows the answers to the calls with the same number of these other clients, by
    /// their ids: a stage of a graph.
    After(Arc<[String]>),
}

/// The five models of DISB: the stem of the client ids, and the name of the model.
const MODELS: [(&str, &str); 5] = [
    ("resnet152", "resnet152-imagenet"),
    ("densenet201", "densenet201-imagenet"),
    ("vgg19", "vgg19-imagenet"),
    ("inceptionv3", "inceptionv3-imagenet"),
    ("distilbert", "distilbert"),
];

const RESNET: usize = 0;
const VGG: usize = 2;

/// The duration of DISB's workloads, in seconds.
const DISB_SECONDS: u64 = 60;

/// The letters that [`Workload::disb`] accepts.
pub const DISB: [&str; 5] = ["A", "B", "C", "D", "E"];

#[derive(Deserialize)]
struct File {
    time: f64,
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    id: String,
    load: RawLoad,
    client: RawClient,
}

#[derive(Deserialize)]
struct RawLoad {
    #[serde(rename = "type")]
    kind: String,
    priority: Option<i64>,
    frequency: Option<f64>,
    trace: Option<Vec<f64>>,
    prev_task_ids: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawClient {
    model_name: String,
}

impl Workload {
    /// A workload of DISB v1.0 by its letter, one of [`DISB`]. Best-effort clients are closed
    /// loops. Other publications use the same letters for other loads.
    pub fn disb(letter: &str) -> Option<Workload> {
        let client = |model: usize, class, load: &Load| {
            let (name, model) = MODELS[model];
            let suffix = if class == Class::RealTime { "rt" } else { "be" };
            Client { id: format!("{name}_{suffix}"), class, model: model.to_owned(), load: load.clone() }
        };
        let (real_time, load, best_effort): (&[usize], Load, &[usize]) = match letter {
            "A" => (&[VGG], Load::Periodic(100.0), &[RESNET]),
            "B" => (&[VGG], Load::Continuous, &[RESNET]),
            "C" => (&[VGG], Load::Periodic(100.0), &[0, 1, 2, 3, 4]),
            "D" => (&[0, 1, 2, 3, 4], Load::Periodic(20.0), &[0, 1, 2, 3, 4]),
            "E" => (&[0, 1, 2, 3, 4], Load::Poisson(20.0), &[0, 1, 2, 3, 4]),
            _ => return None,
        };
        let real_time = real_time.iter().map(|&model| client(model, Class::RealTime, &load));
        let best_effort = best_effort.iter().map(|&model| client(model, Class::BestEffort, &Load::Continuous));
        let clients = real_time.chain(best_effort).collect();
        Some(Workload { name: format!("DISB v1.0 {letter}"), duration_ns: DISB_SECONDS * 1_000_000_000, clients })
    }

    /// The title of a report on this workload.
    pub fn variant(&self, as_disb: bool) -> String {
        format!("{}{}", self.name, if as_disb { ", as DISB measures" } else { "" })
    }

    /// The same workload for a device that is faster by a factor: rates are multiplied by it, and
    /// recorded arrival times are divided by it.
    pub fn scaled(mut self, factor: f64) -> Workload {
        for client in &mut self.clients {
            client.load = match std::mem::replace(&mut client.load, Load::Continuous) {
                load @ (Load::Continuous | Load::After(_)) => load,
                Load::Periodic(rate) => Load::Periodic(rate * factor),
                Load::Poisson(rate) => Load::Poisson(rate * factor),
                Load::Trace(times) => Load::Trace(times.iter().map(|at| (*at as f64 / factor) as u64).collect()),
            };
        }
        self
    }

    /// Reads a workload file.
    ///
    /// # Errors
    /// If the file cannot be read, is not a workload, has a load of an unknown type, or dependent
    /// clients that follow unknown ones or each other in a circle.
    pub fn read(path: &Path) -> Result<Workload, SimError> {
        let invalid = |what: String| SimError::Invalid { path: path.to_owned(), what };
        let File { time, tasks } = read_json(path)?;
        if !(time > 0.0 && time <= SECONDS_MAX) {
            return Err(invalid(format!(
                "it runs for {time} seconds; more than 0 and at most {SECONDS_MAX} are possible"
            )));
        }
        if tasks.is_empty() || tasks.len() > CLIENTS_MAX {
            return Err(invalid(format!("{} clients; there must be 1 to {CLIENTS_MAX}", tasks.len())));
        }
        let clients: Vec<Client> =
            tasks.into_iter().map(|task| client(task).map_err(invalid)).collect::<Result<_, _>>()?;
        predecessors(&clients).map_err(invalid)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Workload { name, duration_ns: (time * 1e9) as u64, clients })
    }
}

fn client(task: Task) -> Result<Client, String> {
    let Task { id, load, client: RawClient { model_name: model } } = task;
    let RawLoad { kind, priority, frequency, trace, prev_task_ids } = load;
    let rate = || {
        frequency
            .filter(|rate| *rate > 0.0 && *rate <= RATE_MAX)
            .ok_or(format!("client `{id}` has no frequency above 0 and up to {RATE_MAX}"))
    };
    let load = match kind.as_str() {
        "continuous" => Load::Continuous,
        "periodic" => Load::Periodic(rate()?),
        "poisson" => Load::Poisson(rate()?),
        "trace" => Load::Trace(recorded(trace.unwrap_or_default()).map_err(|what| format!("client `{id}`: {what}"))?),
        "dependent" => Load::After(prev_task_ids.unwrap_or_default().into()),
        other => {
            return Err(format!(
                "client `{id}` has a load of type `{other}`; known are continuous, periodic, poisson, trace and \
                 dependent"
            ));
        }
    };
    let class = match (id.ends_with("_rt"), id.ends_with("_be"), priority) {
        (true, _, _) => Class::RealTime,
        (_, true, _) => Class::BestEffort,
        (_, _, Some(0)) => Class::RealTime,
        _ => Class::BestEffort,
    };
    Ok(Client { id, class, model, load })
}

/// The clients that each client follows, by their indices; none if its load does not depend on
/// others.
///
/// # Errors
/// Names the client that follows no client, an unknown one, one twice, or itself through others.
pub(crate) fn predecessors(clients: &[Client]) -> Result<Vec<Vec<usize>>, String> {
    let places: BTreeMap<&str, usize> = clients.iter().zip(0..).map(|(client, at)| (client.id.as_str(), at)).collect();
    let mut all = vec![Vec::new(); clients.len()];
    for (client, of) in clients.iter().zip(&mut all) {
        let Load::After(ids) = &client.load else { continue };
        if ids.is_empty() {
            return Err(format!("client `{}` has a dependent load without prev_task_ids", client.id));
        }
        for id in &**ids {
            let unknown = || format!("client `{}` follows `{id}`, which is not in the workload", client.id);
            let found = places.get(id.as_str()).ok_or_else(unknown)?;
            if of.contains(found) {
                return Err(format!("client `{}` follows `{id}` twice", client.id));
            }
            of.push(*found);
        }
    }
    // Clients are removed once all clients that they follow are; those that stay form a circle.
    let mut is_removed = vec![false; clients.len()];
    while let Some(next) = (0..all.len()).find(|&at| !is_removed[at] && all[at].iter().all(|&of| is_removed[of])) {
        is_removed[next] = true;
    }
    match is_removed.iter().position(|is_removed| !is_removed) {
        Some(at) => Err(format!("client `{}` follows itself through other clients", clients[at].id)),
        None => Ok(all),
    }
}

/// Converts recorded arrival times from milliseconds to nanoseconds and sorts them.
fn recorded(ms: Vec<f64>) -> Result<Arc<[u64]>, String> {
    if ms.len() > TRACE_MAX {
        return Err(format!("{} recorded arrivals; at most {TRACE_MAX} are read", ms.len()));
    }
    if let Some(odd) = ms.iter().find(|ms| !(**ms >= 0.0 && **ms <= SECONDS_MAX * 1e3)) {
        return Err(format!("an arrival after {odd} ms"));
    }
    let mut times: Vec<u64> = ms.into_iter().map(|ms| (ms * 1e6) as u64).collect();
    times.sort_unstable();
    Ok(times.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Workload, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Workload::read(file.path()).map_err(|error| error.to_string())
    }

    fn one(id: &str, load: &str) -> Result<Workload, String> {
        read(&format!(
            r#"{{"time": 2.5, "tasks": [{{"id": "{id}", "load": {load},
                "client": {{"model_name": "m", "port": 1}}}}]}}"#
        ))
    }

    #[test]
    fn loads_and_classes_are_read() {
        let client = |id, load| one(id, load).expect("a workload").clients.remove(0);
        assert_eq!(client("a_rt", r#"{"type": "periodic", "frequency": 100}"#).load, Load::Periodic(100.0));
        assert_eq!(client("a", r#"{"type": "poisson", "frequency": 0.5, "priority": 0}"#).class, Class::RealTime);
        let Client { class, load, .. } = client("a_be", r#"{"type": "trace", "priority": 0, "trace": [2.5, 1]}"#);
        assert_eq!((class, load), (Class::BestEffort, Load::Trace([1_000_000, 2_500_000].into())));
        assert_eq!(one("a", r#"{"type": "continuous"}"#).expect("a workload").duration_ns, 2_500_000_000);
    }

    #[test]
    fn invalid_files_are_rejected() {
        assert!(
            one("a", r#"{"type": "periodic", "frequency": 0}"#).expect_err("no rate").contains("no frequency above 0")
        );
        assert!(one("a", r#"{"type": "bursts"}"#).expect_err("unknown").contains("known are continuous"));
        assert!(one("a", r#"{"type": "dependent"}"#).expect_err("none").contains("without prev_task_ids"));
        assert!(
            one("a", r#"{"type": "trace", "trace": [-1]}"#).expect_err("negative").contains("an arrival after -1 ms")
        );
        assert!(read(r#"{"time": 0, "tasks": []}"#).expect_err("no time").contains("runs for 0 seconds"));
        assert!(read(r#"{"time": 1, "tasks": []}"#).expect_err("no client").contains("0 clients"));
    }

    /// Clients `a`, `b` and `c`, of which `b` and `c` follow others.
    fn dependent(b: &str, c: &str) -> Result<Workload, String> {
        let task = |id: &str, load: &str| {
            format!(r#"{{"id": "{id}", "load": {{"type": {load}}}, "client": {{"model_name": "m"}}}}"#)
        };
        let after = |ids: &str| format!(r#""dependent", "prev_task_ids": {ids}"#);
        let tasks = [task("a", r#""continuous""#), task("b", &after(b)), task("c", &after(c))].join(", ");
        read(&format!(r#"{{"time": 1, "tasks": [{tasks}]}}"#))
    }

    #[test]
    fn dependent_clients_follow_known_ones() {
        let workload = dependent(r#"["a"]"#, r#"["a", "b"]"#).expect("a workload");
        assert_eq!(workload.clients[2].load, Load::After(["a".to_owned(), "b".to_owned()].into()));
        for (b, c, part) in [
            (r#"["x"]"#, r#"["a"]"#, "client `b` follows `x`, which is not in the workload"),
            (r#"["a"]"#, r#"["a", "a"]"#, "client `c` follows `a` twice"),
            (r#"["c"]"#, r#"["b"]"#, "client `b` follows itself"),
            (r#"["b"]"#, r#"["a"]"#, "client `b` follows itself"),
        ] {
            let error = dependent(b, c).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
