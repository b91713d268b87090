//! `cortex completions`: what lets a shell complete commands and options.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

#[derive(Debug, Args)]
pub struct Completions {
    /// Whose completions: bash, zsh or fish
    shell: Shell,
}

impl Completions {
    pub fn run(self) {
        let mut command = Cli::command();
        let name = command.get_name().to_string();
        clap_complete::generate(self.shell, &mut command, name, &mut std::io::stdout());
    }
}
