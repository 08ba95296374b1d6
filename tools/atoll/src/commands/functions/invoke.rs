//! `atoll fn invoke`

use super::source::{self, BackgroundArgs};
use crate::control::{ClassName, Classify, ControlArgs};
use crate::failure::user_error;
use crate::output::{print, print_json};
use crate::random::Random;
use crate::tensors::{InputSpecs, Summary, save, summaries_text, summary};
use anyhow::Result;
use atoll_client::{Answer, Call, Class, Client, Content, Description, Tensor, Value};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll fn invoke gemm a=a.npy b=random --shape b=64,64 --save out/
  atoll fn invoke gemm a=@9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --keep
  atoll fn invoke gemm a=a.npy --then gemm:y=a --then relu:y=x 1.b=b.npy
  atoll fn invoke gemm a=one.npy --rename a=two.npy --rename a=@9f86…0a08 --json
  atoll fn invoke gemm a=a.npy --async=first
  atoll fn invoke relu x=future:first/y

A chain is one call: tensors passed on by --then stay on the device. Without OUTPUT=INPUT, an input takes the \
output of the same name, or the only output. INDEX.NAME is an input of the function number INDEX, counted from \
0. --rename repeats the call with other contents, and sends only those. An input future:ID/OUTPUT is the \
output of a call with --async, which may not have ended yet.";

/// Call a function of a daemon, or several in a chain
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Name of the function
    function: String,

    /// Input contents: a .npy file, an object, an output of a future, a number for every element, or
    /// random (the default for inputs that are not given); for inputs of type UINT8 also the bytes
    /// of any file, or a text
    #[arg(value_name = "[INDEX.]NAME=FILE|@DIGEST|future:ID/OUTPUT|NUMBER|random|file:FILE|text:TEXT")]
    inputs: Vec<String>,

    /// Shape of an input that does not come from a file. A variable size has the same value in all
    /// inputs of a function; it is 1 unless a shape or a file determines it
    #[arg(long, value_name = "[INDEX.]NAME=SIZES")]
    shape: Vec<String>,

    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Call this function next, with outputs of the previous one as inputs
    #[arg(long, value_name = "FUNCTION[:OUTPUT=INPUT,...]")]
    then: Vec<String>,

    /// Repeat the call with other contents of inputs
    #[arg(long, value_name = "[INDEX.]NAME=FILE|@DIGEST|NUMBER,...", conflicts_with = "background")]
    rename: Vec<String>,

    /// Store the outputs of the last function as objects and print their digests
    #[arg(long, conflicts_with = "save")]
    keep: bool,

    /// Class of the call
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Instance of the first function whose share the call uses
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,

    /// Cancel the call after this time
    #[arg(long, value_name = "MICROSECONDS")]
    deadline_us: Option<u64>,

    /// Folder to write the outputs to, as NAME.npy; of repeated calls, those of the last one are
    /// kept
    #[arg(long, value_name = "DIR", conflicts_with = "background")]
    save: Option<PathBuf>,

    #[command(flatten)]
    background: BackgroundArgs,

    /// Number of highest elements to show per row
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    top: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// A function of the call, with the inputs from the command line.
struct Stage {
    about: Description,
    /// Inputs that take an output of the previous function, with that output.
    links: BTreeMap<String, String>,
    given: BTreeMap<String, String>,
    shapes: Vec<String>,
}

