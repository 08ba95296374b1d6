//! The command line.

use crate::plugin::Plugin;
use crate::resource::{MemoryUnit, Names};
use atoll_kubernetes::capacity::Capacity;
use atoll_kubernetes::gift::GiftArgs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// Offers the shares and the memory of an Atoll daemon as resources of its Kubernetes node
#[derive(Debug, clap::Parser)]
#[command(name = "atoll-device-plugin", version, about)]
pub(crate) struct Arguments {
    /// Control socket of the daemon [default: $XDG_RUNTIME_DIR/atoll.sock or /run/atoll.sock]
    #[arg(long, value_name = "PATH", env = "ATOLL_CONTROL_SOCKET")]
    control_socket: Option<PathBuf>,

    /// Folder of the sockets of the kubelet and of device plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    pub(crate) kubelet_folder: PathBuf,

    /// Names of the resources
    #[arg(long, value_enum, default_value_t = Names::Atoll)]
    names: Names,

    /// Device memory of a unit of `atoll.dev/gpu-mem-…`; its name ends in 64mib for 64M
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    memory_unit: MemoryUnit,

    #[command(flatten)]
    gift: GiftArgs,

    /// What is logged, as in info or atoll_device_plugin=debug
    #[arg(long, value_name = "FILTER", env = "ATOLL_LOG", default_value = "info")]
    pub(crate) log: String,
}

impl Arguments {
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.control_socket.clone().unwrap_or_else(atoll_client::default_socket)
    }

    /// The plugins, one for each resource.
    pub(crate) fn plugins(&self, capacity: &watch::Receiver<Arc<Capacity>>) -> Vec<Plugin> {
        let gift = Arc::new(self.gift.gift());
        let resources = self.names.resources(self.memory_unit).into_iter();
        resources.map(|resource| Plugin::new(resource, capacity.clone(), gift.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn wrong_values_are_refused_with_the_right_form() {
        let parse = |flag: &str, value: &str| {
            let arguments = ["atoll-device-plugin", "--url=http://a", flag, value];
            Arguments::try_parse_from(arguments).map_err(|error| error.to_string())
        };
        let gift = parse("--mount", "/a:/b").unwrap().gift.gift();
        assert_eq!((gift.url.as_str(), gift.mounts), ("http://a", vec![("/a".into(), "/b".into())]));
        for (flag, value, says) in [
            ("--env", "A", "NAME=VALUE"),
            ("--mount", "/a", "HOST:CONTAINER"),
            ("--memory-unit", "0M", "from 1M to 1024G"),
            ("--names", "nvidia", "hami"),
        ] {
            let error = parse(flag, value).unwrap_err();
            assert!(error.contains(says) && error.contains(value), "{error}");
        }
        assert!(Arguments::try_parse_from(["atoll-device-plugin", "--url", "atoll:8000"]).is_err());
    }
}
