//! Ensembles that call ensembles. The steps of the called ensemble take the place of the step that
//! calls it, so a run is that of one graph.

use super::manifest::{Manifest, ManifestError, ManifestStage};
use crate::limits::ENSEMBLES_DEPTH_MAX;
use atoll_core::graphs::limits::STAGES_MAX;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

type Checked<T> = Result<T, ManifestError>;

/// Names of classes by output.
pub(super) type Labels = BTreeMap<String, Vec<String>>;

/// An ensemble that a step calls.
pub(super) struct Called {
    pub(super) name: String,
    pub(super) manifest: Manifest,
    /// Its limit of rows.
    pub(super) rows: Option<NonZeroU32>,
    /// Names of classes from its own files.
    pub(super) labels: Labels,
}

/// An ensemble with the steps of those that it calls.
pub(super) struct Expanded {
    pub(super) manifest: Manifest,
    /// Names of classes of its outputs that a called ensemble makes and has names for.
    pub(super) labels: Labels,
}

/// Puts the steps of called ensembles in the place of the steps that call them. `rows` is the limit of
/// rows of the ensemble; `find` returns the ensemble that a step calls by this name, and nothing if
/// the step calls a model.
///
/// # Errors
/// If ensembles call each other in a circle or too deep, or one does not fit its step.
pub(super) fn expand(
    manifest: &Manifest,
    rows: Option<NonZeroU32>,
    find: &mut dyn FnMut(&str) -> Option<Called>,
) -> Checked<Expanded> {
    let mut expansion = Expansion { rows, find, way: vec![manifest.name.clone()], calls: 0 };
    let Steps { stages, outputs, labels } = expansion.steps(manifest)?;
    let mut manifest = manifest.clone();
    (manifest.stages, manifest.outputs) = (stages, outputs);
    Ok(Expanded { manifest, labels })
}

struct Expansion<'f> {
    rows: Option<NonZeroU32>,
    find: &'f mut dyn FnMut(&str) -> Option<Called>,
    /// The ensembles from the outermost to the present one.
    way: Vec<String>,
    /// How many steps called ensembles so far.
    calls: usize,
}

/// The steps of an ensemble, in which none calls an ensemble.
struct Steps {
    stages: Vec<ManifestStage>,
    /// Where the outputs come from.
    outputs: BTreeMap<String, String>,
    labels: Labels,
}

/// What the steps before have made: the outputs of called ensembles, as `STEP.OUTPUT`, with what they
/// are now.
#[derive(Default)]
struct Made {
    sources: BTreeMap<String, String>,
    labels: Labels,
    /// The called ensembles by the steps that they replaced.
    replaced: BTreeMap<String, String>,
}

impl Made {
    /// What a source is now.
    fn now(&self, source: &str) -> Checked<String> {
        if let Some(now) = self.sources.get(source) {
            return Ok(now.clone());
        }
        match source.split_once('.').and_then(|(step, output)| Some((self.replaced.get(step)?, output))) {
            Some((ensemble, output)) => refuse(format!("the ensemble `{ensemble}` has no output `{output}`")),
            None => Ok(source.to_owned()),
        }
    }
}

fn refuse<T>(text: String) -> Checked<T> {
    Err(ManifestError::Ensemble(text))
}