impl Stage {
    /// The contents of its inputs from the command line, with one of them replaced by `changed`.
    /// Those that the daemon has are left out, because only the daemon knows their shape.
    fn specs(&self, changed: Option<(&str, &str)>) -> Result<InputSpecs> {
        let given = self.given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let given = given.filter(|(name, _)| changed.is_none_or(|(changed, _)| changed != *name)).chain(changed);
        let inputs: Vec<String> =
            given.filter(|(_, value)| !source::is_kept(value)).map(|(name, value)| format!("{name}={value}")).collect();
        InputSpecs::parse(&inputs, &self.shapes, &self.about.inputs)
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    let mut stages = stages(&mut client, args)?;
    for text in &args.inputs {
        let (index, name, value) = named(&stages, text)?;
        stages[index].given.insert(name, value.into());
    }
    for text in &args.shape {
        let (index, name, value) = named(&stages, text)?;
        stages[index].shapes.push(format!("{name}={value}"));
    }
    let mut random = Random::new(args.seed);
    let first = contents(&stages, &mut random)?;
    if let Some(future) = args.background.id()? {
        client.defer(&future, call(args, &stages, &first)).classify()?;
        return source::print_begun(&future, args.json);
    }
    let mut answers = vec![client.invoke(call(args, &stages, &first)).classify()?];
    if let Some(plan) = answers[0].plan {
        // Bytes are not remembered, so they are sent again.
        for renames in &args.rename {
            let mut renamed: BTreeMap<(usize, String), Content> =
                first.iter().filter(|(_, content)| matches!(content, Content::Tensor(_))).cloned().collect();
            for text in renames.split(',') {
                let (index, name, value) = named(&stages, text)?;
                let stage = &stages[index];
                let content = content(stage, &stage.specs(Some((&name, value)))?, &name, value, &mut random)?;
                renamed.insert((index, name), content);
            }
            let renamed: Vec<_> =
                renamed.iter().map(|((index, name), content)| (*index, name.as_str(), content.clone())).collect();
            answers.push(client.again(plan, &renamed).classify()?);
        }
    }
    answers.iter().try_for_each(|answer| print_answer(args.save.as_deref(), args.top, args.json, answer))
}

/// The functions in order, with the links between them.
fn stages(client: &mut Client, args: &Args) -> Result<Vec<Stage>> {
    let stage = |about| Stage { about, links: BTreeMap::new(), given: BTreeMap::new(), shapes: Vec::new() };
    let mut stages = vec![stage(client.describe(&args.function).classify()?)];
    for then in &args.then {
        let (function, mapping) =
            then.split_once(':').map_or((then.as_str(), None), |(function, mapping)| (function, Some(mapping)));
        let mut next = stage(client.describe(function).classify()?);
        let before = &stages[stages.len() - 1].about;
        next.links = match mapping {
            Some(mapping) => explicit_links(mapping)?,
            None => implicit_links(before, &next.about)?,
        };
        stages.push(next);
    }
    Ok(stages)
}

/// Parses `y=x,z=w`: output `y` becomes input `x`, output `z` input `w`.
fn explicit_links(mapping: &str) -> Result<BTreeMap<String, String>> {
    let link = |text: &str| {
        let (output, input) =
            text.split_once('=').ok_or_else(|| user_error(format!("--then …:{text}: expected OUTPUT=INPUT")))?;
        Ok((input.to_string(), output.to_string()))
    };
    mapping.split(',').map(link).collect()
}

fn implicit_links(before: &Description, next: &Description) -> Result<BTreeMap<String, String>> {
    let outputs: Vec<&str> = before.outputs.iter().map(|output| output.name.as_str()).collect();
    let inputs: Vec<&str> = next.inputs.iter().map(|input| input.name.as_str()).collect();
    let same: BTreeMap<String, String> = inputs
        .iter()
        .filter(|input| outputs.contains(input))
        .map(|input| (input.to_string(), input.to_string()))
        .collect();
    match (same.is_empty(), inputs.as_slice(), outputs.as_slice()) {
        (false, _, _) => Ok(same),
        (true, [input], [output]) => Ok(BTreeMap::from([(input.to_string(), output.to_string())])),
        _ => Err(user_error(format!(
            "--then {}: state which output becomes which input, as OUTPUT=INPUT; the outputs of `{}` are {}, the \
            inputs of `{}` are {}",
            next.function.name,
            before.function.name,
            outputs.join(", "),
            next.function.name,
            inputs.join(", ")
        ))),
    }
}

/// Parses `[INDEX.]NAME=VALUE` and finds the function with this input.
fn named<'a>(stages: &[Stage], text: &'a str) -> Result<(usize, String, &'a str)> {
    let (target, value) = text.split_once('=').ok_or_else(|| user_error(format!("`{text}`: expected NAME=VALUE")))?;
    let has = |stage: &Stage, name: &str| stage.about.inputs.iter().any(|input| input.name == name);
    let indexed = target.split_once('.').and_then(|(index, name)| Some((index.parse::<usize>().ok()?, name)));
    let found = match indexed.filter(|(index, name)| stages.get(*index).is_some_and(|stage| has(stage, name))) {
        Some((index, name)) => Some((index, name)),
        // Names may contain dots.
        None => stages
            .iter()
            .position(|stage| has(stage, target) && !stage.links.contains_key(target))
            .map(|index| (index, target)),
    };
    let known = || {
        let one = |(index, stage): (usize, &Stage)| {
            stage.about.inputs.iter().map(move |input| format!("{index}.{}", input.name)).collect::<Vec<_>>()
        };
        stages.iter().enumerate().flat_map(one).collect::<Vec<_>>().join(", ")
    };
    let (index, name) =
        found.ok_or_else(|| user_error(format!("unknown input `{target}`; the inputs are {}", known())))?;
    Ok((index, name.into(), value))
}

