//! Ensembles: their steps as the manifest of a graph of functions.

use super::tree::{Message, short};
use atoll_core::graphs::limits::STAGES_MAX;
use atoll_protocol::{EnsembleScheduling, EnsembleStep};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// An ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::repository) struct Ensemble {
    /// The manifest of the graph, in JSON.
    pub(in crate::repository) manifest: String,
    /// The models that its steps call.
    pub(in crate::repository) models: Vec<String>,
    /// The steps as the configuration has them.
    pub(in crate::repository) scheduling: EnsembleScheduling,
}

/// Whether a configuration is that of an ensemble.
pub(in crate::repository) fn is_ensemble(config: &Message) -> bool {
    config.message("ensemble_scheduling").is_some() || config.text("platform") == Some("ensemble")
}

/// A step as it is written.
struct Step<'c> {
    /// The model, as a stage of a graph calls it.
    function: String,
    /// Inputs of the model, and the tensors that they get.
    inputs: Vec<(&'c str, &'c str)>,
}

/// Where a tensor of an ensemble comes from: its source in the manifest, and the step that makes it.
type Sources<'c> = BTreeMap<&'c str, (String, Option<usize>)>;

/// Reads an ensemble.
///
/// # Errors
/// If a step names no model, a tensor is made twice or never, or steps wait for each other.
pub(in crate::repository) fn read(config: &Message, name: &str) -> Result<Ensemble, String> {
    let has_rows = config.number::<u32>("max_batch_size")?.unwrap_or(0) > 0;
    let inputs = config.messages("input").map(|input| form(input, has_rows)).collect::<Result<Map<_, _>, _>>()?;
    let steps: Vec<&Message> = config.messages("ensemble_scheduling").flat_map(|of| of.messages("step")).collect();
    if steps.len() > STAGES_MAX {
        return Err(format!("the ensemble has {} steps; the limit is {STAGES_MAX}", steps.len()));
    }
    let sources = sources(config, &steps)?;
    let scheduling = EnsembleScheduling { step: steps.iter().map(|step| as_it_is(step)).collect::<Result<_, _>>()? };
    let steps = steps.into_iter().map(step).collect::<Result<Vec<_>, _>>()?;
    let stages = in_order(&steps, &sources)?;
    let stages = stages.into_iter().map(|at| described(at, &steps[at], &sources)).collect::<Result<Vec<_>, _>>()?;
    let outputs = config.messages("output").filter_map(|output| output.text("name"));
    let outputs = outputs.map(|output| Ok((output.to_owned(), json!(source(&sources, output)?.0))));
    let outputs = outputs.collect::<Result<Map<_, _>, String>>()?;
    let manifest = json!({ "name": name, "inputs": inputs, "stage": stages, "outputs": outputs });
    let mut models: Vec<String> = steps.iter().map(|step| model(&step.function).to_owned()).collect();
    models.sort_unstable();
    models.dedup();
    Ok(Ensemble { manifest: manifest.to_string(), models, scheduling })
}

