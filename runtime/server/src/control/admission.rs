//! Reports about the admission of graph requests, as types of the control protocol.

use crate::graphs::{CostView, Desk, GraphWork, Limits, rejection};
use atoll_control::{
    AdmissionReport, AssignmentEntry, CostEntry, DecisionEntry, KindEntry, MissingEntry, PlacedEntry, TriedEntry,
};
use atoll_core::Nanos;
use atoll_core::graphs::{
    Assignment, Cost, Explanation, KindId, Measured, NodeId, Obstacle, PlannedStage, Prefer, Reason, Tried, Verdict,
};

/// The report about a graph, with the decision that a request with these limits would get now;
/// `None` if the daemon has no admission.
pub(super) fn report(work: &GraphWork, devices: &[String], limits: Limits) -> Option<AdmissionReport> {
    let desk = work.costs.desk()?;
    let view = work.costs.view(&work.graph, &work.works, limits)?;
    let writer = Writer { work, desk, devices };
    Some(writer.report(&view))
}

struct Writer<'a> {
    work: &'a GraphWork,
    desk: &'a Desk,
    devices: &'a [String],
}

impl Writer<'_> {
    fn report(&self, view: &CostView) -> AdmissionReport {
        let kind = |kind: &atoll_core::graphs::Kind| KindEntry {
            kind: kind.name.clone(),
            price_per_s: kind.price_per_s as f64 / 1e6,
        };
        let costs = view.measured.iter().enumerate().flat_map(|(stage, row)| {
            let known = row.iter().enumerate().filter_map(|(kind, measured)| Some((KindId(kind as u8), (*measured)?)));
            known.map(move |(kind, measured)| self.cost(stage, kind, measured))
        });
        let missing =
            |&(stage, kind): &(usize, KindId)| MissingEntry { stage: self.stage(stage), kind: self.kind(kind) };
        let graph = &self.work.graph;
        AdmissionReport {
            kinds: self.desk.kinds().iter().map(kind).collect(),
            costs: costs.collect(),
            missing: view.missing.iter().map(missing).collect(),
            assignments: view.plans.as_ref().map_or(0, atoll_core::graphs::Plans::considered),
            optimal: view.plans.iter().flat_map(|plans| plans.list()).map(|plan| self.assignment(plan)).collect(),
            price_max: graph.price_max().map(Cost::units),
            prefer: match graph.prefer() {
                Some(Prefer::Speed) => "speed".into(),
                Some(Prefer::Random) => "random".into(),
                Some(Prefer::Cost) | None => "cost".into(),
            },
            now: view.asked.as_ref().map(|asked| self.decision(asked)),
            last: view.last.as_ref().map(|last| self.decision(last)),
            kept_free: view.kept_free,
            failure: view.failure.clone(),
        }
    }

    fn stage(&self, stage: usize) -> String {
        self.work.graph.stages().get(stage).map_or_else(|| "?".into(), |stage| stage.name.clone())
    }

    fn kind(&self, kind: KindId) -> String {
        self.desk.kinds().get(usize::from(kind.0)).map_or_else(|| "?".into(), |kind| kind.name.clone())
    }

    fn device(&self, node: NodeId) -> String {
        let device = self.desk.device(node).and_then(|device| self.devices.get(usize::from(device.0)));
        device.map_or_else(|| self.desk.stage_node(node).to_owned(), Clone::clone)
    }

    fn price(&self, kind: KindId, time: Nanos) -> f64 {
        let per_s = self.desk.kinds().get(usize::from(kind.0)).map_or(0, |kind| kind.price_per_s);
        Cost(time.0.saturating_mul(per_s)).units()
    }

    fn cost(&self, stage: usize, kind: KindId, measured: Measured) -> CostEntry {
        CostEntry {
            stage: self.stage(stage),
            kind: self.kind(kind),
            exec_ns: measured.exec.0,
            load_ns: measured.load.map(|load| load.0),
            samples: measured.samples as u64,
            price: self.price(kind, measured.exec),
        }
    }

    fn assignment(&self, plan: &Assignment) -> AssignmentEntry {
        AssignmentEntry {
            kinds: plan.kinds.iter().map(|kind| self.kind(*kind)).collect(),
            latency_ns: plan.latency.0,
            price: plan.cost.units(),
        }
    }

    fn decision(&self, explanation: &Explanation) -> DecisionEntry {
        let since = |time: Nanos| time.0.saturating_sub(explanation.at.0);
        let rejected = DecisionEntry {
            deadline_ns: explanation.deadline.map(since),
            price_max: explanation.price_max.map(Cost::units),
            qualifying: explanation.qualifying as u64,
            tried: explanation.tried.iter().map(|tried| self.tried(tried, &since)).collect(),
            admitted: false,
            reason: None,
            text: String::new(),
            end_ns: None,
            price: None,
            stages: Vec::new(),
        };
        match &explanation.verdict {
            Verdict::Rejected(reason) => DecisionEntry {
                reason: Some(Reason::LABELS[reason.index()].into()),
                text: rejection(reason, &self.work.graph, explanation.at),
                ..rejected
            },
            Verdict::Admitted { is_reused, end, cost, stages } => {
                let placed = |(stage, planned): (usize, &PlannedStage)| PlacedEntry {
                    stage: self.stage(stage),
                    device: self.device(planned.node),
                    start_ns: since(planned.start),
                    end_ns: since(planned.end),
                    cold: planned.is_cold,
                };
                let why = if *is_reused { "on the devices of an earlier request" } else { "on devices chosen for it" };
                let (ms, units) = (since(*end) as f64 / 1e6, cost.units());
                DecisionEntry {
                    admitted: true,
                    text: format!("it ends after {ms:.3} ms for {units:.9} units, {why}"),
                    end_ns: Some(since(*end)),
                    price: Some(units),
                    stages: stages.iter().enumerate().map(placed).collect(),
                    ..rejected
                }
            }
        }
    }

    fn tried(&self, tried: &Tried, since: &impl Fn(Nanos) -> u64) -> TriedEntry {
        let ms = |time: Nanos| since(time) as f64 / 1e6;
        let outcome = match tried.outcome {
            Ok((end, cost)) => format!("ends after {:.3} ms for {:.9} units", ms(end), cost.units()),
            Err(Obstacle::NoMemory { stage }) => format!("no memory for the constants of `{}`", self.stage(stage)),
            Err(Obstacle::Late { stage, end }) => {
                format!("`{}` ends after {:.3} ms, too late", self.stage(stage), ms(end))
            }
            Err(Obstacle::Dear(cost)) => format!("costs {:.9} units, too much", cost.units()),
            Err(Obstacle::Full(node)) => format!("too many requests wait for {}", self.device(node)),
        };
        TriedEntry {
            devices: tried.nodes.iter().map(|node| self.device(*node)).collect(),
            reused: tried.is_reused,
            outcome,
        }
    }
}