impl Expansion<'_> {
    fn steps(&mut self, manifest: &Manifest) -> Checked<Steps> {
        let mut stages = Vec::new();
        let mut made = Made::default();
        for stage in &manifest.stages {
            match stage.function.as_deref().and_then(|function| (self.find)(function)) {
                Some(called) => self.place(stage, called, &mut made, &mut stages)?,
                None => {
                    let mut stage = stage.clone();
                    for source in stage.inputs.values_mut() {
                        *source = made.now(source)?;
                    }
                    stages.push(stage);
                }
            }
            if stages.len() > STAGES_MAX {
                return refuse(format!("with those that it calls, the ensemble has more than {STAGES_MAX} steps"));
            }
        }
        let outputs = manifest.outputs.iter().map(|(output, source)| Ok((output.clone(), made.now(source)?)));
        let outputs = outputs.collect::<Checked<_>>()?;
        let labels = manifest.outputs.iter().filter_map(|(output, source)| {
            let labels = made.labels.get(source)?;
            Some((output.clone(), labels.clone()))
        });
        Ok(Steps { stages, outputs, labels: labels.collect() })
    }

    /// Adds the steps of a called ensemble in the place of `stage`.
    fn place(
        &mut self,
        stage: &ManifestStage,
        called: Called,
        made: &mut Made,
        stages: &mut Vec<ManifestStage>,
    ) -> Checked<()> {
        self.check(&called)?;
        let inputs = given(stage, &called, made)?;
        self.way.push(called.name.clone());
        let within = self.steps(&called.manifest)?;
        self.way.pop();
        let moved = |source: &str| match inputs.get(source) {
            Some(given) => given.clone(),
            None => format!("{}_{source}", stage.name),
        };
        for mut inner in within.stages {
            inner.name = format!("{}_{}", stage.name, inner.name);
            for source in inner.inputs.values_mut() {
                *source = moved(source);
            }
            stages.push(inner);
        }
        let labels = within.labels.into_iter().chain(called.labels).filter(|(_, names)| !names.is_empty());
        made.labels.extend(labels.map(|(output, names)| (format!("{}.{output}", stage.name), names)));
        let sources = within.outputs.iter();
        made.sources.extend(sources.map(|(output, source)| (format!("{}.{output}", stage.name), moved(source))));
        made.replaced.insert(stage.name.clone(), called.name);
        Ok(())
    }

    /// Checks that a called ensemble may be called here.
    fn check(&mut self, called: &Called) -> Checked<()> {
        let way = || format!("{} -> {}", self.way.join(" -> "), called.name);
        if self.way.contains(&called.name) {
            return refuse(format!("circular dependency between ensembles: {}", way()));
        }
        if self.way.len() >= ENSEMBLES_DEPTH_MAX {
            return refuse(format!("more than {ENSEMBLES_DEPTH_MAX} ensembles are nested: {}", way()));
        }
        if let (Some(rows), Some(limit)) = (self.rows, called.rows)
            && rows > limit
        {
            return refuse(format!(
                "max_batch_size of the ensemble is {rows}, and that of the ensemble `{}`, which it calls, is {limit}; \
                 lower the one or raise the other",
                called.name
            ));
        }
        // Ensembles without steps add no stages, so their calls are limited as well.
        self.calls += 1;
        if self.calls > STAGES_MAX {
            return refuse(format!("with those that it calls, the ensemble calls more than {STAGES_MAX} ensembles"));
        }
        Ok(())
    }
}

