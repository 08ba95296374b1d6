//! `atoll object`: objects stored in a daemon.

use super::functions::ls::class_name;
use crate::control::{ClassName, Classify, ControlArgs};
use crate::failure::OrUserError;
use crate::npy;
use crate::output::{Align, Table, bytes, print, print_json};
use anyhow::{Context, Result};
use atoll_client::{Class, Client, Digest, Sealed, Tensor};
use clap::Subcommand;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  atoll object put weights.npy
  atoll object get 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 -o weights.npy
  atoll object ls --json
  atoll object rm 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

An object is immutable, named by the SHA-256 of its bytes, and visible only to its tenant.";

/// Store tensors and other bytes in a daemon, for use as inputs of calls
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Put(PutArgs),
    Get(GetArgs),
    Ls(ListArgs),
    Rm(RemoveArgs),
}

/// Store files as objects and print their digests. A .npy file is stored as a tensor
#[derive(Debug, clap::Args)]
struct PutArgs {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Class that the objects are stored for; real-time objects leave memory last [default:
    /// best-effort]
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Read an object and write it to a .npy file, to another file as raw bytes, or to standard output
#[derive(Debug, clap::Args)]
struct GetArgs {
    /// Digest of the object
    digest: Digest,

    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print a description as JSON (with --output)
    #[arg(long, requires = "output")]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// List objects
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Remove objects
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// Digests of the objects
    #[arg(required = true, value_name = "DIGEST")]
    digests: Vec<Digest>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Put(args) => put(&args),
        Command::Get(args) => get(&args),
        Command::Ls(args) => list(&args),
        Command::Rm(args) => remove(&args),
    }
}

fn put(args: &PutArgs) -> Result<()> {
    let mut client = args.control.connect()?;
    let class = args.class.map(Class::from);
    let mut kept = Vec::new();
    for file in &args.files {
        let digest = put_file(&mut client, file, class)?;
        if !args.json {
            print(&format!("{digest}\n"))?;
        }
        kept.push(json!({ "file": file.display().to_string(), "digest": digest.to_string() }));
    }
    if args.json { print_json(&kept) } else { Ok(()) }
}

fn put_file(client: &mut Client, file: &Path, class: Option<Class>) -> Result<Digest> {
    if file.extension().is_some_and(|extension| extension == "npy") {
        let tensor = npy::read(file, "").or_user_error()?;
        return client
            .put(&Tensor { datatype: tensor.datatype, shape: tensor.shape, bytes: tensor.bytes }, class)
            .classify();
    }
    let mut opened = File::open(file).with_context(|| file.display().to_string()).or_user_error()?;
    let content = Sealed::of_reader("atoll-object", &mut opened).with_context(|| file.display().to_string())?;
    client.put_bytes(&content, class).classify()
}

fn get(args: &GetArgs) -> Result<()> {
    let object = args.control.connect()?.get(args.digest).classify()?;
    let Some(path) = &args.output else {
        return Ok(std::io::stdout().lock().write_all(&object.bytes)?);
    };
    let (datatype, shape, size) = (object.datatype, object.shape.clone(), object.bytes.len());
    if path.extension().is_some_and(|extension| extension == "npy") {
        npy::write(path, &atoll_protocol::Tensor::new("", object.datatype, object.shape, object.bytes)?)
            .or_user_error()?;
    } else {
        std::fs::write(path, &object.bytes).with_context(|| path.display().to_string()).or_user_error()?;
    }
    if args.json {
        return print_json(
            &json!({ "digest": args.digest.to_string(), "datatype": datatype, "shape": shape, "bytes": size }),
        );
    }
    Ok(())
}

fn list(args: &ListArgs) -> Result<()> {
    let objects = args.control.connect()?.objects().classify()?;
    if args.json {
        let all: Vec<Value> = objects
            .iter()
            .map(|object| {
                json!({
                    "digest": object.digest.to_string(),
                    "bytes": object.bytes,
                    "class": class_name(object.class),
                    "datatype": object.form.as_ref().map(|form| form.datatype),
                    "shape": object.form.as_ref().map(|form| &form.shape),
                    "created_s": object.created_s,
                    "used_s": object.used_s,
                    "in_memory": object.in_memory,
                })
            })
            .collect();
        return print_json(&all);
    }
    let mut table = Table::new([
        ("object", Align::Left),
        ("size", Align::Right),
        ("tensor", Align::Left),
        ("class", Align::Left),
        ("where", Align::Left),
    ]);
    for object in objects {
        let tensor = object.form.map_or_else(String::new, |form| format!("{}{:?}", form.datatype, form.shape));
        let place = if object.in_memory { "memory, disk" } else { "disk" };
        table.row([
            object.digest.to_string(),
            bytes(object.bytes),
            tensor,
            class_name(object.class).into(),
            place.into(),
        ]);
    }
    Ok(print(&table.to_string())?)
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let mut client = args.control.connect()?;
    for digest in &args.digests {
        client.remove_object(*digest).classify()?;
    }
    let removed: Vec<String> = args.digests.iter().map(Digest::to_string).collect();
    if args.json { print_json(&json!({ "removed": removed })) } else { Ok(()) }
}
