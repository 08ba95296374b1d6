//! `atoll man`

use crate::cli::Cli;
use anyhow::{Context, Result};
use clap::{Arg, Command, CommandFactory, Id};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// Write manual pages (atoll.1, atoll-serve.1, ...), for packages and documentation.
#[derive(Debug, clap::Args)]
#[command(about)]
pub(crate) struct Args {
    /// Folder for the pages
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Write command-line.md instead, one Markdown page of all commands
    #[arg(long)]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.folder).with_context(|| args.folder.display().to_string())?;
    if args.markdown {
        let path = args.folder.join("command-line.md");
        std::fs::write(&path, page()).with_context(|| path.display().to_string())
    } else {
        clap_mangen::generate_to(Cli::command(), &args.folder).with_context(|| args.folder.display().to_string())
    }
}

const HEAD: &str = "\
# Command line

Generated from the program's own command tree (`atoll man --markdown DIR`). `atoll COMMAND --help`
prints the same. Exit codes: 0 on success, 1 if something failed, 2 if the command line or a file
that the user gave is at fault.
";

fn page() -> String {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut text = HEAD.to_owned();
    section(&root, &BTreeSet::new(), &mut text);
    text
}

/// The section of a command, and those of its subcommands. Flags that a command inherits from the
/// command above it are listed there only.
fn section(command: &Command, inherited: &BTreeSet<&Id>, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\n## {name}\n");
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let _ = writeln!(text, "{}\n", wrapped(&about.to_string()));
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(text, "```text\n{}\n```", usage.trim_start_matches("Usage: ").trim());
    let shown = |arg: &&Arg| {
        let is_builtin = ["help", "version"].contains(&arg.get_id().as_str());
        !arg.is_hide_set() && !is_builtin && !inherited.contains(arg.get_id())
    };
    let args: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if !args.is_empty() {
        text.push_str("\n| argument | meaning | default |\n| --- | --- | --- |\n");
    }
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let help = cell(&(help + &values(arg) + &variable(arg)));
        let _ = writeln!(text, "| `{}` | {help} | {} |", cell(&spelling(arg)), default(arg));
    }
    if let Some(examples) = command.get_after_help() {
        let lines = examples.to_string().trim().lines().map(footer_line).collect::<Vec<_>>().join("\n");
        let _ = writeln!(text, "\n```text\n{lines}\n```");
    }
    let mut inherited = inherited.clone();
    inherited.extend(command.get_arguments().filter(|arg| arg.is_global_set()).map(Arg::get_id));
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        section(command, &inherited, text);
    }
}

/// An argument as it is typed.
fn spelling(arg: &Arg) -> String {
    let names = [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let names = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let takes_value = arg.get_action().takes_values();
    let value = arg.get_value_names().filter(|_| takes_value || arg.is_positional());
    let value = value.map(|names| names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" "));
    let is_optional = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    match value {
        None => names,
        Some(value) if arg.is_positional() => value,
        Some(value) if is_optional => format!("{names}[={value}]"),
        Some(value) => format!("{names} {value}"),
    }
}

/// The values that an argument can have, if it has a list of them.
fn values(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set()).map(|value| match value.get_help() {
        Some(help) => format!("`{}` ({})", value.get_name(), help.to_string().trim_end_matches('.')),
        None => format!("`{}`", value.get_name()),
    });
    let values: Vec<String> = values.collect();
    if values.is_empty() { String::new() } else { format!(". Values: {}", values.join(", ")) }
}

fn variable(arg: &Arg) -> String {
    arg.get_env().map_or_else(String::new, |name| format!(". Environment: `{}`", name.to_string_lossy()))
}

fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<String> = arg.get_default_values().iter().map(|value| format!("`{}`", value.display())).collect();
    values.join(", ")
}

/// A text as a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A line of the text after the flags: an example, as it is, or a paragraph, wrapped.
fn footer_line(line: &str) -> String {
    if line.starts_with(' ') { line.to_owned() } else { wrapped(line) }
}

/// A text in lines of at most 100 columns, its paragraphs kept.
fn wrapped(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n") {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > 100 {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command_and_flag() {
        let page = page();
        let mut root = Cli::command();
        root.build();
        let mut commands = vec![&root];
        while let Some(command) = commands.pop() {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                if let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) {
                    assert!(page.contains(&format!("--{long}")), "{long}");
                }
            }
            let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
            commands.extend(command.get_subcommands().filter(shown));
        }
        assert!(page.contains("## atoll ptx transform") && !page.contains("## atoll executor"), "{page}");
    }
}
