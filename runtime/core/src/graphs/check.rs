//! Checks descriptions of graphs. Cycles are searched before the order of stages is checked, so
//! that a cycle is reported as a cycle and not as a wrong order.

use super::error::GraphError;
use super::graph::{Condition, Graph, GraphOutput, Source, Stage};
use super::limits::{BATCH_MAX, DEADLINE_NS_MAX, NAME_BYTES_MAX, STAGES_MAX, TENSORS_MAX};
use super::spec::{ConditionSpec, GraphSpec, Link, SourceName, StageSpec};
use super::tensor::{Form, TensorSpec};

pub(super) fn check(spec: GraphSpec) -> Result<Graph, GraphError> {
    check_counts_and_names(&spec)?;
    check_acyclic(&spec.stages)?;
    let mut stages: Vec<Stage> = Vec::with_capacity(spec.stages.len());
    for (index, stage) in spec.stages.iter().enumerate() {
        stages.push(Check { spec: &spec, before: index }.stage(stage)?);
    }
    let all = Check { spec: &spec, before: spec.stages.len() };
    let outputs: Vec<GraphOutput> = spec.outputs.iter().map(|link| all.output(link)).collect::<Result<_, _>>()?;
    check_substitutes(&spec, &stages, &outputs)?;
    connect(&mut stages);
    check_uses(&stages, &outputs)?;
    Ok(Graph {
        name: spec.name,
        inputs: spec.inputs,
        stages,
        outputs,
        deadline: spec.deadline,
        price_max: spec.price_max,
        prefer: spec.prefer,
    })
}

fn check_counts_and_names(spec: &GraphSpec) -> Result<(), GraphError> {
    if spec.stages.is_empty() {
        return Err(GraphError::NoStages);
    }
    if spec.stages.len() > STAGES_MAX {
        return Err(GraphError::TooManyStages(spec.stages.len()));
    }
    if spec.outputs.is_empty() {
        return Err(GraphError::NoOutputs);
    }
    match spec.deadline.map(|deadline| deadline.0) {
        Some(0) => return Err(GraphError::ZeroDeadline),
        Some(ns) if ns > DEADLINE_NS_MAX => return Err(GraphError::LongDeadline(ns)),
        _ => {}
    }
    let graph = "the graph";
    check_names("a graph", graph, "graphs", [spec.name.as_str()].into_iter())?;
    check_names("an input", graph, "inputs", spec.inputs.iter().map(|tensor| tensor.name.as_str()))?;
    check_names("a stage", graph, "stages", spec.stages.iter().map(|stage| stage.name.as_str()))?;
    check_names("an output", graph, "outputs", spec.outputs.iter().map(|link| link.name.as_str()))?;
    for stage in &spec.stages {
        let of = format!("stage `{}`", stage.name);
        check_names("an input", &of, "inputs", stage.inputs.iter().map(|tensor| tensor.name.as_str()))?;
        check_names("an output", &of, "outputs", stage.outputs.iter().map(|tensor| tensor.name.as_str()))?;
        check_names("an input", &of, "sources for inputs", stage.from.iter().map(|link| link.name.as_str()))?;
        check_names("an output", &of, "substitutes", stage.otherwise.iter().map(|link| link.name.as_str()))?;
        if stage.batch_max > BATCH_MAX {
            return Err(GraphError::BadBatch { stage: stage.name.clone(), batch: stage.batch_max });
        }
    }
    Ok(())
}

fn check_names<'a>(
    what: &'static str,
    of: &str,
    several: &'static str,
    names: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), GraphError> {
    if names.len() > TENSORS_MAX {
        return Err(GraphError::TooManyTensors { of: of.into(), count: names.len() });
    }
    let mut sorted: Vec<&str> = Vec::with_capacity(names.len());
    for name in names {
        let has_dot = what == "a stage" && name.contains('.');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || has_dot || name.chars().any(char::is_control) {
            let name = name.chars().take(NAME_BYTES_MAX).flat_map(char::escape_debug).collect();
            return Err(GraphError::BadName { what, name });
        }
        sorted.push(name);
    }
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(GraphError::Duplicate { what: several, name: pair[0].into(), of: of.into() }),
        None => Ok(()),
    }
}

/// All sources of a stage: of its inputs, its substitutes and its condition.
fn sources(stage: &StageSpec) -> impl Iterator<Item = &SourceName> {
    let links = stage.from.iter().chain(&stage.otherwise).map(|link| &link.from);
    links.chain(stage.when.iter().map(|condition| &condition.value))
}

