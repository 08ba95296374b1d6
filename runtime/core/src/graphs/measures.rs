//! Measured times of a graph's stages on each kind of device, and the cost table made from them.
//!
//! Costs are never guessed: a stage without measurements on a kind has no cost there. Requests are
//! planned only after each stage has been measured on each kind that can run it, or the attempts
//! to measure it there have been used up. Until then they run unplanned, on the kinds that are
//! still to be measured.

use super::costs::{CostTable, Kind, KindId, StageCost};
use super::error::GraphError;
use super::graph::Graph;
use crate::ids::Nanos;
use std::collections::VecDeque;

/// Measurements that are kept of a stage on a kind of device. Older ones were made beside other
/// work and with other inputs.
const WINDOW: usize = 32;

/// Measurements that are needed for a cost. The first run of a function is often the slowest.
const SAMPLES_MIN: usize = 3;

/// Attempts to measure a stage on a kind of device, after which the kind is left out.
const TRIES_MAX: u32 = 6;

/// The cost table is made anew if a time differs from the table's by more than one part in this
/// many.
const DRIFT_SHARE: u64 = 8;

/// The measured times of the stages of one graph.
#[derive(Clone, Debug)]
pub struct Measures {
    kinds: usize,
    /// Stage by stage, kind by kind.
    cells: Vec<Cell>,
    /// The times of the latest table, valid or not.
    table: Vec<Option<Nanos>>,
}

/// Measurements of a stage on a kind of device.
#[derive(Clone, Debug, Default)]
struct Cell {
    runs: VecDeque<u64>,
    loads: VecDeque<u64>,
    tries: u32,
}

/// The measured times of a stage on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Time of a run: the longest of the recent ones, without outliers.
    pub exec: Nanos,
    /// Time to load its constants; `None` if no load was measured.
    pub load: Option<Nanos>,
    /// Number of measured runs.
    pub samples: usize,
}

impl Measures {
    /// No measurements.
    pub fn new(stages: usize, kinds: usize) -> Measures {
        Measures { kinds, cells: vec![Cell::default(); stages * kinds], table: vec![None; stages * kinds] }
    }

    fn at(&self, stage: usize, kind: KindId) -> usize {
        stage * self.kinds + usize::from(kind.0)
    }

    /// Notes an attempt to measure a stage on a kind of device.
    pub fn try_on(&mut self, stage: usize, kind: KindId) {
        let at = self.at(stage, kind);
        self.cells[at].tries += 1;
    }

    /// Notes the time of a run of a stage.
    pub fn note_run(&mut self, stage: usize, kind: KindId, took: Nanos) {
        let at = self.at(stage, kind);
        // A cost table rejects a time of 0.
        push(&mut self.cells[at].runs, took.0.max(1));
    }

    /// Notes the time of a load of a stage's constants.
    pub fn note_load(&mut self, stage: usize, kind: KindId, took: Nanos) {
        let at = self.at(stage, kind);
        push(&mut self.cells[at].loads, took.0);
    }

    /// The measured times of a stage on a kind; `None` without enough measurements.
    pub fn get(&self, stage: usize, kind: KindId) -> Option<Measured> {
        let cell = &self.cells[self.at(stage, kind)];
        let enough = cell.runs.len() >= SAMPLES_MIN;
        enough.then(|| Measured {
            exec: Nanos(near_longest(&cell.runs)),
            load: (!cell.loads.is_empty()).then(|| Nanos(near_longest(&cell.loads))),
            samples: cell.runs.len(),
        })
    }

    /// Number of measurements of a stage on a kind.
    pub fn samples(&self, stage: usize, kind: KindId) -> usize {
        self.cells[self.at(stage, kind)].runs.len()
    }

    /// The kind on which to measure the stage next: the one with the fewest attempts. `None` if
    /// each of `kinds` has enough measurements or no attempts left.
    pub fn next(&self, stage: usize, kinds: impl IntoIterator<Item = KindId>) -> Option<KindId> {
        let is_open = |kind: &KindId| {
            let cell = &self.cells[self.at(stage, *kind)];
            cell.runs.len() < SAMPLES_MIN && cell.tries < TRIES_MAX
        };
        kinds.into_iter().filter(is_open).min_by_key(|kind| (self.cells[self.at(stage, *kind)].tries, *kind))
    }

    /// Whether a time differs so much from the latest table that the table should be made anew.
    pub fn has_moved(&self) -> bool {
        let cells = self.table.iter().zip(&self.cells);
        cells.into_iter().any(|(used, cell)| match used {
            Some(used) => near_longest(&cell.runs).abs_diff(used.0) > used.0 / DRIFT_SHARE,
            None => cell.runs.len() >= SAMPLES_MIN,
        })
    }

