//! Starts the stages of a run. A function takes its inputs on the device that has them, if it runs
//! there.
//!
//! An input that was only on a device may be lost with it. The stage that made it then runs again,
//! once for each stage that needs it: a stage that loses its device twice is the likely cause.

use super::{Ended, Place, Run};
use crate::graphs::calls::StageCall;
use crate::graphs::intermediates::{Held, Intermediate, placed};
use crate::graphs::stage::{Callee, StageResult, StageWork, run_builtin, run_program};
use crate::model::Model;
use atoll_core::graphs::{Source, StageState};
use atoll_core::placement::Why;
use atoll_engine::{
    ChainRequest, DeviceId, InputTensor, InvocationResult, InvokeError, RetainedTensor, StageInput, StageRequest,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A stage that was started.
struct Started {
    stage: usize,
    version: usize,
    place: Place,
    follows_input: bool,
    /// Bytes of its inputs that other functions made.
    intermediate_bytes: u64,
    begun: Instant,
}

impl Started {
    fn new(stage: usize, place: Place) -> Started {
        Started { stage, version: 0, place, follows_input: false, intermediate_bytes: 0, begun: Instant::now() }
    }

    fn ended(self, result: Result<StageResult, InvokeError>) -> Ended {
        Ended {
            stage: self.stage,
            version: self.version,
            given_to: self.place.device,
            is_planned: self.place.turn.is_some(),
            follows_input: self.follows_input,
            intermediate_bytes: self.intermediate_bytes,
            took: self.begun.elapsed(),
            result,
        }
    }
}

impl Run<'_> {
    /// Starts a stage, after its inputs were made again if they are lost.
    pub(super) fn start(&mut self, stage: usize, place: Place) -> Result<(), InvokeError> {
        if self.remakes_inputs(stage)? {
            return Ok(());
        }
        let left = self.terms.ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(InvokeError::DeadlineExceeded);
        }
        let (work, class) = (self.work.clone(), self.terms.class);
        match &self.work.works[stage] {
            StageWork::Function(callee) => {
                let callee = callee.clone();
                return self.start_function(stage, &callee, place, left);
            }
            StageWork::Builtin(builtin) => {
                let (builtin, inputs, started) = (*builtin, self.host_inputs(stage), Started::new(stage, place));
                self.tasks.spawn(async move { started.ended(run_builtin(builtin, class, &work.shared, inputs).await) });
            }
            StageWork::Program(program) => {
                let (program, inputs, started) = (program.clone(), self.host_inputs(stage), Started::new(stage, place));
                self.tasks.spawn(async move { started.ended(run_program(program, class, &work.shared, inputs).await) });
            }
        }
        Ok(())
    }

    fn start_function(
        &mut self,
        stage: usize,
        callee: &Callee,
        mut place: Place,
        deadline: Option<Duration>,
    ) -> Result<(), InvokeError> {
        self.keep_price(stage, callee, &mut place)?;
        let version = callee.choose(&self.id);
        let model = callee.version(version).current()?;
        let holder = self.holder(stage, &model).filter(|_| place.device.is_none());
        let why = match (&place.turn, holder) {
            (Some(_), _) => Why::Reserved,
            (None, None) if self.budget.is_some() => Why::Again,
            (None, None) => Why::Measured,
            (None, Some(_)) => Why::Input,
        };
        place.device = place.device.or(holder);
        let device = place.device.map(|device| (device, why));
        let started = Started { version, follows_input: holder.is_some(), ..Started::new(stage, place) };
        let (inputs, intermediate_bytes) = self.function_inputs(stage, callee, started.place.device)?;
        let started = Started { intermediate_bytes, ..started };
        let (used, retain) = (self.work.used[stage].clone(), self.work.retain[stage].clone());
        let (function, outputs) = (model.key.clone(), Some(used.clone()));
        let request = ChainRequest {
            stages: vec![StageRequest { function, inputs, outputs, retain }],
            class: Some(self.terms.class),
            priority: self.terms.priority,
            instance: None,
            deadline,
            times_launches: false,
        };
        let (class, permit) = (self.terms.class, self.permit.clone());
        let call = StageCall { model: model.clone(), class, request, device, permit };
        let stages = self.stages.clone();
        self.tasks.spawn(async move {
            let answer = stages.call(call).await;
            started.ended(answer.map(|result| result_of(&model, &used, result)))
        });
        Ok(())
    }

    /// The device to which a stage is bound because its largest input is there.
    fn holder(&self, stage: usize, model: &Model) -> Option<DeviceId> {
        if self.engine.devices().len() == 1 || self.unbound.contains(&stage) {
            return None;
        }
        let sources = self.work.graph.stages()[stage].inputs.iter();
        let on_devices = sources.filter_map(|source| self.intermediate(*source)?.device.as_ref());
        let largest = on_devices.filter(|tensor| tensor.saved().is_none()).max_by_key(|tensor| tensor.bytes())?;
        let device = largest.device();
        self.stages.may_bind(model, self.terms.class, device).then_some(device)
    }

    /// The inputs of a function that runs on a device, if that is given, and how many bytes of them
    /// other functions made.
    fn function_inputs(
        &mut self,
        stage: usize,
        callee: &Callee,
        device: Option<DeviceId>,
    ) -> Result<(Vec<StageInput>, u64), InvokeError> {
        let device = device.or_else(|| (self.engine.devices().len() == 1).then_some(DeviceId(0)));
        let work = self.work.clone();
        let (mut inputs, mut intermediate_bytes) = (Vec::new(), 0);
        for (index, source) in work.graph.stages()[stage].inputs.iter().enumerate() {
            let source = self.progress.resolve(&work.graph, *source);
            let made = self.intermediate(source);
            let in_host_memory = made.is_none_or(|made| made.host.is_some());
            let is_here = |tensor: &RetainedTensor| tensor.saved().is_some() || Some(tensor.device()) == device;
            let is_taken = |tensor: &&RetainedTensor| {
                !in_host_memory || is_here(tensor) && !tensor.is_lost() && !callee.takes_sizes_from(index)
            };
            let input = match made.and_then(|made| made.device.as_ref()).filter(is_taken) {
                Some(tensor) => StageInput::Retained(tensor.clone()),
                None => StageInput::Tensor(self.copy_of(source)?),
            };
            if let Source::Output { stage: maker, .. } = source
                && matches!(work.works[maker], StageWork::Function(_))
            {
                intermediate_bytes += match &input {
                    StageInput::Retained(tensor) => tensor.bytes(),
                    StageInput::Tensor(tensor) => tensor.bytes.len() as u64,
                    StageInput::Output { .. } => 0,
                };
            }
            inputs.push(input);
        }
        Ok((inputs, intermediate_bytes))
    }

    /// A copy of a tensor in host memory for a function.
    fn copy_of(&mut self, source: Source) -> Result<InputTensor, InvokeError> {
        let tensor = self.tensor(source);
        self.hold(tensor.bytes.len())?;
        Ok(Arc::unwrap_or_clone(tensor))
    }

    fn host_inputs(&self, stage: usize) -> Vec<Held> {
        self.work.graph.stages()[stage].inputs.iter().map(|source| self.tensor(*source)).collect()
    }

    /// The tensor that a stage made for a source; `None` for an input of the graph.
    fn intermediate(&self, source: Source) -> Option<&Intermediate> {
        match self.progress.resolve(&self.work.graph, source) {
            Source::Input(_) => None,
            Source::Output { stage, output } => Some(&self.outputs[stage][output]),
        }
    }

    /// The stages whose outputs a stage needs and that are lost, ascending.
    fn lost_makers(&self, stage: usize) -> Vec<usize> {
        let resolved = |source: &Source| match self.progress.resolve(&self.work.graph, *source) {
            Source::Output { stage, output } if self.outputs[stage][output].is_gone() => Some(stage),
            Source::Output { .. } | Source::Input(_) => None,
        };
        let mut makers: Vec<usize> = self.work.graph.stages()[stage].inputs.iter().filter_map(resolved).collect();
        makers.sort_unstable();
        makers.dedup();
        makers
    }

    /// Whether a failed stage can run again because its inputs are lost.
    pub(super) fn lost_its_inputs(&self, stage: usize) -> bool {
        !self.lost_makers(stage).is_empty()
    }

    /// Lets lost inputs of a stage be made again. Returns whether there are any; the stage is then
    /// started once they are there.
    ///
    /// # Errors
    /// If inputs of the stage were lost before.
    fn remakes_inputs(&mut self, stage: usize) -> Result<bool, InvokeError> {
        let lost = self.lost_makers(stage);
        if lost.is_empty() {
            return Ok(false);
        }
        let idle: Vec<usize> = lost.into_iter().filter(|maker| !self.remaking.contains(maker)).collect();
        if !idle.is_empty() && !self.remade.insert(stage) {
            let name = &self.work.graph.stages()[stage].name;
            return Err(InvokeError::Unavailable(format!("the inputs of stage `{name}` were lost twice")));
        }
        self.stalled.insert(stage);
        for maker in idle {
            self.remaking.insert(maker);
            self.start(maker, Place::default())?;
        }
        Ok(true)
    }

    /// Starts the stages that waited for inputs to be made again.
    pub(super) fn start_stalled(&mut self) -> Result<(), InvokeError> {
        std::mem::take(&mut self.stalled).into_iter().try_for_each(|stage| self.start(stage, Place::default()))
    }

    /// Releases device memory for which a stage, which has ended or was skipped, was the last.
    pub(super) fn release_inputs(&mut self, stage: usize) {
        let work = self.work.clone();
        for &maker in &work.graph.stages()[stage].needs {
            if work.graph.stages()[maker].needed_by.iter().all(|taker| self.needs_nothing(*taker)) {
                self.outputs[maker].iter_mut().for_each(|made| made.device = None);
            }
        }
    }

    /// Whether a stage needs no more inputs, and none of them replaces its outputs.
    fn needs_nothing(&self, stage: usize) -> bool {
        match self.progress.state(stage) {
            StageState::Ended => true,
            StageState::Skipped => self.work.graph.stages()[stage].otherwise.iter().all(Option::is_none),
            StageState::Waiting | StageState::Undecided | StageState::Ready => false,
        }
    }
}

fn result_of(model: &Model, used: &[usize], result: InvocationResult) -> StageResult {
    let InvocationResult { outputs, retained, handed_over_bytes, timing, preemptions, cold_start, device, .. } = result;
    let outputs = placed(&model.outputs, used, outputs, retained);
    StageResult { outputs, timing, preemptions, cold_start, device: Some(device), handed_over_bytes }
}
