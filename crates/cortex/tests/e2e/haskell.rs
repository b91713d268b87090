//! Haskell's servers other than Yesod, which `thesis` has: Scotty, Servant, Snap and Happstack,
//! each as its tutorial begins, in the project of `cabal init`, with what Debian packages.

use std::path::Path;

use crate::node::Node;
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

const SERVANT: &str = r#"{-# LANGUAGE DataKinds #-}
module Main where

import Network.Wai.Handler.Warp (run)
import Servant
import System.Environment (getEnv)

type API = Get '[PlainText] String

server :: Server API
server = return "Hello from Haskell"

main :: IO ()
main = do
    port <- read <$> getEnv "PORT"
    run port (serve (Proxy :: Proxy API) server)
"#;

/// A program for Snap; its own command line says where it listens.
const SNAP: &str = r#"{-# LANGUAGE OverloadedStrings #-}
module Main where

import Snap.Core
import Snap.Http.Server

main :: IO ()
main = quickHttpServe $ ifTop (writeText "Hello from Haskell")
"#;

const HAPPSTACK: &str = r#"module Main where

import Happstack.Server (nullConf, ok, port, simpleHTTP, toResponse)
import System.Environment (getEnv)

main :: IO ()
main = do
    number <- read <$> getEnv "PORT"
    simpleHTTP nullConf { port = number } $ ok (toResponse "Hello from Haskell")
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

fn tour(name: &str, packages: &str, main: &str, server: &str) {
    let node = Node::start();
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

#[test]
fn servant_is_toured() {
    tour("servant", "servant-server, warp", SERVANT, "servant-server");
}

#[test]
fn snap_is_toured() {
    tour("snap", "snap-core, snap-server", SNAP, "snap-server");
}

#[test]
fn happstack_is_toured() {
    tour("happstack", "happstack-server", HAPPSTACK, "happstack-server");
}
