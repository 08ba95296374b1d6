//! The progress of one request: which stages have ended, which were skipped, and which are next.

use super::graph::{Graph, Source};

/// The state of a stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageState {
    /// A stage that it needs has neither ended nor been skipped.
    Waiting,
    /// Its condition can be evaluated.
    Undecided,
    /// It can run.
    Ready,
    /// It has run.
    Ended,
    /// Its condition was false.
    Skipped,
}

/// The next thing to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Evaluate the condition of this stage, then call [`Progress::decided`].
    Decide(usize),
    /// Run this stage, then call [`Progress::ended`].
    Run(usize),
}

/// The progress of one request through a graph.
#[derive(Clone, Debug)]
pub struct Progress {
    states: Vec<StageState>,
    /// For each stage, the number of needed stages that have neither ended nor been skipped.
    missing: Vec<u32>,
    /// The number of stages that have neither ended nor been skipped.
    unsettled: usize,
}

impl Progress {
    /// The progress of a new request, and the first things to do for it.
    pub fn new(graph: &Graph) -> (Progress, Vec<Next>) {
        let stages = graph.stages();
        let mut progress = Progress {
            states: vec![StageState::Waiting; stages.len()],
            missing: stages.iter().map(|stage| stage.needs.len() as u32).collect(),
            unsettled: stages.len(),
        };
        let mut next = Vec::new();
        for stage in 0..stages.len() {
            progress.offer(graph, stage, &mut next);
        }
        (progress, next)
    }

    /// Notes whether the condition of a stage holds. If it does not, the stage is skipped, and
    /// substitutes replace its outputs.
    ///
    /// # Panics
    /// If the stage is not [`StageState::Undecided`].
    pub fn decided(&mut self, graph: &Graph, stage: usize, runs: bool, next: &mut Vec<Next>) {
        assert_eq!(self.states[stage], StageState::Undecided, "a condition is decided once, after its inputs");
        if runs {
            self.states[stage] = StageState::Ready;
            next.push(Next::Run(stage));
        } else {
            self.settle(graph, stage, StageState::Skipped, next);
        }
    }

    /// Notes that a stage has run.
    ///
    /// # Panics
    /// If the stage is not [`StageState::Ready`].
    pub fn ended(&mut self, graph: &Graph, stage: usize, next: &mut Vec<Next>) {
        assert_eq!(self.states[stage], StageState::Ready, "a stage runs once, when it is ready");
        self.settle(graph, stage, StageState::Ended, next);
    }

    /// Whether all stages have ended or were skipped.
    pub fn is_done(&self) -> bool {
        self.unsettled == 0
    }

    /// The state of a stage.
    pub fn state(&self, stage: usize) -> StageState {
        self.states[stage]
    }

    /// The tensor to use for `source`: its substitute if the stage was skipped.
    pub fn resolve(&self, graph: &Graph, source: Source) -> Source {
        let mut source = source;
        // Each substitute comes from an earlier stage, so the loop ends.
        while let Source::Output { stage, output } = source
            && self.states[stage] == StageState::Skipped
        {
            let substitute = graph.stages()[stage].otherwise[output];
            source = substitute.expect("a used output of a stage that may be skipped has a substitute");
        }
        source
    }

    fn settle(&mut self, graph: &Graph, stage: usize, state: StageState, next: &mut Vec<Next>) {
        self.states[stage] = state;
        self.unsettled -= 1;
        for &after in &graph.stages()[stage].needed_by {
            self.missing[after] -= 1;
            self.offer(graph, after, next);
        }
    }

    fn offer(&mut self, graph: &Graph, stage: usize, next: &mut Vec<Next>) {
        if self.missing[stage] > 0 {
            return;
        }
        if graph.stages()[stage].when.is_some() {
            self.states[stage] = StageState::Undecided;
            next.push(Next::Decide(stage));
        } else {
            self.states[stage] = StageState::Ready;
            next.push(Next::Run(stage));
        }
    }
}
