//! `atoll models`

use crate::client::{Client, URL_DEFAULT};
use crate::credentials::CredentialArgs;
use crate::output::{Align, Table, print, print_json};
use atoll_protocol::{IndexEntry, ModelExplanation, ModelState};
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
        if args.json {
            return print_json(&explanation);
        }
        return Ok(print(&explained(&explanation, &unavailable(&client.index()?, model)))?);
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

/// Why versions of a model are not served, a line each.
fn unavailable(index: &[IndexEntry], model: &str) -> String {
    let entries = index.iter().filter(|entry| entry.name == model && entry.state == ModelState::Unavailable);
    let line = |IndexEntry { version, reason, .. }: &IndexEntry| match version.as_str() {
        "" => format!("it is unavailable: {reason}\n"),
        version => format!("version {version} is unavailable: {reason}\n"),
    };
    entries.map(line).collect()
}

/// What the daemon reads of a model's folder, as a text; and why versions are `unavailable`.
fn explained(explanation: &ModelExplanation, unavailable: &str) -> String {
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
        true => write!(text, "; the policy `{version_policy}` serves {}\n{unavailable}", listed(served)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_says_why_versions_are_not_served() {
        let entry = |name: &str, version: &str, state, reason: &str| IndexEntry {
            name: name.into(),
            version: version.into(),
            state,
            reason: reason.into(),
        };
        let index = [
            entry("detector", "1", ModelState::Ready, ""),
            entry("detector", "2", ModelState::Unavailable, "its rows are not independent"),
            entry("other", "", ModelState::Unavailable, "not loaded"),
        ];
        let explanation = ModelExplanation {
            name: "detector".into(),
            versions: vec![1, 2],
            version_policy: "all".into(),
            served: vec![1, 2],
            ..ModelExplanation::default()
        };
        let text = explained(&explanation, &unavailable(&index, "detector"));
        let expected = "detector has versions 1, 2; the policy `all` serves 1, 2\n\
                        version 2 is unavailable: its rows are not independent\n\
                        it has no settings of its own\n";
        assert_eq!(text, expected);
        assert_eq!(unavailable(&index, "other"), "it is unavailable: not loaded\n");
    }
}