/// Depth-first search that keeps its path. A stage that is already on the path closes a cycle. The
/// path has at most [`STAGES_MAX`] stages.
fn check_acyclic(stages: &[StageSpec]) -> Result<(), GraphError> {
    let index = |name: &str| stages.iter().position(|stage| stage.name == name);
    let mut is_done = vec![false; stages.len()];
    for start in 0..stages.len() {
        let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut next = Some(start).filter(|start| !is_done[*start]);
        loop {
            if let Some(stage) = next.take() {
                if let Some(at) = path.iter().position(|(on_path, _)| *on_path == stage) {
                    let cycle = path[at..].iter().map(|(on_path, _)| *on_path).chain([stage]);
                    return Err(GraphError::Cycle(cycle.map(|stage| stages[stage].name.clone()).collect()));
                }
                let needed = sources(&stages[stage]).filter_map(|source| match source {
                    SourceName::Output { stage, .. } => index(stage),
                    SourceName::Input(_) => None,
                });
                path.push((stage, needed.filter(|needed| !is_done[*needed]).collect()));
            }
            let Some((stage, left)) = path.last_mut() else { break };
            next = left.pop().filter(|needed| !is_done[*needed]);
            if next.is_none() && left.is_empty() {
                is_done[*stage] = true;
                path.pop();
            }
        }
    }
    Ok(())
}

/// Resolves names at one place of the description.
struct Check<'a> {
    spec: &'a GraphSpec,
    /// Only stages before this index may be named.
    before: usize,
}

impl Check<'_> {
    fn stage(&self, stage: &StageSpec) -> Result<Stage, GraphError> {
        let about = format!("stage `{}`", stage.name);
        if let Some(unknown) = stage.from.iter().find(|link| find(&stage.inputs, &link.name).is_none()) {
            let known = names(&stage.inputs);
            return Err(GraphError::UnknownTensor { at: about, name: unknown.name.clone(), known });
        }
        let input = |input: &TensorSpec| {
            let link = stage.from.iter().find(|link| link.name == input.name);
            let link =
                link.ok_or_else(|| GraphError::NoSource { stage: stage.name.clone(), input: input.name.clone() })?;
            self.fitting(&format!("input `{}` of {about}", input.name), &link.from, &input.form)
        };
        let inputs = stage.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let when = stage.when.as_ref().map(|condition| self.condition(&stage.name, condition)).transpose()?;
        if when.is_none() && !stage.otherwise.is_empty() {
            return Err(GraphError::NeedlessSubstitute { stage: stage.name.clone() });
        }
        let mut otherwise = vec![None; stage.outputs.len()];
        for link in &stage.otherwise {
            let output = find(&stage.outputs, &link.name).ok_or_else(|| GraphError::UnknownTensor {
                at: format!("`otherwise` of {about}"),
                name: link.name.clone(),
                known: names(&stage.outputs),
            })?;
            let at = format!("output `{}` of {about}", link.name);
            otherwise[output] = Some(self.fitting(&at, &link.from, &stage.outputs[output].form)?);
        }
        let mut needs: Vec<usize> = inputs
            .iter()
            .chain(otherwise.iter().flatten())
            .chain(when.iter().map(|condition| &condition.value))
            .filter_map(|source| source.stage())
            .collect();
        needs.sort_unstable();
        needs.dedup();
        Ok(Stage {
            name: stage.name.clone(),
            function: stage.function.clone(),
            inputs,
            when,
            otherwise,
            batch_max: stage.batch_max.max(1),
            cpu_only: stage.cpu_only,
            needs,
            needed_by: Vec::new(),
        })
    }

    fn output(&self, link: &Link) -> Result<GraphOutput, GraphError> {
        let (source, form) = self.resolve(&format!("output `{}` of the graph", link.name), &link.from)?;
        Ok(GraphOutput { tensor: TensorSpec { name: link.name.clone(), form: form.clone() }, source })
    }

    fn condition(&self, stage: &str, condition: &ConditionSpec) -> Result<Condition, GraphError> {
        let ConditionSpec { value, compare, threshold } = condition;
        if !threshold.is_finite() {
            return Err(GraphError::BadThreshold { stage: stage.into(), threshold: *threshold });
        }
        let (source, form) = self.resolve(&format!("the condition of stage `{stage}`"), value)?;
        if !form.may_be_scalar() || !form.is_number() {
            let (source, form) = (text(value), form.to_string());
            return Err(GraphError::NotAScalar { stage: stage.into(), source, form });
        }
        Ok(Condition { value: source, compare: *compare, threshold: *threshold })
    }

    fn fitting(&self, at: &str, name: &SourceName, wanted: &Form) -> Result<Source, GraphError> {
        let (source, form) = self.resolve(at, name)?;
        if form.fits(wanted) {
            return Ok(source);
        }
        let (has, wants, fits) = (form.to_string(), wanted.to_string(), self.fits(name, form));
        Err(GraphError::Mismatch { at: at.into(), source: text(name), has, wants, fits })
    }

    /// Another input that takes the same tensor and accepts its form, for the error message.
    fn fits(&self, name: &SourceName, form: &Form) -> Option<String> {
        self.spec.stages.iter().find_map(|stage| {
            let takes = |link: &&Link| {
                link.from == *name
                    && find(&stage.inputs, &link.name).is_some_and(|index| form.fits(&stage.inputs[index].form))
            };
            stage.from.iter().find(takes).map(|link| format!("input `{}` of stage `{}`", link.name, stage.name))
        })
    }

    fn resolve(&self, at: &str, name: &SourceName) -> Result<(Source, &Form), GraphError> {
        match name {
            SourceName::Input(input) => {
                let index = find(&self.spec.inputs, input).ok_or_else(|| GraphError::MissingInput {
                    at: at.into(),
                    input: input.clone(),
                    known: names(&self.spec.inputs),
                })?;
                Ok((Source::Input(index), &self.spec.inputs[index].form))
            }
            SourceName::Output { stage: source, output } => {
                let stage = self.spec.stages.iter().position(|stage| stage.name == *source);
                let stage = stage.ok_or_else(|| GraphError::MissingStage { at: at.into(), source: source.clone() })?;
                if stage >= self.before {
                    let own = self.spec.stages[self.before].name.clone();
                    return Err(GraphError::LaterStage { stage: own, source: source.clone() });
                }
                let outputs = &self.spec.stages[stage].outputs;
                let index = find(outputs, output).ok_or_else(|| GraphError::MissingOutput {
                    at: at.into(),
                    stage: source.clone(),
                    output: output.clone(),
                    known: names(outputs),
                })?;
                Ok((Source::Output { stage, output: index }, &outputs[index].form))
            }
        }
    }
}