    /// The cost table of all stages on the kinds where they were measured. `bytes` returns the size
    /// of a stage's constants on a kind; `None` if the stage cannot run there.
    ///
    /// # Errors
    /// As [`CostTable::new`]; for instance if a stage was not measured on any kind.
    pub fn table(
        &mut self,
        graph: &Graph,
        kinds: &[Kind],
        bytes: impl Fn(usize, KindId) -> Option<u64>,
    ) -> Result<CostTable, GraphError> {
        let cost = |stage: usize, kind: KindId| -> Option<StageCost> {
            let (bytes, measured) = (bytes(stage, kind)?, self.get(stage, kind)?);
            let pre = measured.load.unwrap_or_default();
            Some(StageCost { pre, exec: measured.exec, bytes, ..StageCost::default() })
        };
        let row = |stage: usize| (0..self.kinds).map(|kind| cost(stage, KindId(kind as u8))).collect();
        let rows: Vec<Vec<Option<StageCost>>> = (0..graph.stages().len()).map(row).collect();
        let times = rows.iter().flatten().map(|cost| cost.map(|cost| cost.exec)).collect();
        // Also kept if the table is rejected: the same times would be rejected again.
        self.table = times;
        CostTable::new(graph, kinds.to_vec(), rows)
    }
}

fn push(window: &mut VecDeque<u64>, value: u64) {
    if window.len() == WINDOW {
        window.pop_front();
    }
    window.push_back(value);
}

/// The longest time of a window without outliers. A window with at least four measurements drops
/// its longest ones: one per twenty measurements, rounded up.
fn near_longest(window: &VecDeque<u64>) -> u64 {
    let mut sorted: Vec<u64> = window.iter().copied().collect();
    sorted.sort_unstable();
    let dropped = if sorted.len() < 4 { 0 } else { sorted.len().div_ceil(20) };
    sorted.len().checked_sub(dropped + 1).map_or(0, |at| sorted[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graphs::spec::{GraphSpec, Link, SourceName, StageSpec};
    use crate::graphs::tensor::{Form, TensorSpec};

    const GPU: KindId = KindId(0);
    const CPU: KindId = KindId(1);

    fn kinds() -> Vec<Kind> {
        let kind = |name: &str, is_cpu| Kind { name: name.into(), is_cpu, price_per_s: 1 };
        vec![kind("gpu", false), kind("cpu", true)]
    }

    /// A graph of one stage.
    fn graph() -> Graph {
        let form = Form { element: "FP32".into(), shape: Vec::new() };
        let tensor = |name: &str| TensorSpec { name: name.into(), form: form.clone() };
        let from = |name: &str, from| Link { name: name.into(), from };
        let stage = StageSpec {
            name: "a".into(),
            function: "f".into(),
            inputs: vec![tensor("x")],
            outputs: vec![tensor("y")],
            from: vec![from("x", SourceName::Input("x".into()))],
            ..StageSpec::default()
        };
        let output = SourceName::Output { stage: "a".into(), output: "y".into() };
        let (inputs, outputs) = (vec![tensor("x")], vec![from("y", output)]);
        Graph::new(GraphSpec { name: "g".into(), inputs, stages: vec![stage], outputs, ..GraphSpec::default() })
            .unwrap()
    }

    #[test]
    fn a_stage_is_measured_on_each_kind_before_it_has_a_table() {
        let mut measures = Measures::new(1, 2);
        let mut order = Vec::new();
        while let Some(kind) = measures.next(0, [GPU, CPU]) {
            order.push(kind);
            measures.try_on(0, kind);
            // Runs on the CPU miss their deadline and are not measured.
            if kind == GPU {
                measures.note_run(0, kind, Nanos(100));
            }
        }
        assert_eq!(order.iter().filter(|kind| **kind == GPU).count(), SAMPLES_MIN);
        assert_eq!(order.iter().filter(|kind| **kind == CPU).count(), TRIES_MAX as usize, "given up");
        let table = measures.table(&graph(), &kinds(), |_, _| Some(7)).unwrap();
        assert_eq!(table.get(0, GPU).map(|cost| (cost.exec, cost.bytes)), Some((Nanos(100), 7)));
        assert_eq!(table.get(0, CPU), None, "nothing is made up");
        assert!(Measures::new(1, 2).table(&graph(), &kinds(), |_, _| Some(7)).is_err());
    }

    #[test]
    fn an_exception_is_forgotten_and_a_change_is_noticed() {
        let mut measures = Measures::new(1, 2);
        for took in [9_000, 100, 110] {
            measures.note_run(0, GPU, Nanos(took));
        }
        assert_eq!(measures.get(0, GPU).unwrap().exec, Nanos(9_000), "of three the longest");
        measures.table(&graph(), &kinds(), |_, _| Some(0)).unwrap();
        assert!(!measures.has_moved());
        measures.note_run(0, GPU, Nanos(105));
        assert_eq!(measures.get(0, GPU).unwrap().exec, Nanos(110));
        assert!(measures.has_moved());
        measures.table(&graph(), &kinds(), |_, _| Some(0)).unwrap();
        for _ in 0..WINDOW {
            measures.note_run(0, GPU, Nanos(120));
        }
        assert!(!measures.has_moved(), "less than an eighth");
        measures.note_run(0, CPU, Nanos(1));
        assert!(!measures.has_moved(), "too few measurements on the CPU");
        measures.note_load(0, GPU, Nanos(5));
        assert_eq!(measures.get(0, GPU).unwrap().load, Some(Nanos(5)));
    }
}
