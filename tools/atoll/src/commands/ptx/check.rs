//! `atoll ptx check`

use super::source::{self, Source};
use crate::failure::user_error;
use crate::output::{print, print_json};
use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll ptx check kernels.ptx
  nvcc -ptx kernels.cu -o - | atoll ptx check - --json";

/// Check syntax, declarations, operand types and control flow. Every error is reported with its
/// position
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// PTX files; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An error in a file.
#[derive(Debug, Serialize)]
struct Found {
    file: String,
    line: u32,
    column: u32,
    function: Option<String>,
    message: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let sources = source::read(&args.files)?;
    let mut found = Vec::new();
    let mut more = false;
    for source in &sources {
        more |= check(source, &mut found);
    }
    if args.json {
        print_json(&found)?;
    } else {
        let line = |f: &Found| {
            let function = f.function.as_ref().map_or(String::new(), |name| format!("in `{name}`: "));
            format!("{}:{}:{}: {function}{}\n", f.file, f.line, f.column, f.message)
        };
        print(&found.iter().map(line).collect::<String>())?;
    }
    let and_more = if more { " and more" } else { "" };
    match found.len() {
        0 if args.json => Ok(()),
        0 => {
            let count = sources.len();
            let files = if count == 1 { "file is" } else { "files are" };
            Ok(print(&format!("{count} {files} valid PTX\n"))?)
        }
        1 => Err(user_error(format!("1 error{and_more}"))),
        count => Err(user_error(format!("{count} errors{and_more}"))),
    }
}

/// Checks one text. Returns true if there are more errors than are listed.
fn check(source: &Source, found: &mut Vec<Found>) -> bool {
    let file = || source.name.clone();
    let module = match atoll_ptx::parse(&source.text) {
        Ok(module) => module,
        Err(errors) => {
            let message = |e: &atoll_ptx::SyntaxError| format!("expected {}, found {}", e.expected, e.found);
            found.extend(errors.errors.iter().map(|e| Found {
                file: file(),
                line: e.line,
                column: e.column,
                function: None,
                message: message(e),
            }));
            return errors.truncated;
        }
    };
    let Err(faults) = atoll_ptx::verify(&module) else { return false };
    found.extend(faults.list.iter().map(|fault| Found {
        file: file(),
        line: fault.line,
        column: fault.column,
        function: fault.function.as_ref().map(ToString::to_string),
        message: if fault.statement.is_empty() {
            fault.kind.to_string()
        } else {
            format!("`{}`: {}", fault.statement, fault.kind)
        },
    }));
    faults.truncated
}
