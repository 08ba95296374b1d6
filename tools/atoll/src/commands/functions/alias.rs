//! `atoll fn alias`

use crate::control::{Classify, ControlArgs};
use crate::failure::user_error;
use crate::output::{print, print_json};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The name of the only stage of an alias.
const STAGE: &str = "call";

/// Give versions of a function one name, and divide its calls among them by weight. The id of a
/// call decides, so the same id gets the same version. An alias is a graph: `atoll graph explain`
/// has the statistics of each version, `atoll graph rm` removes it
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the alias; an alias of this name is replaced
    name: String,

    /// Versions with their weights, relative to the sum of all
    #[arg(required = true, value_name = "FUNCTION=WEIGHT", value_parser = version)]
    versions: Vec<(String, u32)>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

fn version(text: &str) -> Result<(String, u32), String> {
    let (name, weight) = text.split_once('=').ok_or("it has to be FUNCTION=WEIGHT")?;
    let weight = weight.parse().map_err(|_| format!("`{weight}` is not a whole number"))?;
    Ok((name.into(), weight))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    let weights: BTreeMap<&str, u32> = args.versions.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    if weights.len() != args.versions.len() {
        return Err(user_error("a version is listed twice; list each once"));
    }
    let first = client.describe(&args.versions[0].0).classify()?;
    let form = |tensor: &atoll_client::TensorMetadata| {
        (tensor.name.clone(), json!({ "datatype": tensor.datatype, "shape": tensor.shape }))
    };
    let own = |tensor: &atoll_client::TensorMetadata| (tensor.name.clone(), json!(tensor.name));
    let of_stage =
        |tensor: &atoll_client::TensorMetadata| (tensor.name.clone(), json!(format!("{STAGE}.{}", tensor.name)));
    let manifest = json!({
        "name": args.name,
        "inputs": first.inputs.iter().map(form).collect::<Map<String, Value>>(),
        "stage": [{
            "name": STAGE,
            "versions": weights,
            "inputs": first.inputs.iter().map(own).collect::<Map<String, Value>>(),
        }],
        "outputs": first.outputs.iter().map(of_stage).collect::<Map<String, Value>>(),
    });
    let graph = client.deploy_graph(&manifest.to_string(), Some(&args.name)).classify()?;
    if args.json {
        return print_json(&json!({ "name": graph.name, "model": graph.model, "versions": weights }));
    }
    let total: u64 = weights.values().map(|weight| u64::from(*weight)).sum();
    let share = |(name, weight): (&&str, &u32)| format!("`{name}` {:.1} %", f64::from(*weight) * 100.0 / total as f64);
    let shares: Vec<String> = weights.iter().map(share).collect();
    Ok(print(&format!("alias `{}`: {}; over HTTP as `{}`\n", graph.name, shares.join(", "), graph.model))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_a_weight() {
        assert_eq!(version("f=90"), Ok(("f".into(), 90)));
        assert!(version("f").is_err() && version("f=-1").is_err() && version("f=1.5").is_err());
    }
}
