//! Servant, Snap and Happstack, which go the way that Scotty goes in the plain run.

use crate::frameworks::haskell::tour;

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
