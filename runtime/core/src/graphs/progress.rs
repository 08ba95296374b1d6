//! Which stages of one request have ended, which were skipped, and which are next.

use super::graph::{Graph, Source};

/// The state of a stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageState {
    /// Stages that it needs are not settled.
    Waiting,
    /// Its condition can be decided.
    Undecided,
    /// It can run.
    Ready,
    /// It has run.
    Ended,
    /// Its condition was false.
    Skipped,
}

/// What a request needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The condition of this stage, by [`Progress::decided`].
    Decide(usize),
    /// A run of this stage, and then [`Progress::ended`].
    Run(usize),
}

/// The progress of one request through a graph.
#[derive(Clone, Debug)]
pub struct Progress {
    states: Vec<StageState>,
    /// For each stage, how many stages that it needs are not settled.
    missing: Vec<u32>,
    unsettled: usize,
}

impl Progress {
    /// The progress of a request that has just begun, and what it needs first.
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

    /// The condition of a stage is known. A stage that does not run is settled, and its substitutes
    /// take the place of its outputs.
    ///
    /// # Panics
    /// If the stage is not [`StageState::Undecided`].
    pub fn decided(&mut self, graph: &Graph, stage: usize, runs: bool, next: &mut Vec<Next>) {
        assert_eq!(self.states[stage], StageState::Undecided, "only what can be decided is decided, and only once");
        if runs {
            self.states[stage] = StageState::Ready;
            next.push(Next::Run(stage));
        } else {
            self.settle(graph, stage, StageState::Skipped, next);
        }
    }

    /// A stage has run.
    ///
    /// # Panics
    /// If the stage is not [`StageState::Ready`].
    pub fn ended(&mut self, graph: &Graph, stage: usize, next: &mut Vec<Next>) {
        assert_eq!(self.states[stage], StageState::Ready, "only what is ready runs, and only once");
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

    /// The tensor that stands for `source`: the substitute if its stage was skipped.
    pub fn resolve(&self, graph: &Graph, source: Source) -> Source {
        let mut source = source;
        // Each substitute is of an earlier stage, so this ends.
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
