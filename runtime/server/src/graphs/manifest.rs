//! Manifests of graphs, in TOML or JSON.
//!
//! ```toml
//! name = "vision"
//! deadline_ms = 50                     # for requests without a deadline
//! price_max = 0.001                    # for requests without a price limit, in units of account
//! prefer = "cost"                      # cheapest plan; or "speed" for the fastest
//!
//! [inputs]
//! x = { datatype = "FP32", shape = [1, 3, 224, 224] }    # -1 for a variable size
//!
//! [[stage]]
//! name = "small"
//! function = "mobilenet"
//! inputs = { image = "x" }             # input of the function = its source
//!
//! [[stage]]
//! name = "scores"
//! builtin = "softmax"
//! inputs = { x = "small.logits" }      # an output of an earlier stage
//!
//! [[stage]]
//! name = "confidence"
//! builtin = "max"
//! inputs = { x = "scores.y" }
//!
//! [[stage]]
//! name = "large"
//! function = "resnet50"
//! inputs = { image = "x" }
//! when = "confidence.y < 0.8"          # otherwise the stage is skipped
//! otherwise = { logits = "small.logits" }
//!
//! [outputs]
//! logits = "large.logits"
//! ```
//!
//! A stage with `wasm`, or with the built-in `decode_image`, `resize_image` or `tokenize`, is a CPU
//! stage (`programs.rs`).

pub(super) mod files;
pub(super) mod programs;

use super::builtin::Builtin;
use crate::limits::{GRAPH_MANIFEST_BYTES_MAX, GRAPH_TEXT_BYTES_MAX};
use crate::prices::price;
use atoll_core::Nanos;
use atoll_core::graphs::limits::{STAGES_MAX, TENSORS_MAX};
use atoll_core::graphs::{
    Compare, ConditionSpec, Form, Graph, GraphError, GraphSpec, Link, Prefer, Size, SourceName, StageSpec, TensorSpec,
    VERSIONS_MAX, WEIGHT_MAX, Weights,
};
use atoll_protocol::limits::RANK_MAX;
use atoll_protocol::{DataType, TensorMetadata};
use atoll_stages::Form as InputForm;
use files::Files;
use programs::{NAMES, ProgramWork, program_of};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

/// A manifest as the user writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    /// The deadline of requests that state no deadline, in milliseconds.
    deadline_ms: Option<f64>,
    /// The price limit of requests that state no price limit, in units of account.
    price_max: Option<f64>,
    /// Which plan is chosen if several meet the limits.
    #[serde(default)]
    prefer: Preference,
    pub(super) inputs: BTreeMap<String, InputForm>,
    #[serde(rename = "stage")]
    pub(crate) stages: Vec<ManifestStage>,
    pub(super) outputs: BTreeMap<String, String>,
    /// The files that its stages name, which `atoll graph deploy` adds.
    #[serde(default)]
    pub(crate) files: Files,
}

/// Which plan is chosen if several meet the limits of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Preference {
    /// The cheapest.
    #[default]
    Cost,
    /// The fastest.
    Speed,
}

/// A stage as the user writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManifestStage {
    pub(crate) name: String,
    pub(crate) function: Option<String>,
    /// Instead of `function`: several versions of it by name, with weights that divide the requests
    /// among them.
    #[serde(default)]
    pub(crate) versions: BTreeMap<String, u32>,
    pub(crate) builtin: Option<String>,
    /// Instead of `function`: the file of a WASM module.
    wasm: Option<String>,
    /// The options of a CPU stage.
    options: Option<serde_json::Value>,
    /// The outputs of a WASM module.
    #[serde(default)]
    outputs: BTreeMap<String, InputForm>,
    /// The number of elements that `top_k` keeps.
    k: Option<u64>,
    pub(super) inputs: BTreeMap<String, String>,
    pub(crate) when: Option<String>,
    #[serde(default)]
    otherwise: BTreeMap<String, String>,
}

impl ManifestStage {
    /// The names of the functions that it calls: one, or that of each version.
    pub(super) fn functions(&self) -> impl Iterator<Item = &String> {
        self.function.iter().chain(self.versions.keys())
    }
}

/// What a stage runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    /// Versions of a function by their names within the tenant, with their weights. Most stages
    /// have one.
    Function(Vec<(String, u32)>),
    Builtin(Builtin),
    Program(Box<ProgramWork>),
}

