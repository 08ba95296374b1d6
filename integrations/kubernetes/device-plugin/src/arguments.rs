//! The command line.

use crate::allocation::Gift;
use crate::capacity::Capacity;
use crate::plugin::Plugin;
use crate::resource::{MemoryUnit, Names};
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

    /// Inference port of the daemon, as containers reach it: their variable `ATOLL_URL`
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    url: String,

    /// A further variable of containers with units. May be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    variables: Vec<(String, String)>,

    /// A folder or file of the node that containers with units get read-only. May be given several
    /// times
    #[arg(long = "mount", value_name = "HOST:CONTAINER", value_parser = parse_mount)]
    mounts: Vec<(String, String)>,

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
        let gift =
            Arc::new(Gift { url: self.url.clone(), variables: self.variables.clone(), mounts: self.mounts.clone() });
        let resources = self.names.resources(self.memory_unit).into_iter();
        resources.map(|resource| Plugin::new(resource, capacity.clone(), gift.clone())).collect()
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match authority {
        Some(authority) if !authority.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.into()),
        _ => {
            Err("it begins with http:// or https:// and names a host, as in http://atoll.atoll-system.svc:8000".into())
        }
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        let is_ordinary = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(is_ordinary) && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) && !value.contains('\0') => Ok((name.into(), value.into())),
        _ => Err("it is NAME=VALUE, with a name of letters, digits and `_`".into()),
    }
}

fn parse_mount(text: &str) -> Result<(String, String), String> {
    let is_path = |path: &str| path.starts_with('/') && !path.contains([':', '\0']) && !path.contains("/../");
    match text.split_once(':') {
        Some((host, container)) if is_path(host) && is_path(container) => Ok((host.into(), container.into())),
        _ => Err("it is HOST:CONTAINER, two absolute paths, as in /run/atoll:/run/atoll".into()),
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
        assert_eq!(parse("--env", "A=b=c").unwrap().variables, [("A".into(), "b=c".into())]);
        assert_eq!(parse("--mount", "/a:/b").unwrap().mounts, [("/a".into(), "/b".into())]);
        for (flag, value, says) in [
            ("--env", "A", "NAME=VALUE"),
            ("--env", "1A=b", "NAME=VALUE"),
            ("--mount", "/a", "HOST:CONTAINER"),
            ("--mount", "a:/b", "HOST:CONTAINER"),
            ("--mount", "/a:/b:rw", "HOST:CONTAINER"),
            ("--mount", "/a/../b:/b", "HOST:CONTAINER"),
            ("--memory-unit", "0M", "from 1M to 1024G"),
            ("--names", "nvidia", "hami"),
        ] {
            let error = parse(flag, value).unwrap_err();
            assert!(error.contains(says) && error.contains(value), "{error}");
        }
        for wrong in ["atoll:8000", "http://", "ftp://a", "http://a b"] {
            assert!(Arguments::try_parse_from(["atoll-device-plugin", "--url", wrong]).is_err(), "{wrong}");
        }
    }
}
