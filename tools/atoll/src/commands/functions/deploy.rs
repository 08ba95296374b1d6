//! `atoll fn deploy`

use super::ls::as_json;
use crate::commands::sign;
use crate::control::{ClassName, Classify, ControlArgs};
use crate::failure::OrUserError;
use crate::output::{bytes, print, print_json};
use anyhow::Result;
use atoll_client::{Class, CompileStage, Deploy};
use indicatif::ProgressBar;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll fn deploy gemm.kg
  atoll fn deploy resnet50.kg --name vision --class real-time
  atoll fn deploy bert.kg --device host:1
  atoll fn deploy model.kg --tenant team-a --private --json
  atoll fn deploy model.kg --signature model.kg.minisig

The daemon compiles the code of a bundle again from its PTX, unless the bundle is signed by a key that the \
daemon trusts, or the daemon trusts the tenant.";

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

    /// Do not serve the function over HTTP and gRPC, where tenants with the right can call it
    #[arg(long)]
    private: bool,

    /// Device to load it on, for example host:1 [default: the daemon's placement policy
    /// decides]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Signature of the bundle, made by `atoll sign` [default: the bundle's name with .minisig, if
    /// that file exists]
    #[arg(long, value_name = "FILE", conflicts_with = "no_signature")]
    signature: Option<PathBuf>,

    /// Send no signature, even if there is one beside the bundle
    #[arg(long)]
    no_signature: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

impl Args {
    /// The signature to send: the file of the flag, or the one beside the bundle.
    fn signature(&self) -> Result<Option<String>> {
        let beside = sign::beside(&self.bundle);
        let path = match &self.signature {
            Some(path) => path,
            None if !self.no_signature && beside.exists() => &beside,
            None => return Ok(None),
        };
        sign::read(path).or_user_error().map(Some)
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut client = args.control.connect()?;
    let how = Deploy {
        name: args.name.clone(),
        class: args.class.map(Class::from),
        private: args.private,
        device: args.device.clone(),
        signature: args.signature()?,
    };
    let bar = ProgressBar::no_length();
    let observed = client.deploy_observed(&args.bundle, &how, &mut |CompileStage { stage, done, total }| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(stage);
    });
    bar.finish_and_clear();
    let function = observed.classify()?;
    if args.json {
        return print_json(&as_json(client.tenant(), &function));
    }
    let devices = function.devices.join(", ");
    let device = if devices.is_empty() { String::new() } else { format!(", on {devices}") };
    let over_http = function.model.map_or_else(String::new, |model| format!(", over HTTP as `{model}`"));
    Ok(print(&format!(
        "`{}` of {}: {} of constants{device}{over_http}\n",
        function.name,
        client.tenant(),
        bytes(function.weights_bytes)
    ))?)
}