/// Where each tensor comes from.
fn sources<'c>(config: &'c Message, steps: &[&'c Message]) -> Result<Sources<'c>, String> {
    let inputs = config.messages("input").filter_map(|input| input.text("name"));
    let mut sources: Sources<'_> = inputs.map(|input| (input, (input.to_owned(), None))).collect();
    for (at, step) in steps.iter().enumerate() {
        for (output, tensor) in step.map("output_map") {
            let source = (format!("{}.{output}", stage(at)), Some(at));
            if sources.insert(tensor, source).is_some() {
                return Err(format!(
                    "the tensor `{}` of the ensemble is made twice; give one another name",
                    short(tensor)
                ));
            }
        }
    }
    Ok(sources)
}

fn source<'s>(sources: &'s Sources<'_>, tensor: &str) -> Result<&'s (String, Option<usize>), String> {
    sources
        .get(tensor)
        .ok_or_else(|| format!("the tensor `{}` of the ensemble is neither an input nor made by a step", short(tensor)))
}

/// The steps in the order of their tensors.
fn in_order(steps: &[Step<'_>], sources: &Sources<'_>) -> Result<Vec<usize>, String> {
    let mut needs = Vec::with_capacity(steps.len());
    for step in steps {
        let makers = step.inputs.iter().map(|(_, tensor)| Ok(source(sources, tensor)?.1));
        needs.push(makers.collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect());
    }
    order(&needs).map_err(|waiting| {
        let names: Vec<&str> = waiting.iter().map(|at| steps[*at].function.as_str()).collect();
        format!("the steps of the ensemble wait for each other: {}; a tensor leads back to them", names.join(", "))
    })
}

/// A step as a stage of the manifest.
fn described(at: usize, step: &Step<'_>, sources: &Sources<'_>) -> Result<Value, String> {
    let inputs = step.inputs.iter().map(|(input, tensor)| {
        let source = source(sources, tensor)?;
        Ok(((*input).to_owned(), json!(source.0)))
    });
    let inputs = inputs.collect::<Result<Map<_, _>, String>>()?;
    Ok(json!({ "name": stage(at), "function": step.function, "inputs": inputs }))
}

/// The name of the stage of a step.
fn stage(at: usize) -> String {
    format!("step{}", at + 1)
}

/// The model of a function that is perhaps a version of it.
fn model(function: &str) -> &str {
    function.split_once('/').map_or(function, |(model, _)| model)
}

/// Type and shape of an input in the manifest.
fn form(input: &Message, has_rows: bool) -> Result<(String, Value), String> {
    let name = input.text("name").unwrap_or_default();
    let declared = super::data_type(input.text("data_type").unwrap_or_default());
    let datatype = match declared.strip_prefix("TYPE_") {
        Some("STRING") => "BYTES",
        Some(datatype) => datatype,
        None => {
            return Err(format!(
                "the input `{}` of the ensemble has the data type `{}`, which does not exist",
                short(name),
                short(&declared)
            ));
        }
    };
    let rows = has_rows.then_some(-1);
    let shape: Vec<i64> = rows.into_iter().chain(input.numbers("dims")?).collect();
    Ok((name.to_owned(), json!({ "datatype": datatype, "shape": shape })))
}

fn step(step: &Message) -> Result<Step<'_>, String> {
    let model = step.text("model_name").filter(|model| !model.is_empty() && !model.contains('/'));
    let model = model.ok_or_else(|| "a step of the ensemble names no model".to_owned())?;
    let function = match step.number::<i64>("model_version")? {
        Some(version) if version > 0 => format!("{model}/{version}"),
        _ => model.to_owned(),
    };
    Ok(Step { function, inputs: step.map("input_map").collect() })
}

/// A step as clients see it in the configuration.
fn as_it_is(step: &Message) -> Result<EnsembleStep, String> {
    let map = |field: &str| step.map(field).map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Ok(EnsembleStep {
        model_name: step.text("model_name").unwrap_or_default().to_owned(),
        model_version: step.number("model_version")?.unwrap_or(-1),
        input_map: map("input_map"),
        output_map: map("output_map"),
    })
}

/// The steps in an order in which each comes after those that it needs.
///
/// # Errors
/// The steps that cannot be ordered.
fn order(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut ordered: Vec<usize> = Vec::with_capacity(needs.len());
    let mut waiting: Vec<usize> = (0..needs.len()).collect();
    while !waiting.is_empty() {
        let (ready, others): (Vec<usize>, Vec<usize>) =
            waiting.iter().copied().partition(|at| needs[*at].iter().all(|needed| ordered.contains(needed)));
        if ready.is_empty() {
            return Err(others);
        }
        ordered.extend(ready);
        waiting = others;
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::super::text::parse;
    use super::*;

    const TWO: &str = r#"
        name: "e" platform: "ensemble" max_batch_size: 8
        input { name: "IMAGE" data_type: TYPE_FP32 dims: [ 4 ] }
        output { name: "SCORES" data_type: TYPE_FP32 dims: [ -1 ] }
        ensemble_scheduling { step [
          { model_name: "post" model_version: 3
            input_map { key: "in" value: "features" } output_map { key: "out" value: "SCORES" } },
          { model_name: "pre" model_version: -1
            input_map { key: "in" value: "IMAGE" } output_map { key: "out" value: "features" } }
        ] }
    "#;

    fn of(text: &str) -> Result<Ensemble, String> {
        read(&parse(text).unwrap(), "e")
    }

    #[test]
    fn steps_become_stages_in_the_order_of_their_tensors() {
        let ensemble = of(TWO).unwrap();
        let manifest: Value = serde_json::from_str(&ensemble.manifest).unwrap();
        let expected = json!({
            "name": "e",
            "inputs": { "IMAGE": { "datatype": "FP32", "shape": [-1, 4] } },
            "stage": [
                { "name": "step2", "function": "pre", "inputs": { "in": "IMAGE" } },
                { "name": "step1", "function": "post/3", "inputs": { "in": "step2.out" } },
            ],
            "outputs": { "SCORES": "step1.out" },
        });
        assert_eq!((manifest, &ensemble.models), (expected, &vec!["post".to_owned(), "pre".to_owned()]));
        let [post, pre] = &ensemble.scheduling.step[..] else { panic!("two steps as they are written") };
        assert_eq!((&*post.model_name, post.model_version, pre.model_version), ("post", 3, -1));
        assert_eq!(pre.output_map, [("out".to_owned(), "features".to_owned())].into());
        assert!(is_ensemble(&parse(TWO).unwrap()) && !is_ensemble(&parse("platform: 'onnxruntime_onnx'").unwrap()));
    }

    #[test]
    fn contradictions_are_refused_with_the_cause() {
        for (from, to, expected) in [
            ("value: \"IMAGE\"", "value: \"SCORES\"", "wait for each other: post/3, pre"),
            ("value: \"SCORES\"", "value: \"features\"", "`features` of the ensemble is made twice"),
            ("value: \"SCORES\"", "value: \"IMAGE\"", "`IMAGE` of the ensemble is made twice"),
            ("value: \"IMAGE\"", "value: \"image\"", "`image` of the ensemble is neither"),
            ("name: \"SCORES\"", "name: \"OTHER\"", "`OTHER` of the ensemble is neither"),
            ("model_name: \"pre\"", "model_name: \"\"", "names no model"),
            ("model_name: \"pre\"", "model_name: \"a/b\"", "names no model"),
            (
                "max_batch_size: 8",
                &format!("ensemble_scheduling {{ {} }}", "step { } ".repeat(STAGES_MAX)),
                "steps; the limit",
            ),
            ("TYPE_FP32 dims: [ 4 ]", "FP32 dims: [ 4 ]", "`FP32`, which does not exist"),
        ] {
            let message = of(&TWO.replacen(from, to, 1)).unwrap_err();
            assert!(message.contains(expected), "{to}: {message}");
        }
        let manifest = of(&TWO.replacen("TYPE_FP32 dims: [ 4 ]", "TYPE_STRING dims: [ 4 ]", 1)).unwrap().manifest;
        assert!(manifest.contains("BYTES"), "{manifest}");
    }
}
