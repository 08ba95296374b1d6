//! `atoll keys`

use crate::failure::OrUserError;
use crate::output::print;
use anyhow::{Context, Result};
use minisign::KeyPair;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  atoll keys generate
  atoll keys generate -o release.key --encrypt

The public key, a line that begins with RW, belongs into trusted_keys of a daemon's atoll.toml.";

/// Make keys that sign bundles
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Generate(Generate),
}

/// Make a minisign key pair: the secret key in FILE, the public key beside it (.pub)
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
struct Generate {
    /// File for the secret key
    #[arg(short, long, value_name = "FILE", default_value = "atoll.key")]
    output: PathBuf,

    /// Encrypt the secret key with a password, which is read from the terminal. Without it,
    /// everyone who can read the file can sign
    #[arg(long)]
    encrypt: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Command::Generate(generate) = &args.command;
    let Generate { output, encrypt } = generate;
    let keys =
        if *encrypt { KeyPair::generate_encrypted_keypair(None) } else { KeyPair::generate_unencrypted_keypair() };
    let keys = keys.context("cannot make keys").or_user_error()?;
    let public = output.with_extension("pub");
    write_new(output, 0o600, &keys.sk.to_box(Some("atoll secret key"))?.into_string()).or_user_error()?;
    write_new(&public, 0o644, &keys.pk.to_box()?.into_string()).or_user_error()?;
    let (secret, public) = (output.display(), public.display());
    Ok(print(&format!("{secret}: the secret key\n{public}: the public key\n{}\n", keys.pk.to_base64()))?)
}

/// Writes a file that must not exist yet: a lost key cannot be made again.
fn write_new(path: &Path, mode: u32, text: &str) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| path.display().to_string())
}
