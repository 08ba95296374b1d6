//! `atoll sign` and `atoll verify`

use crate::failure::{OrUserError, user_error};
use crate::output::{print, print_json};
use anyhow::{Context, Result};
use atoll_kgraph::Bundle;
use atoll_server::TrustedKeys;
use atoll_server::limits::SIGNATURE_BYTES_MAX;
use minisign::{SecretKey, SecretKeyBox};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The suffix that a signature's file name adds to the bundle's.
const EXTENSION: &str = ".minisig";

const EXAMPLES: &str = "\
Examples:
  atoll sign resnet50.kg --key atoll.key
  atoll fn deploy resnet50.kg                       # sends resnet50.kg.minisig too

The signature is of the text `atoll bundle DIGEST`, so minisign can check it as well:
  echo \"atoll bundle $(atoll inspect resnet50.kg --json | jq -r .digest)\" > text
  minisign -V -p atoll.pub -m text -x resnet50.kg.minisig";

/// Sign a bundle, so that daemons which trust the key run its native code as it is
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Bundle to sign
    #[arg(value_name = "FILE.kg")]
    bundle: PathBuf,

    /// Secret key, made by `atoll keys generate` or minisign
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// File for the signature [default: the bundle's name with .minisig]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  atoll verify resnet50.kg --key atoll.pub
  atoll verify resnet50.kg --key RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3 --json";

/// Check the signature of a bundle
#[derive(Debug, clap::Args)]
#[command(about, after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Bundle to check
    #[arg(value_name = "FILE.kg")]
    bundle: PathBuf,

    /// Public key: a file, or the line in it that begins with RW
    #[arg(long, value_name = "KEY")]
    key: String,

    /// The signature [default: the bundle's name with .minisig]
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bundle = Bundle::open(&args.bundle).or_user_error()?;
    let key = secret_key(&args.key).with_context(|| args.key.display().to_string()).or_user_error()?;
    let comment = format!("atoll bundle {} {}", bundle.graph().name.escape_debug(), bundle.digest());
    let signature = minisign::sign(None, &key, bundle.signed_text().as_bytes(), Some(&comment), None)?;
    let output = args.output.clone().unwrap_or_else(|| beside(&args.bundle));
    std::fs::write(&output, signature.into_string()).with_context(|| output.display().to_string()).or_user_error()?;
    Ok(print(&format!("{}: signature of {}\n", output.display(), bundle.digest()))?)
}

pub(crate) fn verify(args: &VerifyArgs) -> Result<()> {
    let bundle = Bundle::open(&args.bundle).or_user_error()?;
    let text =
        if args.key.starts_with("RW") { args.key.clone() } else { read(Path::new(&args.key)).or_user_error()? };
    let keys = TrustedKeys::parse([text.as_str()]).or_user_error()?;
    let path = args.signature.clone().unwrap_or_else(|| beside(&args.bundle));
    let checked = keys.check(&bundle, &read(&path).or_user_error()?);
    checked.with_context(|| format!("{} of {}", path.display(), args.bundle.display())).or_user_error()?;
    if args.json {
        return print_json(&json!({ "digest": bundle.digest(), "signed": true }));
    }
    Ok(print(&format!("{}: the key signed {}\n", args.bundle.display(), bundle.digest()))?)
}

/// The place of a bundle's signature: beside it.
pub(crate) fn beside(bundle: &Path) -> PathBuf {
    let mut name = bundle.as_os_str().to_owned();
    name.push(EXTENSION);
    name.into()
}

/// Reads a key or a signature.
pub(crate) fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let limit = SIGNATURE_BYTES_MAX as u64;
    let read = File::open(path).and_then(|file| file.take(limit + 1).read_to_string(&mut text));
    read.with_context(|| path.display().to_string())?;
    if text.len() as u64 > limit {
        return Err(user_error(format!("{}: larger than {limit} bytes", path.display())));
    }
    Ok(text)
}

/// Reads a secret key; asks for the password if it is encrypted.
fn secret_key(path: &Path) -> Result<SecretKey> {
    let text = read(path)?;
    match SecretKeyBox::from_string(&text)?.into_unencrypted_secret_key() {
        Ok(key) => Ok(key),
        Err(_) => Ok(SecretKeyBox::from_string(&text)?.into_secret_key(None)?),
    }
}
