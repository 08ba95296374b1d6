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

use super::builtin::Builtin;
use crate::limits::GRAPH_MANIFEST_BYTES_MAX;
use crate::prices::price;
use atoll_core::Nanos;
use atoll_core::graphs::limits::{STAGES_MAX, TENSORS_MAX};
use atoll_core::graphs::{
    Compare, ConditionSpec, Form, Graph, GraphError, GraphSpec, Link, Prefer, Size, SourceName, StageSpec, TensorSpec,
    VERSIONS_MAX, WEIGHT_MAX, Weights,
};
use atoll_protocol::limits::RANK_MAX;
use atoll_protocol::{DataType, TensorMetadata};
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
    inputs: BTreeMap<String, InputForm>,
    #[serde(rename = "stage")]
    pub(crate) stages: Vec<ManifestStage>,
    outputs: BTreeMap<String, String>,
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

/// Type and shape of an input.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputForm {
    datatype: DataType,
    shape: Vec<i64>,
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
    /// The number of elements that `top_k` keeps.
    k: Option<u64>,
    inputs: BTreeMap<String, String>,
    pub(crate) when: Option<String>,
    #[serde(default)]
    otherwise: BTreeMap<String, String>,
}

/// What a stage runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Versions of a function by their names within the tenant, with their weights. Most stages
    /// have one.
    Function(Vec<(String, u32)>),
    Builtin(Builtin),
}

/// Why a manifest is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("the manifest has {0} bytes; the limit is {GRAPH_MANIFEST_BYTES_MAX}")]
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
    #[error("stage `{0}` needs one of `function`, `versions` and `builtin`")]
    NoWork(String),
    #[error("stage `{stage}`: {reason}")]
    Builtin { stage: String, reason: String },
    #[error("the versions of stage `{stage}`: {reason}")]
    Versions { stage: String, reason: String },
    #[error("stage `{stage}`: the condition `{text}` has to be a source, one of < <= > >=, and a number")]
    Condition { stage: String, text: String },
    #[error("stage `{stage}` calls function `{function}`, which {reason}")]
    Function { stage: String, function: String, reason: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The inputs and outputs of a function, in order.
pub(crate) type Signature = (Vec<TensorMetadata>, Vec<TensorMetadata>);

/// Parses a manifest. Text that begins with `{` is JSON.
pub(crate) fn parse(text: &str) -> Result<Manifest, ManifestError> {
    if text.len() > GRAPH_MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLarge(text.len()));
    }
    let syntax = |language, reason: String| ManifestError::Syntax { language, reason: reason.trim_end().into() };
    match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| syntax("JSON", error.to_string())),
        false => toml::from_str(text).map_err(|error| syntax("TOML", error.to_string())),
    }
}

