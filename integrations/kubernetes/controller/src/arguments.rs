//! The command line.

use crate::api::Api;
use crate::controller::Settings;
use anyhow::Result;
use atoll_kubernetes::api_server::ApiServerArgs;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Makes and holds the leases that resources of the kinds AtollFunction and AtollInstance state
#[derive(Debug, clap::Parser)]
#[command(name = "atoll-controller", version, about)]
pub(crate) struct Arguments {
    #[command(flatten)]
    api_server: ApiServerArgs,

    /// Namespace of the daemons and of the controller's own lease
    #[arg(long, value_name = "NAME", default_value = "atoll-system")]
    pub(crate) namespace: String,

    /// Folder with a file for each namespace whose resources may have leases: its name is that of
    /// the namespace, and it has a token of the daemons. Without it no token is sent
    #[arg(long, value_name = "DIR")]
    pub(crate) tokens: Option<PathBuf>,

    /// Label of the nodes that may have instances. May be given several times
    #[arg(long = "node-label", value_name = "NAME=VALUE", value_parser = parse_label,
        default_value = "atoll.dev/controller=true")]
    nodes: Vec<(String, String)>,

    /// Time for requests of clients between the deletion of an instance and the end of its lease
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain_seconds: u32,

    /// Name of this controller among several ones [default: that of the machine]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,

    /// What is logged, as in info or atoll_controller=debug
    #[arg(long, value_name = "FILTER", env = "ATOLL_LOG", default_value = "info")]
    pub(crate) log: String,
}

impl Arguments {
    /// The client of the API server.
    pub(crate) fn api(&self) -> Result<Api> {
        Ok(Api::new(self.api_server.client()?, &self.namespace))
    }

    pub(crate) fn settings(&self) -> Settings {
        let nodes: BTreeMap<String, String> = self.nodes.iter().cloned().collect();
        Settings { drain: Duration::from_secs(self.drain_seconds.into()), nodes }
    }

    /// A name that no other process has: two that run on one machine differ, and so does one that
    /// starts again.
    pub(crate) fn identity(&self) -> String {
        use std::hash::{BuildHasher, Hasher};
        let name = self.identity.clone().or_else(|| std::env::var("HOSTNAME").ok());
        let random = std::hash::RandomState::new().build_hasher().finish();
        format!("{}_{random:016x}", name.unwrap_or_else(|| "controller".into()))
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it has a name and a value, as in atoll.dev/controller=true".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn flags_become_settings() {
        let arguments = Arguments::parse_from(["atoll-controller"]);
        let settings = arguments.settings();
        assert_eq!(settings.drain, Duration::from_secs(10));
        assert_eq!(settings.nodes, BTreeMap::from([("atoll.dev/controller".into(), "true".into())]));
        let arguments =
            Arguments::parse_from(["atoll-controller", "--node-label=a=b", "--node-label=c=", "--drain-seconds=0"]);
        assert_eq!(arguments.settings().nodes.len(), 2);
        assert_ne!(arguments.identity(), arguments.identity());
        assert!(Arguments::try_parse_from(["atoll-controller", "--node-label=a"]).is_err());
    }
}
