//! Haskell's Scotty as its tutorial begins, in the project of `cabal init`, with what Debian
//! packages. `thesis` has Yesod, `widening` the other servers.

use std::path::Path;

use super::walled_node;
use crate::project::{edit, of_files, tool};
use crate::tour::Tour;

const SCOTTY: &str = r#"{-# LANGUAGE OverloadedStrings #-}
module Main where

import System.Environment (getEnv)
import Web.Scotty

main :: IO ()
main = do
    port <- read <$> getEnv "PORT"
    scotty port $ get "/" $ text "Hello from Haskell"
"#;

/// Generates a project without a package index: what the operating system has is enough.
fn generate(project: &Path, packages: &str, main: &str) {
    std::fs::create_dir(project).unwrap();
    let options = "--config-file=/dev/null init --non-interactive --exe --package-name generated";
    tool(project, "cabal", &options.split_whitespace().collect::<Vec<_>>());
    // The bounds that it writes for `base` stay.
    let packages = format!("build-depends: {packages},");
    edit(&project.join("generated.cabal"), "build-depends:", &packages);
    of_files(project, &[("app/Main.hs", main)]);
}

/// Tours the program under the name of its framework.
pub fn tour(name: &str, packages: &str, main: &str, server: &str) {
    let node = walled_node();
    let project = node.path(&format!("renamed-{name}"));
    let answer = format!("Hello from {name}");
    generate(&project, packages, &main.replace("Hello from Haskell", &answer));
    Tour {
        name,
        project: &project,
        found: &format!("Haskell app detected (generated.cabal lists {server})"),
        first: &answer,
        second: "Hello again",
        file: "app/Main.hs",
        scale: 2,
    }
    .run(&node);
}

#[test]
fn scotty_is_toured() {
    tour("scotty", "scotty", SCOTTY, "scotty");
}
