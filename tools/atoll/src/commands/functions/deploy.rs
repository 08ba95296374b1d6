//! `atoll fn deploy`

use super::ls::as_json;
use crate::control::{ClassName, Classify, ControlArgs};
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

/// Deploy a bundle as a function, replacing a function of the same name. Deployed functions survive
/// a restart of the daemon
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// A .kg file made by `atoll compile`, `atoll pack` or `atoll import`
    bundle: PathBuf,

    /// Name of the function [default: the name in the bundle]
    #[arg(long)]
    name: Option<String>,

    /// Class of calls that name none [default: best-effort]
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Do not serve the function over HTTP, where every tenant can call it
    #[arg(long)]
    private: bool,

    /// Device to load it on, for example host:1 [default: the device that holds the fewest bytes of
    /// functions]
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
    let function = client.deploy(&args.bundle, &how).classify()?;
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
