//! The document is that of the table: everything in it, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::document::{document, written};
use super::operations::OPERATIONS;
use crate::table::TableRow;
use crate::tests::fixture::Fixture;
use crate::{door, node_table, shared};

/// The document as it is kept.
const DOCUMENT: &str = include_str!("../../openapi.json");
const DOCUMENTATION: &str = include_str!("../../../../../docs/api.md");

fn rows(api: &Fixture) -> Vec<TableRow> {
    let api = shared(api.context.clone());
    node_table(&api, door(&api)).rows
}

/// Returns the codes of problems that docs/api.md has: in the table of errors, and in the last
/// column of the others.
fn documented_codes() -> BTreeSet<String> {
    let cells = DOCUMENTATION
        .lines()
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|')?.rsplit('|').next());
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let is_code = |word: &&str| word.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
    words.filter(is_code).map(String::from).collect()
}

/// Returns the literals in the API's own files after what makes problems.
fn codes_in_source(directory: &Path, codes: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("tests") || path.ends_with("tests.rs") {
            continue;
        }
        if path.is_dir() {
            codes_in_source(&path, codes);
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for maker in ["::new(", "::invalid(", "::conflict(", "::missing(", "::later(", "forbidden("]
        {
            for call in source.split(&format!("Problem{maker}")).skip(1) {
                codes.extend(first_code(call));
            }
        }
    }
}

/// Returns the first literal of a call, if it is a word.
fn first_code(call: &str) -> Option<String> {
    let statement = call.split(';').next()?;
    let code = statement.split('"').nth(1)?;
    let is_code = code.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
    is_code.then(|| code.to_owned())
}

#[tokio::test]
async fn the_document_that_is_served_is_that_of_the_table() {
    let api = Fixture::start().await;
    let made = written(&document(&rows(&api), &documented_codes()));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), &made).unwrap();
        return;
    }
    assert!(made == DOCUMENT, "the API has changed: UPDATE_EXPECT=1 writes openapi.json anew");
    let served: Value = api.client.get("/v1/openapi.json").await.unwrap();
    assert_eq!(served, serde_json::from_str::<Value>(DOCUMENT).unwrap());
}

#[tokio::test]
async fn each_route_is_in_the_document_and_nothing_else() {
    let api = Fixture::start().await;
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<String> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
        })
        .collect();
    let table: BTreeSet<String> =
        rows(&api).iter().map(|row| format!("{} {}", row.method, row.path)).collect();
    assert_eq!(described, table);
    let said: BTreeSet<String> = OPERATIONS.iter().map(|one| one.route.to_owned()).collect();
    assert_eq!(said, table);
    let ids: BTreeSet<&str> = OPERATIONS.iter().map(|one| one.id).collect();
    assert_eq!(ids.len(), table.len(), "two operations have one name");
}

#[test]
fn each_code_of_a_problem_is_documented() {
    let mut codes = BTreeSet::new();
    codes_in_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut codes);
    assert!(codes.len() > 60, "{codes:?}");
    let documented = documented_codes();
    let missing: Vec<_> = codes.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/api.md is to say when these come: {missing:?}");
}
