//! The command line.

use crate::publish::Sharing;
use atoll_kubernetes::api_server::ApiServerArgs;
use atoll_kubernetes::gift::GiftArgs;
use std::path::PathBuf;

/// Offers the devices of an Atoll daemon to claims of Kubernetes (dynamic resource allocation), and
/// holds their leases
#[derive(Debug, clap::Parser)]
#[command(name = "atoll-dra-driver", version, about)]
pub(crate) struct Arguments {
    /// Name of this node
    #[arg(long, value_name = "NAME", env = "NODE_NAME", value_parser = parse_node)]
    pub(crate) node_name: String,

    #[command(flatten)]
    pub(crate) gift: GiftArgs,

    /// Folder with a file for each namespace whose claims may have leases: its name is that of the
    /// namespace, and it has a token of the daemon. Without it no token is sent
    #[arg(long, value_name = "DIR")]
    pub(crate) tokens: Option<PathBuf>,

    /// How claims share a device
    #[arg(long, value_enum, default_value_t = Sharing::Auto)]
    pub(crate) sharing: Sharing,

    /// Folder of plugins of the kubelet. The driver has a folder in it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins")]
    pub(crate) plugins_folder: PathBuf,

    /// Folder that the kubelet watches for sockets of plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins_registry")]
    pub(crate) registry_folder: PathBuf,

    /// Folder where the container runtime finds devices (CDI)
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub(crate) cdi_folder: PathBuf,

    #[command(flatten)]
    pub(crate) api_server: ApiServerArgs,

    /// What is logged, as in info or atoll_dra_driver=debug
    #[arg(long, value_name = "FILTER", env = "ATOLL_LOG", default_value = "info")]
    pub(crate) log: String,
}

fn parse_node(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    // Names of slices begin with that of the node, and end with those of the driver and of a device.
    match (1..=200).contains(&text.len()) && text.bytes().all(is_plain) {
        true => Ok(text.into()),
        false => Err("it is the name of a node: at most 200 small letters, digits, `-` and `.`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let parse = |more: &[&str]| {
            let arguments = ["atoll-dra-driver", "--url=http://a:1"].into_iter().chain(more.iter().copied());
            Arguments::try_parse_from(arguments).map_err(|error| error.to_string())
        };
        let arguments = parse(&["--node-name=gpu-1.example", "--sharing=counters"]).unwrap();
        assert_eq!((arguments.node_name.as_str(), arguments.sharing), ("gpu-1.example", Sharing::Counters));
        assert!(parse(&["--node-name=GPU_1"]).unwrap_err().contains("the name of a node"));
        assert!(parse(&["--node-name=gpu-1", "--sharing=half"]).unwrap_err().contains("capacity"));
    }
}
