//! `atoll models`

use crate::client::{Client, URL_DEFAULT};
use crate::credentials::CredentialArgs;
use crate::output::{Align, Table, print, print_json};
use atoll_protocol::ModelState;

const EXAMPLES: &str = "\
Examples:
  atoll models
  atoll models --url gpu-box:8000 --json
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

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let index = Client::new(&args.url, &args.credentials)?.index()?;
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
