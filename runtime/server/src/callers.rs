//! Checks the `Host` (in HTTP/2 `:authority`) and `Origin` headers of requests.
//!
//! A browser sends requests on behalf of any page that it shows. Without these checks a page could
//! load and unload models of a daemon on the user's machine. It could do so with a cross-origin
//! request (the `Origin` header then names the page), or by DNS rebinding (the `Host` header then
//! has the page's domain). Other programs send no `Origin`, and call the daemon by its address or
//! by a name that its operator has allowed.
//!
//! A browser also sends no `Origin` if a page loads a snapshot of the dashboard as an image or a
//! script. Each such request would make the daemon collect a snapshot. The paths of the dashboard's
//! data are therefore checked by the header `Sec-Fetch-Site`, too.

use crate::app::App;
use crate::identity::Reason;
use crate::requests::error::{Kind, RequestError};
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, Version, header};
use std::net::IpAddr;

/// Paths that pages of other sites may not load, not even as an image or a script.
const GUARDED: [&str; 2] = ["/ui/snapshot", "/ui/events"];

/// The allowed hosts and origins.
#[derive(Debug)]
pub(crate) struct Callers {
    /// Allowed host names; `None` for any.
    hosts: Option<Vec<String>>,
    origins: Vec<String>,
}

impl Callers {
    /// Rules for a server that listens on `address`. Clients may use IP addresses, `localhost` and
    /// the names in `hosts`; web pages of `origins` may call it.
    pub(crate) fn new(address: IpAddr, hosts: &[String], origins: &[String]) -> Callers {
        let is_open = hosts.is_empty() && !address.is_loopback();
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Callers { hosts: (!is_open).then(|| lower(hosts)), origins: lower(origins) }
    }

    /// Refuses a request that the rules do not allow, and counts it.
    pub(crate) fn check(&self, app: &App, request: &Request) -> Result<(), RequestError> {
        // HTTP/2 sends the host in the pseudo-header `:authority`.
        let uri = (request.version() == Version::HTTP_2).then(|| request.uri());
        let is_guarded = GUARDED.contains(&request.uri().path());
        self.allowed(request.headers(), uri, is_guarded).map_err(|(reason, message)| {
            app.refuse_unknown(reason);
            RequestError::new(Kind::Denied, message)
        })
    }

    fn allowed(&self, headers: &HeaderMap, uri: Option<&Uri>, is_guarded: bool) -> Result<(), (Reason, String)> {
        let host = self.check_host(headers, uri.and_then(Uri::authority)).map_err(|text| (Reason::Host, text))?;
        let Some(origin) = headers.get(header::ORIGIN) else {
            return check_site(headers, is_guarded).map_err(|text| (Reason::Origin, text));
        };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let is_own = host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, of)| of == host.as_str()));
        if is_own || self.origins.contains(&origin) {
            return Ok(());
        }
        let text = format!(
            "web pages of {origin:?} may not call this server; to allow them, start the daemon with --allow-origin"
        );
        Err((Reason::Origin, text))
    }

    /// Checks the host that the client called. `None` if the request names no host.
    fn check_host(&self, headers: &HeaderMap, called: Option<&Authority>) -> Result<Option<Authority>, String> {
        let value = match (called, headers.get(header::HOST)) {
            (Some(authority), _) => authority.as_str().as_bytes(),
            (None, Some(value)) => value.as_bytes(),
            (None, None) => return Ok(None),
        };
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        let authority: Authority = text.parse().map_err(|_| format!("invalid Host header {text:?}"))?;
        let Some(hosts) = &self.hosts else { return Ok(Some(authority)) };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        if name == "localhost" || name.parse::<IpAddr>().is_ok() || hosts.iter().any(|host| host == name) {
            return Ok(Some(authority));
        }
        Err(format!(
            "host name {name:?} is not allowed; use the server's address, or start the daemon with --allow-host"
        ))
    }
}

/// Refuses a request without `Origin` for a guarded path if a page of another site makes it.
fn check_site(headers: &HeaderMap, is_guarded: bool) -> Result<(), String> {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if is_guarded && matches!(site, Some(b"cross-site" | b"same-site")) {
        return Err("web pages of other sites may not load snapshots of the dashboard; open /ui instead".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(callers: &Callers, host: &str, origin: Option<&str>) -> Result<(), Reason> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        callers.allowed(&headers, None, false).map_err(|(reason, _)| reason)
    }

    #[test]
    fn on_loopback_only_known_names_are_served() {
        let callers = Callers::new([127, 0, 0, 1].into(), &["GPU-box".into()], &[]);
        for host in ["localhost:8000", "LOCALHOST", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3", "gpu-BOX:8000"] {
            assert_eq!(check(&callers, host, None), Ok(()), "{host}");
        }
        for host in ["evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"] {
            assert_eq!(check(&callers, host, None), Err(Reason::Host), "{host}");
        }
    }

    #[test]
    fn beyond_loopback_any_name_is_served_unless_names_are_given() {
        let everywhere = [0, 0, 0, 0].into();
        assert_eq!(check(&Callers::new(everywhere, &[], &[]), "atoll.cluster.local:8000", None), Ok(()));
        assert!(check(&Callers::new(everywhere, &["other".into()], &[]), "atoll.cluster.local:8000", None).is_err());
    }

    #[test]
    fn pages_of_other_origins_are_refused_unless_allowed() {
        let callers = Callers::new([127, 0, 0, 1].into(), &[], &["https://dash.example".into()]);
        for origin in ["http://127.0.0.1:8000", "https://dash.example", "HTTPS://DASH.example"] {
            assert_eq!(check(&callers, "127.0.0.1:8000", Some(origin)), Ok(()), "{origin}");
        }
        for origin in ["null", "http://127.0.0.1:9000", "http://evil.example", "https://dash.example:444"] {
            assert_eq!(check(&callers, "127.0.0.1:8000", Some(origin)), Err(Reason::Origin), "{origin}");
        }
    }

    #[test]
    fn pages_of_other_sites_load_no_snapshots_without_an_allowed_origin() {
        let callers = Callers::new([127, 0, 0, 1].into(), &[], &["https://dash.example".into()]);
        let check = |site: &str, origin: Option<&str>, is_guarded| {
            let mut headers = HeaderMap::new();
            headers.insert("sec-fetch-site", site.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            callers.allowed(&headers, None, is_guarded).is_ok()
        };
        for site in ["cross-site", "same-site"] {
            assert!(!check(site, None, true), "{site}");
            assert!(check(site, None, false), "{site}");
            assert!(check(site, Some("https://dash.example"), true), "{site}");
        }
        assert!(check("same-origin", None, true) && check("none", None, true));
    }
}
