//! The frameworks that are recognised: the extension point of detection. A framework is one file
//! with one type, and one line in `ALL`. Frameworks read the tree and know nothing of each other,
//! of Procfiles and of the project's settings: `detect` combines these.

mod django;
mod fastapi;
mod flask;
pub mod front_end;
pub(crate) mod gems;
mod go;
mod haskell;
mod java;
mod nextjs;
mod node;
mod package_json;
mod packages;
mod phoenix;
mod php;
mod procfile_only;
mod pyramid;
mod python;
mod python_code;
mod python_packages;
mod python_tools;
mod rack;
mod rails;
mod rust;
mod sqlite;
mod static_site;
mod venv;

use std::collections::BTreeMap;

use model::release::{ProcessRecipe, StaticMount};
use model::{ProcessType, Recipe};

use crate::procfile::PROCFILE;
use crate::source::SourceTree;

pub trait Framework: Sync {
    /// Returns the name in lower case, which `--type` and `type =` take.
    fn name(&self) -> &'static str;

    /// Returns one line for people whose project was not recognised.
    fn looks_for(&self) -> &'static str;

    /// Returns the reason, naming the file that decided: "manage.py names Django".
    fn detect(&self, tree: &SourceTree) -> Option<String>;

    /// Returns how it is built, released and started. Called after `detect` said yes, or because
    /// the user chose this framework. `framework` and `decided_by` are filled in by the caller.
    fn recipe(&self, tree: &SourceTree) -> Result<Recipe, RecipeError>;

    /// Returns what runs in place of a command that is written for another platform's own server,
    /// and the note that says so.
    fn in_place_of(&self, _tree: &SourceTree, _command: &str) -> Option<(ProcessRecipe, String)> {
        None
    }
}

/// The reason why there is no way to run it, and what to do: the end of "this looks like Rails, but
/// …".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeError(pub String);

/// All frameworks; the first that recognises a tree wins. Rails, Django and the like carry a
/// package.json for their assets, so Node.js comes after them; what needs the least comes last.
pub const ALL: &[&dyn Framework] = &[
    &rails::Rails,
    &rack::Rack,
    &php::Php,
    &go::Go,
    &java::Java,
    &rust::Rust,
    &haskell::Haskell,
    &phoenix::Phoenix,
    &django::Django,
    &pyramid::Pyramid,
    &flask::Flask,
    &fastapi::FastApi,
    &python::Python,
    &nextjs::NextJs,
    &front_end::FrontEnd,
    &node::Node,
    &procfile_only::ProcfileOnly,
    &static_site::StaticSite,
];

/// Web instances until the user scales: a session, a counter or a list in a program's memory would
/// make two of them answer differently.
pub const WEB_COUNT: u32 = 1;
/// Web instances where the framework keeps nothing in the process, and the data are in a database
/// server: two, so that one may fail.
const STATELESS_COUNT: u32 = 2;

/// Returns one process type, which gets traffic. `concurrency` is 1 for a serial server, `None` for
/// no limit.
pub fn web_only(command: String, concurrency: Option<u32>) -> BTreeMap<ProcessType, ProcessRecipe> {
    let web = ProcessRecipe { command, concurrency, default_count: WEB_COUNT };
    BTreeMap::from([(ProcessType::web(), web)])
}

/// Returns what `web_only` does, for an application whose instances are known to answer alike.
pub fn web_stateless(
    command: String,
    concurrency: Option<u32>,
) -> BTreeMap<ProcessType, ProcessRecipe> {
    let web = ProcessRecipe { command, concurrency, default_count: STATELESS_COUNT };
    BTreeMap::from([(ProcessType::web(), web)])
}

/// Returns what the router serves itself, below a prefix that begins and ends with `/`.
pub fn site_mount(prefix: &str, directory: &str, fallback: Option<&str>) -> Vec<StaticMount> {
    vec![StaticMount {
        prefix: prefix.into(),
        directory: directory.into(),
        fallback: fallback.map(str::to_owned),
    }]
}

/// Returns the text as one word of a `/bin/sh` command.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Returns a note for people whose program listens but reads no `PORT` anywhere; `reading` is how
/// to do it.
pub fn port_note(tree: &SourceTree, pattern: &str, reading: &str) -> Vec<String> {
    let mentions = |word: &str| {
        let mut texts = tree.named(pattern).filter_map(|(_, file)| file.text.as_deref());
        texts.any(|text| text.contains(word))
    };
    if mentions("PORT") || tree.exists(PROCFILE) {
        return Vec::new();
    }
    vec![format!("no {pattern} reads PORT: listen on 127.0.0.1 and the port that {reading} gives")]
}

/// Returns the requests that one instance started by `command` takes at a time, as far as the
/// command and the files that it names tell; `None` if no limit is known.
pub fn concurrency_of(tree: &SourceTree, command: &str) -> Option<u32> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let names = |program: &str| {
        words.iter().any(|word| *word == program || word.ends_with(&format!("/{program}")))
    };
    if names("gunicorn") {
        return gunicorn_concurrency(&words);
    }
    if names("neverblock") {
        return neverblock_concurrency(&words);
    }
    let script = words.iter().find(|word| word.ends_with(".py"))?;
    python_code::script_concurrency(tree, script.trim_start_matches("./"))
}

/// Returns how many requests neverblock takes at a time: so many fibers in each process.
fn neverblock_concurrency(words: &[&str]) -> Option<u32> {
    let number = |short: &str, long: &str, default: u32| match option(words, short, long) {
        Some(text) => text.parse().ok(),
        None => Some(default),
    };
    let fibers = number("", "--fibers", gems::NEVERBLOCK_FIBERS)?;
    fibers.checked_mul(number("-w", "--workers", 1)?)
}

/// Returns the value of an option, behind it or behind a `=`.
fn option<'a>(words: &[&'a str], short: &str, long: &str) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(index, word)| {
        let inline = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
        let separate = || (*word == short || *word == long).then(|| words.get(index + 1))?;
        inline.or_else(|| separate().copied())
    })
}

/// Returns how many requests gunicorn takes at a time: by default one, as it has one synchronous
/// worker.
fn gunicorn_concurrency(words: &[&str]) -> Option<u32> {
    let option = |short: &str, long: &str| option(words, short, long);
    let configured = option("-c", "--config").is_some() || option("-k", "--worker-class").is_some();
    if configured || option("", "--threads").is_some() {
        return None;
    }
    match option("-w", "--workers") {
        None => Some(1),
        Some(workers) => workers.parse().ok().filter(|workers| *workers > 0),
    }
}
