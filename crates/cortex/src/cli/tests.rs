//! The command line as a whole: that it is well formed.

use clap::{CommandFactory, Parser};

use super::{Cli, spelling};

#[test]
fn all_arguments_are_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn options_may_stand_before_a_subcommand() {
    for line in [
        "cortex apps --data-dir /x create shop",
        "cortex config --data-dir /x set A=b",
        "cortex config -a shop set A=b",
        "cortex config set A=b -a shop",
    ] {
        let words = line.split(' ').map(Into::into).collect();
        assert!(Cli::try_parse_from(spelling::normalise(words)).is_ok(), "{line}");
    }
}