impl Manifest {
    /// Checks the manifest against the tensors of its functions. `signature` returns the tensors of
    /// a function, or the reason why it cannot be called.
    pub(crate) fn check(
        &self,
        mut signature: impl FnMut(&str) -> Result<Signature, String>,
    ) -> Result<(Graph, Vec<Work>), ManifestError> {
        self.check_counts()?;
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
        let is_both = stage.function.is_some() && !stage.versions.is_empty();
        let (work, inputs, outputs) = match (versions.is_empty() || is_both, &stage.builtin) {
            (false, None) if stage.k.is_none() => {
                let (inputs, outputs) = signature_of(stage, &versions, signature)?;
                (Work::Function(versions), specs(&inputs), specs(&outputs))
            }
            (false, None) => return Err(refuse("`k` belongs to the built-in `top_k`".into())),
            (true, Some(name)) if !is_both => {
                let builtin = Builtin::parse(name, stage.k).map_err(refuse)?;
                let forms: Vec<(String, Option<Form>)> =
                    from.iter().map(|link| (link.name.clone(), form_of(before, &link.from))).collect();
                let (inputs, outputs) = builtin.signature(&forms).map_err(refuse)?;
                (Work::Builtin(builtin), inputs, outputs)
            }
            _ => return Err(ManifestError::NoWork(stage.name.clone())),
        };
        let described = StageSpec {
            name: stage.name.clone(),
            function: match &work {
                Work::Function(versions) => {
                    versions.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("|")
                }
                Work::Builtin(builtin) => builtin.name().into(),
            },
            inputs,
            outputs,
            from,
            when: stage.when.as_deref().map(|text| self.condition(stage, text)).transpose()?,
            otherwise: self.links(&stage.otherwise, &format!("`otherwise` of {about}"))?,
            batch_max: 1,
            cpu_only: stage.builtin.is_some(),
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
mod tests {
    use super::*;
    use atoll_core::graphs::Cost;

    const CASCADE: &str = r#"
        name = "cascade"
        deadline_ms = 50
        [inputs]
        x = { datatype = "FP32", shape = [1, 4] }
        [[stage]]
        name = "small"
        function = "f"
        inputs = { in = "x" }
        [[stage]]
        name = "top"
        builtin = "max"
        inputs = { x = "small.out" }
        [[stage]]
        name = "large"
        function = "f"
        inputs = { in = "x" }
        when = "top.y < 0.8"
        otherwise = { out = "small.out" }
        [outputs]
        y = "large.out"
    "#;

    fn signature(function: &str) -> Result<Signature, String> {
        let tensor = |name: &str| TensorMetadata {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: vec![-1, 4],
            symbols: Vec::new(),
        };
        match function {
            "f" | "f2" => Ok((vec![tensor("in")], vec![tensor("out")])),
            "other" => Ok((vec![tensor("in")], vec![tensor("out"), tensor("more")])),
            _ => Err("is not deployed".into()),
        }
    }

    fn refusal(text: &str) -> String {
        parse(text).and_then(|manifest| manifest.check(signature)).expect_err("a bad manifest").to_string()
    }

    #[test]
    fn a_cascade_is_read() {
        let (graph, works) = parse(CASCADE).unwrap().check(signature).unwrap();
        let f = || Work::Function(vec![("f".into(), 1)]);
        assert_eq!(works, [f(), Work::Builtin(Builtin::Max), f()]);
        assert_eq!((graph.deadline(), graph.price_max()), (Some(Nanos(50_000_000)), None));
        let priced = CASCADE.replacen("deadline_ms = 50", "price_max = 0.5\nprefer = \"speed\"", 1);
        let (graph, _) = parse(&priced).unwrap().check(signature).unwrap();
        assert_eq!((graph.price_max().map(Cost::units), graph.prefer()), (Some(0.5), Some(Prefer::Speed)));
        let (graph, _) = parse(CASCADE).unwrap().check(signature).unwrap();
        assert_eq!(graph.stages()[2].needs, [0, 1]);
    }

    #[test]
    fn a_stage_may_have_versions() {
        let text = CASCADE.replacen("function = \"f\"", "versions = { f2 = 10, f = 90 }", 1);
        let (graph, works) = parse(&text).unwrap().check(signature).unwrap();
        assert_eq!(works[0], Work::Function(vec![("f".into(), 90), ("f2".into(), 10)]));
        assert_eq!(graph.stages()[0].function, "f|f2");
    }

    #[test]
    fn json_is_read_as_well() {
        let json = r#"{"name": "one", "inputs": {"x": {"datatype": "FP32", "shape": [-1, 4]}},
            "stage": [{"name": "a", "function": "f", "inputs": {"in": "x"}}], "outputs": {"y": "a.out"}}"#;
        assert!(parse(json).unwrap().check(signature).is_ok());
        assert!(refusal("{").contains("not valid JSON"));
    }

    #[test]
    fn bad_manifests_are_refused_with_the_cause() {
        for (from, to, expected) in [
            ("function = \"f\"", "function = \"g\"", "stage `small` calls function `g`, which is not deployed"),
            ("in = \"x\"", "in = \"z\"", "`z` in stage `small` is neither an input of the graph nor STAGE.OUTPUT"),
            ("in = \"x\"", "in = \"large.out\"", "stages form a cycle"),
            ("shape = [1, 4]", "shape = [1, 5]", "wants FP32[?, 4], but input `x` of the graph is FP32[1, 5]"),
            ("shape = [1, 4]", "shape = [1, -4]", "the size -4"),
            ("< 0.8", "< nan", "use a finite number"),
            ("< 0.8", "= 0.8", "has to be a source"),
            ("deadline_ms = 50", "deadline_ms = 0", "not a time above 0"),
            ("deadline_ms = 50", "deadline_ms = 1e30", "above the limit"),
            ("deadline_ms = 50", "price_max = -1.0", "not a price of 0 or more"),
            ("deadline_ms = 50", "prefer = \"luck\"", "not valid TOML"),
            ("builtin = \"max\"", "builtin = \"min\"", "stage `top`: there is no built-in `min`"),
            ("builtin = \"max\"", "", "needs one of `function`, `versions` and `builtin`"),
            ("function = \"f\"", "function = \"f\"\nversions = { f = 1 }", "needs one of"),
            ("function = \"f\"", "versions = { f = 0 }", "at least one of them above 0"),
            ("function = \"f\"", "versions = { f = 1, other = 1 }", "`other` has other tensors than `f`"),
            ("deadline_ms", "dead_line", "not valid TOML"),
        ] {
            let text = refusal(&CASCADE.replacen(from, to, 1));
            assert!(text.contains(expected), "{to}: {text}");
        }
        assert!(refusal(&" ".repeat(GRAPH_MANIFEST_BYTES_MAX + 1)).contains("the limit is"));
    }
}
