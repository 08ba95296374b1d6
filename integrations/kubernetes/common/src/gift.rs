//! What containers get besides the size of their share: the address of the daemon, further variables
//! and mounts. `atoll lease hold` reads the variables.

/// Units of a share, in percent of a device.
pub const SHARE_VARIABLE: &str = "ATOLL_SM_PCT";

/// Device memory in bytes.
pub const MEMORY_VARIABLE: &str = "ATOLL_GPU_MEM";

/// Real-time slots.
pub const SLOTS_VARIABLE: &str = "ATOLL_REAL_TIME_SLOTS";

/// Id of the request for a lease. A container that is started again has the same one, and so gets
/// the same lease.
pub const REQUEST_VARIABLE: &str = "ATOLL_LEASE_REQUEST_ID";

/// The holder of the lease.
pub const HOLDER_VARIABLE: &str = "ATOLL_LEASE_HOLDER";

/// The inference port of the daemon.
pub const URL_VARIABLE: &str = "ATOLL_URL";

/// What all containers are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gift {
    /// The inference port of the daemon.
    pub url: String,
    /// Further variables.
    pub variables: Vec<(String, String)>,
    /// Folders or files of the node, each with its place in the container; read-only there.
    pub mounts: Vec<(String, String)>,
}

/// Flags that say what containers are given.
#[derive(Clone, Debug, clap::Args)]
pub struct GiftArgs {
    /// Inference port of the daemon, as containers reach it: their variable `ATOLL_URL`
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    url: String,

    /// A further variable of these containers. May be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    variables: Vec<(String, String)>,

    /// A folder or file of the node that these containers get read-only. May be given several times
    #[arg(long = "mount", value_name = "HOST:CONTAINER", value_parser = parse_mount)]
    mounts: Vec<(String, String)>,
}

impl GiftArgs {
    /// What the flags say.
    #[must_use]
    pub fn gift(&self) -> Gift {
        Gift { url: self.url.clone(), variables: self.variables.clone(), mounts: self.mounts.clone() }
    }
}

/// Reads the address of a daemon.
///
/// # Errors
/// Says which form it has.
pub fn parse_url(text: &str) -> Result<String, String> {
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match authority {
        Some(authority) if !authority.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.into()),
        _ => {
            Err("it begins with http:// or https:// and names a host, as in http://atoll.atoll-system.svc:8000".into())
        }
    }
}

/// Reads `NAME=VALUE`.
///
/// # Errors
/// Says which form it has.
pub fn parse_variable(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        let is_ordinary = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        name.bytes().all(is_ordinary) && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) && !value.contains('\0') => Ok((name.into(), value.into())),
        _ => Err("it is NAME=VALUE, with a name of letters, digits and `_`".into()),
    }
}

/// Reads `HOST:CONTAINER`, two absolute paths.
///
/// # Errors
/// Says which form it has.
pub fn parse_mount(text: &str) -> Result<(String, String), String> {
    let is_path = |path: &str| path.starts_with('/') && !path.contains([':', '\0']) && !path.contains("/../");
    match text.split_once(':') {
        Some((host, container)) if is_path(host) && is_path(container) => Ok((host.into(), container.into())),
        _ => Err("it is HOST:CONTAINER, two absolute paths, as in /run/atoll:/run/atoll".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_refused_with_the_right_form() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(parse_mount("/a:/b"), Ok(("/a".into(), "/b".into())));
        for wrong in ["A", "1A=b", "A-B=c", "=c", "A=\0"] {
            assert!(parse_variable(wrong).unwrap_err().contains("NAME=VALUE"), "{wrong}");
        }
        for wrong in ["/a", "a:/b", "/a:/b:rw", "/a/../b:/b"] {
            assert!(parse_mount(wrong).unwrap_err().contains("HOST:CONTAINER"), "{wrong}");
        }
        assert_eq!(parse_url("https://a:1"), Ok("https://a:1".into()));
        for wrong in ["atoll:8000", "http://", "ftp://a", "http://a b"] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }
}
