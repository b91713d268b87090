//! The walls inside the binary's crate: which part a module belongs to, and that every part names
//! parts of lower levels alone, never one of its own level. Each part becomes a crate.

use std::collections::BTreeSet;

use super::{File, assert_none, rust};

/// Parts with their levels; the vocabulary and the pure machines are crates already, below all.
const LEVELS: &[(&str, u32)] = &[
    ("store", 3),
    ("store-etcd", 4),
    ("cluster", 4),
    ("redis", 4),
    ("agent", 4),
    ("router", 4),
    ("checker", 4),
    ("upgrade", 4),
    ("logs", 4),
    ("api", 5),
    ("node", 6),
    ("proxy", 6),
    ("cli", 7),
    ("cortex", 8),
    ("bench", 8),
];

/// Modules of the binary's crate, by the longest path that fits.
const PARTS: &[(&str, &str)] = &[
    ("agent", "agent"),
    ("api", "api"),
    ("bench", "bench"),
    ("checker", "checker"),
    ("cli", "cli"),
    ("install", "cli"),
    ("lib", "cortex"),
    ("logs", "logs"),
    ("main", "cortex"),
    ("node", "node"),
    ("proxy", "proxy"),
    ("router", "router"),
    ("store", "store"),
    ("store/backend", "node"),
    ("store/etcd", "store-etcd"),
    ("store/face", "redis"),
    ("store/open", "node"),
    ("store/peers", "cluster"),
    ("store/remote", "cluster"),
    ("upgrade", "upgrade"),
];

/// The command line starts the bench until that is a program of its own.
const ALLOWED: &[(&str, &str)] = &[("cli", "bench")];

const SOURCES: &str = "crates/cortex/src/";

#[test]
fn parts_of_the_binary_name_lower_parts_alone() {
    let files: Vec<File> = rust().filter(|file| file.path.starts_with(SOURCES)).collect();
    let module = |file: &File| {
        let path = file.path.strip_prefix(SOURCES).and_then(|path| path.strip_suffix(".rs"));
        path.map(str::to_owned).expect("a module's file")
    };
    let modules: BTreeSet<String> = files.iter().map(module).collect();
    let mut wrong = BTreeSet::new();
    let mut used = BTreeSet::new();
    for file in &files {
        let own = module(file);
        if own.contains("/tests") || own.ends_with("tests") {
            continue;
        }
        let from = part(&own);
        for path in named(&own, without_tests(&file.text)) {
            let to = part(&resolved(&path, &modules));
            let allowed = ALLOWED.contains(&(from, to));
            if from != to && level(to) >= level(from) {
                used.extend(allowed.then_some((from, to)));
                if !allowed {
                    let path = path.join("::");
                    wrong.insert(format!("{}: {from} names {to} ({path})", file.path));
                }
            }
        }
    }
    assert_none("a part names parts of lower levels alone", wrong.into_iter().collect());
    assert_eq!(used.len(), ALLOWED.len(), "what is allowed is still needed");
}

#[test]
fn a_name_is_found_wherever_it_stands() {
    let text = "use crate::store::{Store, peers::Peers as P};\nuse super::super::super::cli;\n\
                fn f() { crate::node::run(); x.supercrate::y(); }\n\
                #[cfg(test)]\nmod tests { use crate::bench::x; }\n";
    let mut found: Vec<String> =
        named("agent/prepare/steps", without_tests(text)).iter().map(|p| p.join("/")).collect();
    found.sort();
    assert_eq!(found, ["cli", "node/run", "store/Store", "store/peers/Peers"]);
    let modules = BTreeSet::from(["store".to_owned(), "store/peers".to_owned()]);
    let path = ["store", "peers", "Peers"].map(str::to_owned);
    assert_eq!(part(&resolved(&path, &modules)), "cluster");
    assert!(level("cluster") > level("store") && level("api") > level("cluster"));
}

fn part(module: &str) -> &'static str {
    let fits = |prefix: &str| {
        module.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let longest = PARTS.iter().filter(|(prefix, _)| fits(prefix)).max_by_key(|(p, _)| p.len());
    longest.map_or_else(|| panic!("tests/walls.rs says of no part that it has {module}"), |p| p.1)
}

fn level(part: &str) -> u32 {
    LEVELS.iter().find(|(name, _)| *name == part).map(|(_, level)| *level).expect("a level")
}

/// The module that a path names, or the first part of the path for an item of a root module.
fn resolved(path: &[String], modules: &BTreeSet<String>) -> String {
    let longest = (1..=path.len()).rev().map(|count| path[..count].join("/"));
    longest.into_iter().find(|one| modules.contains(one)).unwrap_or_else(|| path[0].clone())
}

fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

/// What a module names by `crate::` and `super::`, as paths from the crate's root. A list in braces
/// names each of its parts.
fn named(module: &str, text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = &text[..at];
            if before.ends_with(is_word) || before.ends_with("super::") {
                continue;
            }
            let mut base: Vec<String> = Vec::new();
            let mut rest = &text[at..];
            if start == "crate::" {
                rest = &rest[start.len()..];
            } else {
                base = module.split('/').map(str::to_owned).collect();
                while let Some(further) = rest.strip_prefix("super::") {
                    rest = further;
                    base.pop();
                }
            }
            while let Some(end) = rest.find(|c| !is_word(c)).filter(|end| *end > 0) {
                base.push(rest[..end].to_owned());
                match rest[end..].strip_prefix("::") {
                    Some(further) => rest = further,
                    None => break,
                }
            }
            let list = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
            for item in list.unwrap_or_default().split(',') {
                let item = item.split_whitespace().next().unwrap_or_default();
                let item = item.split("::").filter(|one| !matches!(*one, "" | "self"));
                found.push(base.iter().cloned().chain(item.map(str::to_owned)).collect());
            }
        }
    }
    found.retain(|path: &Vec<String>| !path.is_empty());
    found
}
