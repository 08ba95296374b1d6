//! The time, price and memory of each stage on each kind of device.

use super::error::GraphError;
use super::graph::Graph;
use super::limits::{ASSIGNMENTS_MAX, KINDS_MAX};
use super::spec::Cost;
use crate::ids::Nanos;

/// A kind of device, by its index in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(pub u8);

/// A kind of device: all devices of a kind run a function in the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name, for reports.
    pub name: String,
    /// Whether it is a CPU.
    pub is_cpu: bool,
    /// Price of a second on it, in millionths of the unit of account.
    pub price_per_s: u64,
}

/// The measured cost of a stage on a kind of device. `exec` includes the copies of its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCost {
    /// Time to load its constants, if they are not on the device.
    pub pre: Nanos,
    /// Time of one run for one request. Admitted deadlines hold only if runs take no longer.
    pub exec: Nanos,
    /// Added time of a run for each further request of a batch.
    pub batch_step: Nanos,
    /// Time to unload its constants, after which their memory is free.
    pub post: Nanos,
    /// Device memory of its constants, in bytes.
    pub bytes: u64,
}

impl StageCost {
    /// Time of a run for `count` requests; `count` is at least 1.
    pub fn batch_ns(&self, count: u32) -> u64 {
        self.exec.0.saturating_add(self.batch_step.0.saturating_mul(u64::from(count - 1)))
    }
}

/// The costs of a graph's stages, checked against the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    kinds: Vec<Kind>,
    /// Stage by stage, kind by kind; `None` where the stage cannot run.
    rows: Vec<Vec<Option<StageCost>>>,
    assignments: u64,
}

impl CostTable {
    /// Checks a table: `rows[stage][kind]` is `None` where the stage cannot run.
    ///
    /// # Errors
    /// If no kind can run a stage, a stage has a time of 0, the table does not fit the graph and
    /// the kinds, there are more than [`ASSIGNMENTS_MAX`] assignments, or times or prices overflow.
    pub fn new(graph: &Graph, kinds: Vec<Kind>, rows: Vec<Vec<Option<StageCost>>>) -> Result<CostTable, GraphError> {
        if kinds.is_empty() {
            return Err(GraphError::NoKinds);
        }
        if kinds.len() > KINDS_MAX {
            return Err(GraphError::TooManyKinds(kinds.len()));
        }
        if rows.len() != graph.stages().len() {
            return Err(GraphError::Rows { rows: rows.len(), stages: graph.stages().len() });
        }
        let (mut assignments, mut latency, mut cost) = (1_u64, 0_u64, 0_u64);
        for (stage, row) in graph.stages().iter().zip(&rows) {
            let name = || stage.name.clone();
            if row.len() != kinds.len() {
                return Err(GraphError::Columns { stage: name(), columns: row.len(), kinds: kinds.len() });
            }
            let mut most = (0, 0);
            for (kind, entry) in kinds.iter().zip(row) {
                let Some(entry) = entry else { continue };
                if stage.cpu_only && !kind.is_cpu {
                    return Err(GraphError::GpuCostOfCpuStage { stage: name(), kind: kind.name.clone() });
                }
                if entry.exec.0 == 0 {
                    return Err(GraphError::ZeroTime { stage: name(), kind: kind.name.clone() });
                }
                let overflow = || GraphError::CostOverflow { stage: name() };
                let ns = u128::from(entry.batch_step.0) * u128::from(stage.batch_max) + u128::from(entry.exec.0);
                let ns = u64::try_from(ns).map_err(|_| overflow())?;
                let setup = entry.pre.0.checked_add(entry.post.0).and_then(|setup| setup.checked_add(ns));
                most.0 = most.0.max(setup.ok_or_else(overflow)?);
                most.1 = most.1.max(ns.checked_mul(kind.price_per_s).ok_or_else(overflow)?);
            }
            let choices = row.iter().flatten().count() as u64;
            if choices == 0 {
                return Err(GraphError::NowhereToRun { stage: name() });
            }
            assignments = assignments.saturating_mul(choices);
            let sum = latency.checked_add(most.0).zip(cost.checked_add(most.1));
            (latency, cost) = sum.ok_or_else(|| GraphError::CostOverflow { stage: name() })?;
        }
        if assignments > ASSIGNMENTS_MAX {
            return Err(GraphError::TooManyAssignments { stages: rows.len(), kinds: kinds.len() });
        }
        Ok(CostTable { kinds, rows, assignments })
    }

    /// The table without the entries for which `fits` is false. If a stage is left without entries,
    /// the table has no assignments.
    pub(super) fn restricted(&self, fits: impl Fn(KindId, &StageCost) -> bool) -> CostTable {
        let entry = |(kind, cost): (usize, &Option<StageCost>)| cost.filter(|cost| fits(KindId(kind as u8), cost));
        let row = |row: &Vec<Option<StageCost>>| row.iter().enumerate().map(entry).collect();
        let rows: Vec<Vec<Option<StageCost>>> = self.rows.iter().map(row).collect();
        let choices = |row: &Vec<Option<StageCost>>| row.iter().flatten().count() as u64;
        CostTable { kinds: self.kinds.clone(), assignments: rows.iter().map(choices).product(), rows }
    }

    /// The kinds of devices.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Number of assignments of stages to kinds.
    pub fn assignments(&self) -> u64 {
        self.assignments
    }

    /// The cost of a stage on a kind of device; `None` if the stage cannot run there.
    pub fn get(&self, stage: usize, kind: KindId) -> Option<&StageCost> {
        self.rows[stage].get(usize::from(kind.0))?.as_ref()
    }

    /// Price of `ns` nanoseconds on a kind of device.
    pub fn price(&self, kind: KindId, ns: u64) -> Cost {
        Cost(ns.saturating_mul(self.kinds[usize::from(kind.0)].price_per_s))
    }

    /// The kinds that can run a stage.
    pub(super) fn choices(&self, stage: usize) -> impl Iterator<Item = (KindId, &StageCost)> {
        let entries = self.rows[stage].iter().enumerate();
        entries.filter_map(|(kind, cost)| cost.as_ref().map(|cost| (KindId(kind as u8), cost)))
    }
}