/// The content of an input, from the command line.
fn content(stage: &Stage, specs: &InputSpecs, name: &str, value: &str, random: &mut Random) -> Result<Content> {
    if let Some(content) = source::kept(name, value)? {
        return Ok(content);
    }
    let metadata = stage.about.inputs.iter().find(|input| input.name == name);
    let metadata = metadata.ok_or_else(|| user_error(format!("unknown input `{name}`")))?;
    let tensor = specs.tensor(metadata, random)?;
    Ok(Tensor { datatype: tensor.datatype, shape: tensor.shape, bytes: tensor.bytes }.into())
}

/// The contents of all inputs, in the order of the functions.
fn contents(stages: &[Stage], random: &mut Random) -> Result<Vec<((usize, String), Content)>> {
    let mut all = Vec::new();
    for (index, stage) in stages.iter().enumerate() {
        let specs = stage.specs(None)?;
        for input in &stage.about.inputs {
            let name = &input.name;
            let content = match stage.links.get(name) {
                Some(output) => Content::Output(index - 1, output.clone()),
                None => content(stage, &specs, name, stage.given.get(name).map_or("random", String::as_str), random)?,
            };
            all.push(((index, name.clone()), content));
        }
    }
    Ok(all)
}

fn call(args: &Args, stages: &[Stage], contents: &[((usize, String), Content)]) -> Call {
    let mut call = Call::of(&stages[0].about.function.name);
    for (index, stage) in stages.iter().enumerate() {
        if index > 0 {
            call = call.then(&stage.about.function.name);
        }
        for ((_, name), content) in contents.iter().filter(|((of, _), _)| *of == index) {
            call = call.input(name, content.clone());
        }
    }
    if args.keep {
        for output in stages.iter().next_back().into_iter().flat_map(|last| &last.about.outputs) {
            call = call.keep(&output.name);
        }
    }
    if let Some(instance) = &args.instance {
        call = call.instance(instance);
    }
    if let Some(class) = args.class {
        call = call.class(Class::from(class));
    }
    if let Some(deadline_us) = args.deadline_us {
        call = call.deadline(Duration::from_micros(deadline_us));
    }
    if args.rename.is_empty() { call } else { call.remember() }
}

/// Prints or saves the outputs of a call.
pub(crate) fn print_answer(folder: Option<&Path>, top: usize, as_json: bool, answer: &Answer) -> Result<()> {
    let mut tensors = Vec::new();
    let mut objects = BTreeMap::new();
    for (_, name, value) in &answer.outputs {
        match value {
            Value::Object(digest) => drop(objects.insert(name.clone(), digest.to_string())),
            Value::Tensor(tensor) => {
                let (datatype, shape, bytes) = (tensor.datatype, tensor.shape.clone(), tensor.bytes.clone());
                tensors.push(atoll_protocol::Tensor::new(name, datatype, shape, bytes)?);
            }
        }
    }
    if let Some(folder) = folder {
        save(folder, &tensors)?;
    }
    let summaries: Vec<Summary> = tensors.iter().map(|tensor| summary(tensor, top)).collect();
    let timing = answer.timing;
    if as_json {
        return print_json(&json!({
            "outputs": summaries,
            "objects": objects,
            "preemptions": answer.preemptions,
            "queue_ns": timing.queue_ns,
            "input_ns": timing.input_ns,
            "compute_ns": timing.compute_ns,
            "output_ns": timing.output_ns,
        }));
    }
    let mut text = summaries_text(&summaries);
    for (name, digest) in objects {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}: {digest}");
    }
    let milliseconds = |ns: u64| ns as f64 / 1e6;
    let _ = writeln!(
        text,
        "{:.3} ms on the device, {:.3} ms in queues",
        milliseconds(timing.compute_ns),
        milliseconds(timing.queue_ns)
    );
    Ok(print(&text)?)
}