/// Why a manifest is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("the manifest has {0} bytes without its files; the limit is {GRAPH_MANIFEST_BYTES_MAX}")]
    TooLarge(usize),
    #[error("the manifest is not valid {language}: {reason}")]
    Syntax { language: &'static str, reason: String },
    #[error("`{source_text}` in {at} is neither an input of the graph nor STAGE.OUTPUT; the inputs are {known}")]
    Source { at: String, source_text: String, known: String },
    #[error("the shape of input `{input}` has the size {size}; use sizes of 0 or more, or -1 for a variable one")]
    Size { input: String, size: i64 },
    #[error("{what} has {count} entries; the limit is {max}")]
    TooMany { what: String, count: usize, max: usize },
    #[error("{what} names the source `{source_name}` twice; each tensor can be named once there")]
    SameTwice { what: String, source_name: String },
    #[error("`deadline_ms = {0}` is not a time above 0")]
    Deadline(f64),
    #[error("`price_max = {0}` is not a price of 0 or more")]
    Price(f64),
    #[error("stage `{0}` needs one of `function`, `versions`, `builtin` and `wasm`")]
    NoWork(String),
    #[error("the files of the manifest: {0}")]
    Files(String),
    #[error("stage `{stage}`: {reason}")]
    Builtin { stage: String, reason: String },
    #[error("the versions of stage `{stage}`: {reason}")]
    Versions { stage: String, reason: String },
    #[error("stage `{stage}`: the condition `{text}` has to be a source, one of < <= > >=, and a number")]
    Condition { stage: String, text: String },
    #[error("stage `{stage}` calls function `{function}`, which {reason}")]
    Function { stage: String, function: String, reason: String },
    /// The graph is not as the configuration of its ensemble says; the text is the reason.
    #[error("{0}")]
    Ensemble(String),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The inputs and outputs of a function, in order.
pub(crate) type Signature = (Vec<TensorMetadata>, Vec<TensorMetadata>);

/// Parses a manifest. Text that begins with `{` is JSON.
pub(crate) fn parse(text: &str) -> Result<Manifest, ManifestError> {
    if text.len() > GRAPH_TEXT_BYTES_MAX {
        return Err(ManifestError::TooLarge(text.len()));
    }
    let syntax = |language, reason: String| ManifestError::Syntax { language, reason: reason.trim_end().into() };
    let manifest: Manifest = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| syntax("JSON", error.to_string()))?,
        false => toml::from_str(text).map_err(|error| syntax("TOML", error.to_string()))?,
    };
    // Four characters of base64 are three bytes.
    let rest = text.len().saturating_sub(files::bytes_of(&manifest.files) / 3 * 4);
    if rest > GRAPH_MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLarge(rest));
    }
    Ok(manifest)
}