impl Source {
    /// The index of the stage if the source is an output of a stage.
    pub fn stage(&self) -> Option<usize> {
        match self {
            Source::Input(_) => None,
            Source::Output { stage, .. } => Some(*stage),
        }
    }
}

/// Checks that each used output of a stage that may be skipped has a substitute.
fn check_substitutes(spec: &GraphSpec, stages: &[Stage], outputs: &[GraphOutput]) -> Result<(), GraphError> {
    let within = stages.iter().flat_map(|stage| {
        let value = stage.when.iter().map(|condition| &condition.value);
        let used = stage.inputs.iter().chain(stage.otherwise.iter().flatten()).chain(value);
        used.map(|source| (*source, format!("stage `{}`", stage.name)))
    });
    let returned = outputs.iter().map(|output| (output.source, format!("output `{}`", output.tensor.name)));
    for (source, used_by) in within.chain(returned) {
        let Source::Output { stage, output } = source else { continue };
        if stages[stage].when.is_some() && stages[stage].otherwise[output].is_none() {
            let output = spec.stages[stage].outputs[output].name.clone();
            return Err(GraphError::NoSubstitute { stage: stages[stage].name.clone(), output, used_by });
        }
    }
    Ok(())
}

fn connect(stages: &mut [Stage]) {
    for index in 0..stages.len() {
        for needed in stages[index].needs.clone() {
            stages[needed].needed_by.push(index);
        }
    }
}

fn check_uses(stages: &[Stage], outputs: &[GraphOutput]) -> Result<(), GraphError> {
    let is_output = |index: usize| outputs.iter().any(|output| output.source.stage() == Some(index));
    let unused = stages.iter().enumerate().find(|(index, stage)| stage.needed_by.is_empty() && !is_output(*index));
    unused.map_or(Ok(()), |(_, stage)| Err(GraphError::Unused { stage: stage.name.clone() }))
}

fn find(tensors: &[TensorSpec], name: &str) -> Option<usize> {
    tensors.iter().position(|tensor| tensor.name == name)
}

fn names(tensors: &[TensorSpec]) -> String {
    if tensors.is_empty() {
        return "none".into();
    }
    tensors.iter().map(|tensor| format!("`{}`", tensor.name)).collect::<Vec<_>>().join(", ")
}

fn text(source: &SourceName) -> String {
    match source {
        SourceName::Input(input) => format!("input `{input}` of the graph"),
        SourceName::Output { stage, output } => format!("output `{output}` of stage `{stage}`"),
    }
}
