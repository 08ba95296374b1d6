//! `atoll auth`: tokens of HTTP clients.

use super::identity::{AUTH_KEYS_VARIABLE, keys_file};
use crate::control::{Classify, ControlArgs};
use crate::failure::OrUserError;
use crate::output::{Align, Table, print, print_json};
use anyhow::{Context, Result};
use atoll_client::Tenant;
use atoll_server::{KeyError, KeyFile, KeyRecord, KeyState};
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  atoll auth create --auth-keys keys.json --tenant vision --expires 30d --note 'camera 7'
  atoll auth list --auth-keys keys.json
  atoll auth revoke --auth-keys keys.json 0123456789abcdef
  atoll auth reload

Clients send a token as `Authorization: Bearer TOKEN`; `atoll infer` and other commands take it from the \
variable ATOLL_TOKEN or from --token-file. The keys file has only hashes. A running daemon reads it again on \
`atoll auth reload` and on SIGHUP.";

/// Create, list and revoke tokens of HTTP clients
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
    Reload(ReloadArgs),
}

/// The keys file.
#[derive(Debug, clap::Args)]
struct FileArgs {
    /// Keys file [default: auth_keys of --config]
    #[arg(long, value_name = "FILE", env = AUTH_KEYS_VARIABLE)]
    auth_keys: Option<PathBuf>,

    /// Configuration of the daemon, which names the keys file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl FileArgs {
    fn path(&self) -> Result<PathBuf> {
        keys_file(self.auth_keys.as_deref(), self.config.as_deref())
    }
}

/// Create a token and print it, once: the file gets only its hash
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Tenant that requests with the token act for
    #[arg(long, value_name = "NAME")]
    tenant: Tenant,

    /// How long the token is valid, as in 12h or 30d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    expires: Option<Duration>,

    /// A note for `atoll auth list`
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    file: FileArgs,
}

/// List keys, without their secrets
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    file: FileArgs,
}

/// Revoke tokens; takes effect when the daemon reads its keys again (`atoll auth reload`)
#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// Ids of the keys: the part of a token after `atoll_`
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,

    #[command(flatten)]
    file: FileArgs,
}

/// Make a running daemon read its keys and certificates again
#[derive(Debug, clap::Args)]
struct ReloadArgs {
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Create(args) => create(&args),
        Command::List(args) => list(&args),
        Command::Revoke(args) => revoke(&args),
        Command::Reload(args) => reload(&args),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let expires_s = match args.expires {
        Some(time) => Some(now_s().checked_add(time.as_secs()).context("the time is too long")?),
        None => None,
    };
    let path = args.file.path()?;
    let token = classify(KeyFile::create(&path, args.tenant.clone(), expires_s, &args.note))?;
    if args.json {
        return print_json(&json!({
            "id": token.id,
            "token": token.to_string(),
            "tenant": args.tenant,
            "expires_s": expires_s,
        }));
    }
    Ok(print(&format!("{token}\n"))?)
}

fn list(args: &ListArgs) -> Result<()> {
    let keys = classify(KeyFile::read(&args.file.path()?))?.keys;
    let now_s = now_s();
    if args.json {
        return print_json(&keys.iter().map(|key| described(key, now_s)).collect::<Vec<_>>());
    }
    let mut table = Table::new([
        ("id", Align::Left),
        ("tenant", Align::Left),
        ("state", Align::Left),
        ("created", Align::Right),
        ("expires", Align::Right),
        ("note", Align::Left),
    ]);
    for key in keys {
        let state = match key.state(now_s) {
            KeyState::Active => "active",
            KeyState::Expired => "expired",
            KeyState::Revoked => "revoked",
        };
        let created = format!("{} ago", days(now_s.saturating_sub(key.created_s)));
        let expires = match key.expires_s {
            None => "never".to_owned(),
            Some(at_s) if at_s <= now_s => format!("{} ago", days(now_s - at_s)),
            Some(at_s) => format!("in {}", days(at_s - now_s)),
        };
        let note = key.note.escape_debug().to_string();
        table.row([key.id, key.tenant.to_string(), state.into(), created, expires, note]);
    }
    Ok(print(&table.to_string())?)
}

fn described(key: &KeyRecord, now_s: u64) -> Value {
    json!({
        "id": key.id,
        "tenant": key.tenant,
        "state": key.state(now_s),
        "created_s": key.created_s,
        "expires_s": key.expires_s,
        "revoked_s": key.revoked_s,
        "note": key.note,
    })
}

fn revoke(args: &RevokeArgs) -> Result<()> {
    let path = args.file.path()?;
    for id in &args.ids {
        classify(KeyFile::revoke(&path, id))?;
    }
    Ok(())
}

fn reload(args: &ReloadArgs) -> Result<()> {
    let reloaded = args.control.connect()?.reload().classify()?;
    let keys = reloaded.keys.map(|keys| format!("{keys} keys can be used"));
    let tls = reloaded.tls.then(|| "the certificates were read again".to_owned());
    let parts: Vec<String> = keys.into_iter().chain(tls).collect();
    Ok(print(&format!("{}\n", parts.join("; ")))?)
}

/// Marks mistakes in the file or the arguments, such as a file that does not exist.
fn classify<T>(result: Result<T, KeyError>) -> Result<T> {
    match result {
        Err(KeyError::Io { path, source }) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(KeyError::Io { path, source }.into())
        }
        other => other.or_user_error(),
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A time with one unit, for a column.
fn days(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Parses a number with a unit: `90s`, `15m`, `12h` or `30d`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{}` is not a time; use a number with s, m, h or d, as in 12h or 30d", text.escape_debug());
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    count.checked_mul(seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "d", "30", "-1d", "1.5h", "0d", "30 d", "1y", "99999999999999999999d", "3é"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
