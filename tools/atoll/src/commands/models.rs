//! `atoll models`

use crate::client::{Client, URL_DEFAULT};
use crate::credentials::CredentialArgs;
use crate::output::{Align, Table, print, print_json};
use atoll_protocol::{ModelExplanation, ModelState};
use std::fmt::Write;

const EXAMPLES: &str = "\
Examples:
  atoll models
  atoll models --url gpu-box:8000 --json
  atoll models --explain detector
  atoll models --url https://gpu-box:8000 --tls-ca ca.pem --token-file token";

/// List the models of a daemon and their states
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address of the daemon
    #[arg(long, default_value = URL_DEFAULT)]
    url: String,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// Say what the daemon reads of this model's folder: its versions, and the fields of its
    /// config.pbtxt, with those that are not honoured
    #[arg(long, value_name = "MODEL")]
    explain: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let client = Client::new(&args.url, &args.credentials)?;
    if let Some(model) = &args.explain {
        let explanation = client.explain(model)?;
        return if args.json { print_json(&explanation) } else { Ok(print(&explained(&explanation))?) };
    }
    let index = client.index()?;
    if args.json {
        return print_json(&index);
    }
    if index.is_empty() {
        return Ok(print("the model repository is empty\n")?);
    }
    let mut table =
        Table::new([("model", Align::Left), ("version", Align::Left), ("state", Align::Left), ("reason", Align::Left)]);
    for entry in index {
        let state = match entry.state {
            ModelState::Ready => "ready",
            ModelState::Loading => "loading",
            ModelState::Unloading => "unloading",
            ModelState::Unavailable => "unavailable",
        };
        table.row([entry.name, entry.version, state.into(), entry.reason]);
    }
    Ok(print(&table.to_string())?)
}

/// What the daemon reads of a model's folder, as a text.
fn explained(explanation: &ModelExplanation) -> String {
    let ModelExplanation { name, settings, versions, version_policy, served, skipped, fields, problem } = explanation;
    let listed = |versions: &[u64]| versions.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    if versions.is_empty() {
        return format!("{name} is no model: {problem}\n");
    }
    let mut text = String::new();
    // Writing to a string never fails.
    let noun = if versions.len() == 1 { "version" } else { "versions" };
    let _ = write!(text, "{name} has {noun} {}", listed(versions));
    let _ = match problem.is_empty() {
        true => writeln!(text, "; the policy `{version_policy}` serves {}", listed(served)),
        false => writeln!(text, "; it cannot be loaded: {problem}"),
    };
    for skipped in skipped {
        let _ = writeln!(text, "{skipped}");
    }
    let _ = match settings.as_str() {
        "" => writeln!(text, "it has no settings of its own"),
        file => writeln!(text, "settings: {file}"),
    };
    if !fields.is_empty() {
        let mut table =
            Table::new([("field", Align::Left), ("honoured", Align::Left), ("what becomes of it", Align::Left)]);
        for note in fields {
            table.row([note.field.clone(), note.treatment.label().into(), note.note.clone()]);
        }
        text.push_str(&table.to_string());
    }
    text
}
