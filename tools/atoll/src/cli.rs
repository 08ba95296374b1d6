//! The command-line grammar.

use crate::commands;
use clap::{Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  atoll compile resnet50.onnx -o resnet50.kg
  atoll serve --model-repository models/
  atoll infer --model resnet50.kg --top 5
  atoll bench latency --rt squeezenet.kg --be resnet50.kg";

/// Places the flags of all commands after those of a command, before `--help`.
const LAST: usize = 900;

/// Compiles deep-learning models into preemptible GPU functions and runs many of them on one device
#[derive(Debug, Parser)]
#[command(name = "atoll", version, after_help = EXAMPLES, max_term_width = 120)]
pub(crate) struct Cli {
    /// Log level (error, warn, info, debug, trace) or filters such as `atoll_engine=debug`; logs go
    /// to standard error
    #[arg(long, global = true, value_name = "FILTER", env = "ATOLL_LOG", display_order = LAST)]
    pub(crate) log: Option<String>,

    /// Log format
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, display_order = LAST)]
    pub(crate) log_format: LogFormat,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Format of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Compile(commands::compile::Args),
    #[cfg(feature = "compiler")]
    Pack(commands::pack::Args),
    #[cfg(feature = "compiler")]
    Import(commands::import::Args),
    Inspect(commands::inspect::Args),
    Keys(commands::keys::Args),
    Sign(commands::sign::Args),
    Verify(commands::sign::VerifyArgs),
    Serve(commands::serve::Args),
    Infer(commands::infer::Args),
    #[cfg(feature = "cuda")]
    Run(commands::run::Args),
    Generate(commands::generate::Args),
    #[command(name = "fn")]
    Functions(commands::functions::Args),
    Graph(commands::graph::Args),
    Future(commands::future::Args),
    Instance(commands::instance::Args),
    Lease(commands::lease::Args),
    Object(commands::object::Args),
    Auth(commands::auth::Args),
    Profile(commands::profile::Args),
    Ps(commands::ps::Args),
    #[command(visible_alias = "devices")]
    Device(commands::device::Args),
    Session(commands::session::Args),
    Usage(commands::usage::Args),
    Top(commands::top::Args),
    Trace(commands::trace::Args),
    Kernel(commands::kernel::Args),
    #[cfg(feature = "compiler")]
    Ptx(commands::ptx::Args),
    Models(commands::models::Args),
    Doctor(commands::doctor::Args),
    Bench(atoll_bench::commands::Args),
    #[command(alias = "completions")]
    Completion(commands::completion::Args),
    #[command(hide = true)]
    Man(commands::man::Args),
    /// Run launches for a daemon; started by `atoll serve`
    #[command(hide = true)]
    Executor,
    /// Run the CPU stages of a tenant's graphs for a daemon; started by `atoll serve`
    #[command(hide = true)]
    Stages,
    #[cfg(feature = "compiler")]
    #[command(hide = true)]
    Recompile(commands::recompile::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                help.contains("Examples:") && help.contains(&format!("atoll {}", command.get_name())),
                "{}",
                command.get_name()
            );
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    /// Help is wrapped at the width of the terminal, so a paragraph is one line; examples that are
    /// wrapped can no longer be copied.
    #[test]
    fn paragraphs_after_the_flags_are_single_lines_and_examples_are_short() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            let is_paragraph = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            for pair in lines.windows(2) {
                assert!(!is_paragraph(pair[0]) || !is_paragraph(pair[1]), "{name}: {pair:?}");
            }
            for line in lines.iter().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 100, "{name}: {line}");
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn the_flags_of_all_commands_are_the_last_ones_before_help() {
        let mut root = Cli::command();
        root.build();
        let help = root.find_subcommand_mut("ps").map(|ps| ps.render_long_help().to_string()).unwrap_or_default();
        let places = ["--json", "--tenant", "--log <", "--log-format", "--help"].map(|flag| help.find(flag));
        assert!(places.is_sorted() && places.iter().all(Option::is_some), "{help}");
    }
}
