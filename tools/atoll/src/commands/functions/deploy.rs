//! `atoll fn deploy`

use super::ls::as_json;
use crate::control::{ClassName, ControlArgs, Told};
use crate::output::{bytes, print, print_json};
use anyhow::Result;
use atoll_client::{Class, Deploy};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll fn deploy gemm.kg
  atoll fn deploy resnet50.kg --name vision --class real-time
  atoll fn deploy bert.kg --device host:1
  atoll fn deploy model.kg --tenant team-a --private --json";

/// Deploy a bundle as a function, or replace the one of its name. It survives a restart of the
/// daemon.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// A .kg file, of `atoll compile` or `atoll pack`
    bundle: PathBuf,

    /// What to call it [default: the name in the bundle]
    #[arg(long)]
    name: Option<String>,

    /// The class of calls that do not name one [default: best-effort]
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Do not serve it over HTTP, where everybody on this machine may use it
    #[arg(long)]
    private: bool,

    /// The device to put it on, as in host:1 [default: the emptiest one of the daemon's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    let how = Deploy {
        name: args.name.clone(),
        class: args.class.map(Class::from),
        private: args.private,
        device: args.device.clone(),
    };
    let function = client.deploy(&args.bundle, &how).told()?;
    if args.json {
        return print_json(&as_json(client.tenant(), &function));
    }
    let device = function.device.map_or_else(String::new, |device| format!(", on {device}"));
    let over_http = function.model.map_or_else(String::new, |model| format!(", over HTTP as `{model}`"));
    Ok(print(&format!(
        "`{}` of {}: {} of constants{device}{over_http}\n",
        function.name,
        client.tenant(),
        bytes(function.weights_bytes)
    ))?)
}
