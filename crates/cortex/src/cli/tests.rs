//! The command line as a whole: that it is well formed.

use clap::CommandFactory;

use super::Cli;

#[test]
fn all_arguments_are_well_formed() {
    Cli::command().debug_assert();
}