impl Manifest {
    /// Checks the manifest against the tensors of its functions. `signature` returns the tensors of
    /// a function, or the reason why it cannot be called.
    pub(crate) fn check(
        &self,
        mut signature: impl FnMut(&str) -> Result<Signature, String>,
    ) -> Result<(Graph, Vec<Work>), ManifestError> {
        self.check_counts()?;
        files::check(&self.files, self.stages.iter().filter_map(ManifestStage::file)).map_err(ManifestError::Files)?;
        let mut spec = GraphSpec { name: self.name.clone(), ..GraphSpec::default() };
        for (name, form) in &self.inputs {
            if let Some(&size) = form.shape.iter().find(|size| **size < -1) {
                return Err(ManifestError::Size { input: name.clone(), size });
            }
            spec.inputs.push(TensorSpec { name: name.clone(), form: core_form(form.datatype, &form.shape) });
        }
        if let Some(ms) = self.deadline_ms {
            if ms.is_nan() || ms <= 0.0 {
                return Err(ManifestError::Deadline(ms));
            }
            // The conversion saturates; the check of the graph refuses a deadline that is too long.
            spec.deadline = Some(Nanos((ms * 1e6).max(1.0) as u64));
        }
        let checked = |units: f64| price(units).ok_or(ManifestError::Price(units));
        spec.price_max = self.price_max.map(checked).transpose()?;
        spec.prefer = Some(match self.prefer {
            Preference::Cost => Prefer::Cost,
            Preference::Speed => Prefer::Speed,
        });
        let mut works = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let (work, described) = self.stage(stage, &spec, &mut signature)?;
            works.push(work);
            spec.stages.push(described);
        }
        spec.outputs = self.links(&self.outputs, "the outputs")?;
        Ok((Graph::new(spec)?, works))
    }

    /// Checks all counts before anything is built from them. Also checks that no list of links
    /// names a source twice, so that a tensor is copied at most once for each stage.
    fn check_counts(&self) -> Result<(), ManifestError> {
        let within = |what: &str, count: usize, max: usize| match count > max {
            true => Err(ManifestError::TooMany { what: what.into(), count, max }),
            false => Ok(()),
        };
        within("the graph's `stages`", self.stages.len(), STAGES_MAX)?;
        within("the graph's `inputs`", self.inputs.len(), TENSORS_MAX)?;
        for (name, form) in &self.inputs {
            within(&format!("the shape of input `{name}`"), form.shape.len(), RANK_MAX)?;
        }
        let stages = self.stages.iter().map(|stage| (format!("stage `{}`", stage.name), &stage.inputs));
        for (what, links) in stages.chain([("the graph's `outputs`".into(), &self.outputs)]) {
            within(&what, links.len(), TENSORS_MAX)?;
            let mut sources = HashSet::new();
            if let Some(twice) = links.values().find(|source| !sources.insert(source.as_str())) {
                return Err(ManifestError::SameTwice { what, source_name: twice.clone() });
            }
        }
        Ok(())
    }

    fn stage(
        &self,
        stage: &ManifestStage,
        before: &GraphSpec,
        signature: &mut impl FnMut(&str) -> Result<Signature, String>,
    ) -> Result<(Work, StageSpec), ManifestError> {
        let about = format!("stage `{}`", stage.name);
        let from = self.links(&stage.inputs, &about)?;
        let refuse = |reason| ManifestError::Builtin { stage: stage.name.clone(), reason };
        let versions = match &stage.function {
            Some(function) => vec![(function.clone(), 1)],
            None => stage.versions.clone().into_iter().collect(),
        };
        let named =
            [stage.function.is_some(), !stage.versions.is_empty(), stage.builtin.is_some(), stage.wasm.is_some()];
        if named.iter().filter(|is_named| **is_named).count() != 1 {
            return Err(ManifestError::NoWork(stage.name.clone()));
        }
        let forms: Vec<(String, Option<Form>)> =
            from.iter().map(|link| (link.name.clone(), form_of(before, &link.from))).collect();
        let program = program_of(stage, &self.files, &forms).map_err(refuse)?;
        let is_plain = stage.options.is_none() && stage.outputs.is_empty();
        let (work, inputs, outputs) = match (program, &stage.builtin) {
            (Some(program), _) => {
                let tensors = programs::specs;
                let (inputs, outputs) = (tensors(&program.signature.inputs), tensors(&program.signature.outputs));
                (Work::Program(Box::new(program)), inputs, outputs)
            }
            (None, _) if !is_plain => {
                let text =
                    format!("`options` belong to stages with `wasm` or {}, `outputs` to `wasm`", NAMES.join(", "));
                return Err(refuse(text));
            }
            (None, Some(name)) => {
                let builtin = Builtin::parse(name, stage.k).map_err(refuse)?;
                let (inputs, outputs) = builtin.signature(&forms).map_err(refuse)?;
                (Work::Builtin(builtin), inputs, outputs)
            }
            (None, None) if stage.k.is_none() => {
                let (inputs, outputs) = signature_of(stage, &versions, signature)?;
                (Work::Function(versions), specs(&inputs), specs(&outputs))
            }
            (None, None) => return Err(refuse("`k` belongs to the built-in `top_k`".into())),
        };
        let described = StageSpec {
            name: stage.name.clone(),
            function: match &work {
                Work::Function(versions) => {
                    versions.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("|")
                }
                Work::Builtin(builtin) => builtin.name().into(),
                Work::Program(program) => program.label.clone(),
            },
            inputs,
            outputs,
            from,
            when: stage.when.as_deref().map(|text| self.condition(stage, text)).transpose()?,
            otherwise: self.links(&stage.otherwise, &format!("`otherwise` of {about}"))?,
            batch_max: 1,
            cpu_only: stage.builtin.is_some() || stage.wasm.is_some(),
        };
        Ok((work, described))
    }

    fn links(&self, links: &BTreeMap<String, String>, at: &str) -> Result<Vec<Link>, ManifestError> {
        let link = |(name, from): (&String, &String)| Ok(Link { name: name.clone(), from: self.source(from, at)? });
        links.iter().map(link).collect()
    }

    fn source(&self, text: &str, at: &str) -> Result<SourceName, ManifestError> {
        // Names of inputs may contain dots; names of stages do not.
        if self.inputs.contains_key(text) {
            return Ok(SourceName::Input(text.into()));
        }
        match text.split_once('.') {
            Some((stage, output)) => Ok(SourceName::Output { stage: stage.into(), output: output.into() }),
            None => {
                let known = self.inputs.keys().map(|input| format!("`{input}`")).collect::<Vec<_>>().join(", ");
                Err(ManifestError::Source { at: at.into(), source_text: text.into(), known })
            }
        }
    }

    /// Parses `STAGE.OUTPUT < NUMBER`.
    fn condition(&self, stage: &ManifestStage, text: &str) -> Result<ConditionSpec, ManifestError> {
        let bad = || ManifestError::Condition { stage: stage.name.clone(), text: text.into() };
        let mut words = text.split_whitespace();
        let (Some(value), Some(compare), Some(threshold), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad());
        };
        let compare = match compare {
            "<" => Compare::Less,
            "<=" => Compare::AtMost,
            ">" => Compare::More,
            ">=" => Compare::AtLeast,
            _ => return Err(bad()),
        };
        let threshold = threshold.parse().map_err(|_| bad())?;
        let value = self.source(value, &format!("the condition of stage `{}`", stage.name))?;
        Ok(ConditionSpec { value, compare, threshold })
    }
}

