//! `atoll completion`

use crate::cli::Cli;
use clap::CommandFactory;
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  atoll completion bash > ~/.local/share/bash-completion/completions/atoll
  atoll completion fish > ~/.config/fish/completions/atoll.fish";

/// Print a shell completion script
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "atoll", &mut script);
    Ok(crate::output::print(&String::from_utf8_lossy(&script))?)
}