/// What the inputs of a called ensemble are given.
fn given(stage: &ManifestStage, called: &Called, made: &Made) -> Checked<BTreeMap<String, String>> {
    let (name, known) = (&called.name, &called.manifest.inputs);
    if let Some(input) = stage.inputs.keys().find(|input| !known.contains_key(*input)) {
        let known = known.keys().cloned().collect::<Vec<_>>().join(", ");
        return refuse(format!("unexpected input `{input}` of the ensemble `{name}`; it has {known}"));
    }
    if let Some(input) = known.keys().find(|input| !stage.inputs.contains_key(*input)) {
        return refuse(format!("the ensemble `{name}` needs the input `{input}`, which its step does not give"));
    }
    stage.inputs.iter().map(|(input, source)| Ok((input.clone(), made.now(source)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::manifest::parse;
    use super::*;
    use serde_json::json;

    /// An ensemble from `X` to `Y` whose steps, `(function, source)`, have the input `in` and the output
    /// `out`, or `X` and `Y` if they are ensembles.
    fn ensemble(name: &str, steps: &[(&str, &str)], output: &str) -> Called {
        let stage = |(at, (function, source)): (usize, &(&str, &str))| {
            let input = if function.starts_with('e') { "X" } else { "in" };
            json!({ "name": format!("step{}", at + 1), "function": function, "inputs": { input: source } })
        };
        let stages: Vec<_> = steps.iter().enumerate().map(stage).collect();
        let inputs = json!({ "X": { "datatype": "FP32", "shape": [-1, 4] } });
        let manifest = json!({ "name": name, "inputs": inputs, "stage": stages, "outputs": { "Y": output } });
        let manifest = parse(&manifest.to_string()).unwrap();
        Called { name: name.into(), manifest, rows: None, labels: Labels::new() }
    }

    fn expanded(outer: &Called, others: &[fn() -> Called]) -> Result<Expanded, String> {
        let mut find = |name: &str| others.iter().map(|make| make()).find(|called| called.name == name);
        expand(&outer.manifest, outer.rows, &mut find).map_err(|error| error.to_string())
    }

    fn stages(expanded: &Expanded) -> Vec<String> {
        let line = |stage: &ManifestStage| {
            let (input, source) = stage.inputs.first_key_value().unwrap();
            format!("{} = {}({input}: {source})", stage.name, stage.function.as_deref().unwrap())
        };
        expanded.manifest.stages.iter().map(line).collect()
    }

    #[test]
    fn steps_of_called_ensembles_take_the_place_of_the_step() {
        let outer = ensemble("e0", &[("pre", "X"), ("e1", "step1.out"), ("post", "step2.Y")], "step3.out");
        let inner = || ensemble("e1", &[("a", "X"), ("e2", "step1.out")], "step2.Y");
        let innermost = || Called {
            labels: [("Y".to_owned(), vec!["cat".to_owned()])].into(),
            ..ensemble("e2", &[("b", "X"), ("c", "step1.out")], "step2.out")
        };
        let found = expanded(&outer, &[inner, innermost]).unwrap();
        let expected = [
            "step1 = pre(in: X)",
            "step2_step1 = a(in: step1.out)",
            "step2_step2_step1 = b(in: step2_step1.out)",
            "step2_step2_step2 = c(in: step2_step2_step1.out)",
            "step3 = post(in: step2_step2_step2.out)",
        ];
        assert_eq!(
            (stages(&found), found.manifest.outputs["Y"].as_str()),
            (expected.map(String::from).into(), "step3.out")
        );
        assert!(found.labels.is_empty(), "the names of classes belong to a tensor within");
        let only = expanded(&ensemble("e0", &[("e1", "X")], "step1.Y"), &[inner, innermost]).unwrap();
        assert_eq!(only.manifest.outputs["Y"], "step1_step2_step2.out");
        assert_eq!(only.labels["Y"], ["cat"]);
        let through =
            expanded(&ensemble("e0", &[("e3", "X"), ("a", "step1.Y")], "step2.out"), &[|| ensemble("e3", &[], "X")]);
        assert_eq!(stages(&through.unwrap()), ["step2 = a(in: X)"], "an input that is an output");
    }

    #[test]
    fn contradictions_are_refused_with_the_cause() {
        let to = |function: &'static str| ensemble("e0", &[(function, "X")], "step1.Y");
        let refusal = |outer: &Called, others: &[fn() -> Called]| expanded(outer, others).err().unwrap();
        let circle = [|| ensemble("e1", &[("e2", "X")], "step1.Y"), || ensemble("e2", &[("e1", "X")], "step1.Y")];
        let text = refusal(&to("e1"), &circle);
        assert_eq!(text, "circular dependency between ensembles: e0 -> e1 -> e2 -> e1");
        assert_eq!(
            refusal(&to("e0"), &[|| ensemble("e0", &[], "X")]),
            "circular dependency between ensembles: e0 -> e0"
        );
        let wrong = Called { manifest: ensemble("e0", &[("e1", "X")], "step1.Z").manifest, ..to("e1") };
        assert_eq!(refusal(&wrong, &[|| ensemble("e1", &[], "X")]), "the ensemble `e1` has no output `Z`");
        let mut other = to("e1");
        other.manifest.stages[0].inputs = [("Z".to_owned(), "X".to_owned())].into();
        assert!(refusal(&other, &[|| ensemble("e1", &[], "X")]).contains("unexpected input `Z` of the ensemble `e1`"));
        other.manifest.stages[0].inputs.clear();
        assert!(refusal(&other, &[|| ensemble("e1", &[], "X")]).contains("needs the input `X`"));
        let limited = Called { rows: NonZeroU32::new(8), ..to("e1") };
        let text = refusal(&limited, &[|| Called { rows: NonZeroU32::new(4), ..ensemble("e1", &[], "X") }]);
        assert!(text.contains("is 8, and that of the ensemble `e1`, which it calls, is 4"), "{text}");
    }

    #[test]
    fn nesting_has_limits() {
        let outer = ensemble("e0", &[("e1", "X")], "step1.Y");
        let mut deeper = |name: &str| {
            let number: usize = name.strip_prefix('e')?.parse().ok()?;
            let next = format!("e{}", number + 1);
            Some(ensemble(name, &[(next.as_str(), "X")], "step1.Y"))
        };
        let text = expand(&outer.manifest, None, &mut deeper).err().unwrap().to_string();
        assert!(text.contains("more than 8 ensembles are nested: e0 -> e1 -> e2"), "{text}");
        let wide: Vec<_> = (0..STAGES_MAX).map(|_| ("e1", "X")).collect();
        let wide = ensemble("e0", &wide, "step1.Y");
        let text = expanded(&wide, &[|| ensemble("e1", &[("a", "X"), ("b", "X")], "step1.out")]).err().unwrap();
        assert!(text.contains("more than 32 steps"), "{text}");
        let empty = [|| ensemble("e1", &[("e2", "X"), ("e2", "X")], "step1.Y"), || ensemble("e2", &[], "X")];
        let text = expanded(&wide, &empty).err().unwrap();
        assert!(text.contains("calls more than 32 ensembles"), "{text}");
    }
}