/// The message for invalid weights.
pub(super) fn bad_weights() -> String {
    format!("state 1 to {VERSIONS_MAX} weights of at most {WEIGHT_MAX}, at least one of them above 0")
}

/// The tensors of a stage's function. All its versions must have the same ones.
fn signature_of(
    stage: &ManifestStage,
    versions: &[(String, u32)],
    signature: &mut impl FnMut(&str) -> Result<Signature, String>,
) -> Result<Signature, ManifestError> {
    let bad = |reason| ManifestError::Versions { stage: stage.name.clone(), reason };
    if Weights::new(&versions.iter().map(|(_, weight)| *weight).collect::<Vec<_>>()).is_none() {
        return Err(bad(bad_weights()));
    }
    let form = |tensors: &[TensorMetadata]| -> Vec<(String, DataType, Vec<i64>)> {
        tensors.iter().map(|tensor| (tensor.name.clone(), tensor.datatype, tensor.shape.clone())).collect()
    };
    let mut first: Option<(&str, Signature)> = None;
    for (function, _) in versions {
        let found = signature(function).map_err(|reason| ManifestError::Function {
            stage: stage.name.clone(),
            function: function.clone(),
            reason,
        })?;
        match &first {
            None => first = Some((function.as_str(), found)),
            Some((_, known)) if form(&known.0) == form(&found.0) && form(&known.1) == form(&found.1) => {}
            Some((other, _)) => return Err(bad(format!("`{function}` has other tensors than `{other}`"))),
        }
    }
    first.map(|(_, signature)| signature).ok_or_else(|| bad(bad_weights()))
}

/// The form of a source among the inputs and stages added so far; `None` if it does not exist,
/// which the check of the graph reports.
fn form_of(spec: &GraphSpec, source: &SourceName) -> Option<Form> {
    let find = |tensors: &[TensorSpec], name: &str| {
        tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.form.clone())
    };
    match source {
        SourceName::Input(input) => find(&spec.inputs, input),
        SourceName::Output { stage, output } => {
            find(&spec.stages.iter().find(|other| other.name == *stage)?.outputs, output)
        }
    }
}

fn specs(tensors: &[TensorMetadata]) -> Vec<TensorSpec> {
    let spec = |tensor: &TensorMetadata| TensorSpec {
        name: tensor.name.clone(),
        form: core_form(tensor.datatype, &tensor.shape),
    };
    tensors.iter().map(spec).collect()
}

fn core_form(datatype: DataType, shape: &[i64]) -> Form {
    let size = |size: &i64| u64::try_from(*size).map_or(Size::Any, Size::Fixed);
    Form { element: datatype.name().into(), shape: shape.iter().map(size).collect() }
}

/// The metadata of a tensor of a graph.
pub(super) fn metadata(tensor: &TensorSpec) -> TensorMetadata {
    let size = |size: &Size| match size {
        Size::Fixed(size) => i64::try_from(*size).unwrap_or(i64::MAX),
        Size::Any => -1,
    };
    TensorMetadata {
        name: tensor.name.clone(),
        // The names of elements are those of data types, so parsing succeeds.
        datatype: tensor.form.element.parse().unwrap_or(DataType::Bytes),
        shape: tensor.form.shape.iter().map(size).collect(),
        symbols: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
