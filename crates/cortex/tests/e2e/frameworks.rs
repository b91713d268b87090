//! Applications as the frameworks' own generators make them. They spend their time in package tools
//! and compilers, so `./test` starts them first, beside all others.

mod django;
mod elixir;
mod express;
mod go;
mod haskell;
mod java;
mod neverblock;
mod nextjs;
mod php;
mod pyramid;
mod python_web;
mod rails;
mod rust;
mod thesis;
mod widening;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::node::Node;

/// The variable that names a directory where the nodes of a run keep what package tools fetched.
pub const PACKAGES: &str = "CORTEX_E2E_PACKAGES";

/// The variable with which every application stands behind a wall, and not one of each family.
const ALL_WALLED: &str = "CORTEX_LONG_PROOFS";

/// Starts a node on which applications stand behind a wall, as nothing else is said of them. What
/// they fetch they share with nobody.
fn walled_node() -> Node {
    let node = Node::start();
    node.cortex(&["isolation", "standard"]);
    node
}

/// Starts a node whose builds share what they fetched with those of the other nodes of this run.
fn node() -> Node {
    if std::env::var_os(ALL_WALLED).is_some() {
        return walled_node();
    }
    let node = Node::start();
    if let Some(packages) = std::env::var_os(PACKAGES).map(PathBuf::from) {
        fs::create_dir_all(&packages).expect("a directory of the run's own");
        symlink(&packages, node.data().join("cache")).expect("no build has made it yet");
    }
    node
}
