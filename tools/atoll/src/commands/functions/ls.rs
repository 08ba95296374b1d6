//! `atoll fn ls`

use crate::control::{Classify, ControlArgs};
use crate::output::{Align, Table, bytes, print, print_json};
use anyhow::Result;
use atoll_client::{Class, FunctionSummary, Tenant};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  atoll fn ls
  atoll fn ls --tenant team-a --json";

/// List deployed functions
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    let functions = client.functions().classify()?;
    if args.json {
        return print_json(&functions.iter().map(|function| as_json(client.tenant(), function)).collect::<Vec<_>>());
    }
    let mut table = Table::new([
        ("function", Align::Left),
        ("class", Align::Left),
        ("device", Align::Left),
        ("constants", Align::Right),
        ("bundle", Align::Right),
        ("HTTP", Align::Left),
        ("state", Align::Left),
    ]);
    for function in functions {
        table.row([
            function.name,
            class_name(function.class).into(),
            if function.devices.is_empty() { "-".into() } else { function.devices.join(", ") },
            bytes(function.weights_bytes),
            bytes(function.bundle_bytes),
            function.model.unwrap_or_else(|| "private".into()),
            function.failure.unwrap_or_else(|| "ready".into()),
        ]);
    }
    Ok(print(&table.to_string())?)
}

pub(crate) fn class_name(class: Class) -> &'static str {
    match class {
        Class::RealTime => "real-time",
        Class::BestEffort => "best-effort",
    }
}

/// The JSON form of a function.
pub(super) fn as_json(tenant: &Tenant, function: &FunctionSummary) -> Value {
    json!({
        "name": function.name,
        "tenant": tenant.as_str(),
        "model": function.model,
        "class": class_name(function.class),
        "bundle": function.bundle.to_string(),
        "bundle_bytes": function.bundle_bytes,
        "weights_bytes": function.weights_bytes,
        "deployed_s": function.deployed_s,
        "device": function.device,
        "devices": function.devices,
        "failure": function.failure,
    })
}
