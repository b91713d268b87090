//! House rules that a machine can check, over every tracked file. The reasons are in `STYLE.md`.

#[path = "tidy/documents.rs"]
mod documents;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The most lines of a file; a longer one lacks a concept. Tests move into a file beside it.
const FILE_LINES_MAX: usize = 600;
const LINE_COLUMNS_MAX: usize = 100;
/// The most lines of a function; a longer one hides a step that has no name yet.
const FUNCTION_LINES_MAX: usize = 100;

/// The levels of the workspace: a crate may only name crates of lower levels. Tests may name others
/// of their own level.
const LEVELS: &[(&str, u32)] = &[
    ("model", 0),
    ("os", 1),
    ("access-core", 1),
    ("certificate-core", 1),
    ("store-core", 1),
    ("acme-core", 1),
    ("agent-core", 1),
    ("recipe-core", 1),
    ("router-core", 1),
    ("checker-core", 1),
    ("secret-core", 1),
    ("session-core", 1),
    ("runtime", 2),
    ("store", 3),
    ("metrics", 3),
    ("shim", 3),
    ("tls", 3),
    ("api-types", 3),
    ("store-contract", 4),
    ("store-etcd", 4),
    ("cluster", 4),
    ("redis", 4),
    ("agent", 4),
    ("router", 4),
    ("certificates", 4),
    ("checker", 4),
    ("upgrade", 4),
    ("logs", 4),
    ("secrets", 4),
    ("client", 4),
    ("source", 4),
    ("backup", 5),
    ("api", 6),
    ("node", 7),
    ("proxy", 7),
    ("cli", 8),
    ("cortex", 9),
    ("bench", 9),
    ("sim", 9),
    ("fuzz-targets", 9),
];
/// The crates that decide, which do no I/O.
const PURE: [&str; 11] = [
    "model",
    "access",
    "acme",
    "certificate",
    "store",
    "agent",
    "recipe",
    "router",
    "checker",
    "secret",
    "session",
];

/// What a crate promises not to know, beside crates above it: the runtime, any I/O, or another
/// part. A crate's own `clippy.toml` has what else it forbids.
const KEPT_OUT: &[(&str, &[&str])] = &[
    ("os", RUNTIMES),
    ("shim", RUNTIMES),
    ("source", RUNTIMES),
    ("runtime", &["store-core", "hyper", "axum"]),
    ("metrics", &["store-core", "hyper", "axum"]),
    ("client", &["store-core", "axum"]),
    ("tls", &["store-core", "hyper", "axum", "tokio-rustls", "router-core"]),
    ("api-types", &["tokio", "hyper", "axum", "futures-util", "store-core", "os", "socket2"]),
    ("store", &["hyper", "axum", "rcgen", "agent-core", "router-core"]),
    ("redis", &["hyper", "axum", "agent-core", "router-core"]),
    ("store-etcd", &["hyper", "axum", "agent-core", "router-core"]),
    ("cluster", &["hyper", "axum", "agent-core", "router-core"]),
    ("router", &["store-core", "store", "agent-core", "axum"]),
    ("agent", &["router-core", "hyper", "axum"]),
    ("certificates", &["router", "router-core", "agent-core", "axum"]),
    ("checker", &["router-core", "agent-core", "hyper", "axum"]),
    ("secrets", &["router-core", "agent-core", "hyper", "axum", "cluster"]),
    ("backup", &["router-core", "hyper", "axum", "cluster"]),
    ("proxy", &["store-core", "store", "agent-core", "axum"]),
    ("cli", &["rusqlite", "bench"]),
];
const RUNTIMES: &[&str] = &["tokio", "hyper", "axum", "futures-util", "store-core"];

/// The most lines of a crate without its tests; a larger one is two.
const CRATE_LINES_MAX: usize = 15_000;

struct File {
    /// The path relative to the repository's root, with `/`.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root is there")
}

/// Returns every file of the repository that is text, except what is built or fetched.
fn files() -> Vec<File> {
    let root = root();
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a readable directory").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let skipped =
                matches!(name.as_str(), ".git" | "target" | "node_modules" | "__pycache__");
            if skipped || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(&root).expect("it lies below").to_string_lossy();
                found.push(File { path: path.into_owned(), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.iter().any(|file| file.path == "Cargo.toml"), "this is the root");
    found
}

fn rust() -> impl Iterator<Item = File> {
    files().into_iter().filter(|file| file.path.ends_with(".rs"))
}

/// Returns whether it is this file, which names what it forbids.
fn is_tidy(file: &File) -> bool {
    file.path == "tests/tidy.rs"
}

fn assert_none(rule: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}

/// Returns the lines that match, as `path:line: text`.
fn lines(file: &File, matches: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = file.text.lines().enumerate().filter(|(_, line)| matches(line));
    lines.map(|(n, line)| format!("{}:{}: {}", file.path, n + 1, line.trim())).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

#[test]
fn files_stay_short() {
    let long = rust().filter_map(|file| {
        let count = file.text.lines().count();
        (count > FILE_LINES_MAX).then(|| format!("{}: {count} lines", file.path))
    });
    assert_none("a file has at most 600 lines with its tests", long.collect());
}

#[test]
fn crates_stay_small() {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for file in rust() {
        let Some((of, inside)) = file.path.split_once("/src/") else { continue };
        if !inside.contains("tests/") && !inside.ends_with("tests.rs") {
            *lines.entry(of.to_owned()).or_default() += file.text.lines().count();
        }
    }
    let large = lines.iter().filter(|(_, count)| **count > CRATE_LINES_MAX);
    let large = large.map(|(of, count)| format!("{of}: {count} lines")).collect();
    assert_none("a crate has at most 15,000 lines without its tests", large);
}

#[test]
fn lines_stay_short() {
    let long = rust().flat_map(|file| {
        // rustfmt cannot break a text; those are few and stay readable.
        lines(&file, |line| {
            let text = line.contains('"') || line.ends_with('\\');
            line.chars().count() > LINE_COLUMNS_MAX && !text
        })
    });
    assert_none("a line has at most 100 columns", long.collect());
}

#[test]
fn functions_stay_short() {
    let mut long = Vec::new();
    for file in rust() {
        let mut open: Option<(usize, String, usize)> = None;
        for (number, line) in file.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let is_start = words(line).take(4).any(|word| word == "fn") && line.ends_with('{');
            match &open {
                None if is_start => open = Some((indent, line.trim().into(), number)),
                Some((at, head, start)) if indent == *at && line.trim_start().starts_with('}') => {
                    if number - start > FUNCTION_LINES_MAX {
                        long.push(format!("{}: {head} has {} lines", file.path, number - start));
                    }
                    open = None;
                }
                _ => {}
            }
        }
    }
    assert_none("a function has at most 100 lines", long);
}

#[test]
fn modules_say_what_they_are() {
    let silent = rust().filter(|file| !file.text.starts_with("//!")).map(|file| file.path);
    assert_none(
        "a file begins with `//!`: what it owns, must not know, who drives it",
        silent.collect(),
    );
}

#[test]
fn nothing_is_called_common_or_utils() {
    let banned =
        ["mod", "common", "utils", "util", "helpers", "helper", "types", "prelude", "misc"];
    let named = rust().filter(|file| {
        let names = file.path.trim_end_matches(".rs").split('/');
        names.filter(|name| banned.contains(name)).count() > 0
    });
    assert_none("a module is named after what it holds", named.map(|file| file.path).collect());
}

#[test]
fn type_names_say_something() {
    let vague = ["Manager", "Helper", "Util", "Utils", "Data", "Info"];
    // The record `node::ID::info`, and the command `info`.
    let allowed = ["NodeInfo", "Info"];
    let named = rust().filter(|file| !is_tidy(file)).flat_map(|file| {
        lines(&file, |line| {
            let mut words =
                words(line).skip_while(|word| !matches!(*word, "struct" | "enum" | "trait"));
            let declared = words.next().is_some() && !line.trim_start().starts_with("//");
            declared.then(|| words.next()).flatten().is_some_and(|name| {
                !allowed.contains(&name) && vague.iter().any(|end| name.ends_with(end))
            })
        })
    });
    assert_none("a type's name is a noun that says what it is", named.collect());
}

/// The first word of a doc comment that has no subject.
const SUBJECTLESS: &[&str] =
    &["Of", "So many", "Who", "Whoever", "Whom", "Where", "When", "Why", "None"];
/// The comments that clap shows to people as help for an argument.
const HELP: &[&str] = &["crates/front/cli/src/", "tools/bench/src/"];

#[test]
fn comments_are_sentences_with_a_subject() {
    let mut found = Vec::new();
    let is_help = |file: &File| HELP.iter().any(|place| file.path.starts_with(place));
    for file in rust().filter(|file| !is_help(file)) {
        let mut inside = false;
        for (number, line) in file.text.lines().enumerate() {
            let comment = line.trim_start();
            let said = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"));
            let begins = said.filter(|_| !inside).is_some_and(|said| {
                SUBJECTLESS.iter().any(|word| {
                    let after = said.trim_start().strip_prefix(word);
                    after.is_some_and(|after| !after.starts_with(char::is_alphanumeric))
                })
            });
            if begins {
                found.push(format!("{}:{}: {comment}", file.path, number + 1));
            }
            inside = said.is_some_and(|said| !said.trim().is_empty());
        }
    }
    assert_none("a doc comment is a sentence with a subject", found);
}

#[test]
fn nothing_is_unfinished() {
    let banned = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let reminders = ["FIXME", "XXX", "TODO"];
    let found = files().into_iter().filter(|file| !is_tidy(file) && file.path != "Cargo.lock");
    let found = found.filter(|file| {
        // These name the words in order to forbid them.
        !matches!(file.path.as_str(), "Cargo.toml" | "STYLE.md")
    });
    let found = found.flat_map(|file| {
        lines(&file, |line| {
            banned.iter().any(|b| line.contains(b)) || words(line).any(|w| reminders.contains(&w))
        })
    });
    assert_none("nothing is left for later, nothing is skipped", found.collect());
}

#[test]
fn tests_wait_for_a_state_and_never_just_sleep() {
    // The one place that polls, and the loop that watches a command with a deadline.
    let allowed = ["crates/cortex/tests/e2e/wait.rs", "crates/cortex/tests/e2e/node.rs"];
    let found = rust()
        .filter(|file| file.path.contains("/tests/e2e/") && !allowed.contains(&file.path.as_str()));
    let found = found.flat_map(|file| lines(&file, |line| line.contains("thread::sleep")));
    assert_none("a test polls for a state with a deadline", found.collect());
}

/// Returns the dependencies that a manifest names for all that it builds, and those for tests
/// alone.
fn sections(manifest: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (normal, tests) = manifest.split_once("[dev-dependencies]").unwrap_or((manifest, ""));
    (dependencies(normal), dependencies(&format!("[dev-dependencies]{tests}")))
}

/// Returns the names in the `[dependencies]`-like sections of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().expect("split gives one at least");
            names.insert(name.to_string());
        }
    }
    names
}

#[test]
fn arrows_between_crates_point_down() {
    let levels: BTreeMap<&str, u32> = LEVELS.iter().copied().collect();
    let mut wrong = Vec::new();
    let manifests = manifests();
    for (name, manifest) in &manifests {
        let Some(level) = levels.get(name.as_str()) else {
            wrong.push(format!("{name}: a crate that design and tidy do not know"));
            continue;
        };
        let (normal, _) = sections(manifest);
        for dependency in dependencies(manifest) {
            let is_lower = |other: &u32| match normal.contains(&dependency) {
                true => other < level,
                false => other <= level,
            };
            if levels.get(dependency.as_str()).is_some_and(|other| !is_lower(other)) {
                wrong.push(format!("{name} -> {dependency}"));
            }
        }
    }
    assert_none("a crate names crates of lower levels alone", wrong);
    assert_eq!(manifests.len(), LEVELS.len(), "every crate of the table is there");
}

/// Checks that what is shipped is optimised: `dist` inherits from `release` what that leaves alone.
#[test]
fn dist_says_how_to_optimise_what_release_does_not() {
    let manifest = files().into_iter().find(|file| file.path == "Cargo.toml").expect("the root's");
    let packages = |profile: &str| -> BTreeSet<String> {
        let header = format!("[profile.{profile}.package]");
        let lines = manifest.text.lines().skip_while(|line| *line != header).skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        lines.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
    };
    let (release, dist) = (packages("release"), packages("dist"));
    assert!(release.contains("cli"), "{release:?}");
    assert_none("a package stands in both profiles", release.difference(&dist).cloned().collect());
}

/// Returns the manifests of our own crates, by name.
fn manifests() -> BTreeMap<String, String> {
    let manifest = |file: File| {
        let is_ours = ["crates/", "tools/"].iter().any(|place| file.path.starts_with(place))
            && file.path.ends_with("/Cargo.toml");
        let name = file.text.lines().find_map(|line| line.strip_prefix("name = "))?;
        is_ours.then(|| (name.trim_matches('"').to_owned(), file.text.clone()))
    };
    files().into_iter().filter_map(manifest).collect()
}

/// Checks what a crate must not know; what it names by way of another of our crates counts as well.
#[test]
fn what_a_wall_keeps_out_stays_out() {
    let manifests = manifests();
    let mut wrong = Vec::new();
    for (name, forbidden) in KEPT_OUT {
        let (mut ways, mut known) = (vec![(*name).to_owned()], BTreeSet::new());
        while let Some(way) = ways.pop() {
            let last = way.rsplit(' ').next().expect("a way has an end");
            if forbidden.contains(&last) {
                wrong.push(way);
            } else if let Some(manifest) = manifests.get(last)
                && known.insert(last.to_owned())
            {
                ways.extend(sections(manifest).0.iter().map(|next| format!("{way} -> {next}")));
            }
        }
    }
    assert_none("what a crate must not know", wrong);
}

#[test]
fn pure_crates_stay_pure() {
    let mut wrong = Vec::new();
    let files = files();
    for name in PURE {
        let name = if name == "model" { name.into() } else { format!("core/{name}") };
        let path = format!("crates/{name}/clippy.toml");
        let bans = files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
        let bans = bans.unwrap_or_default();
        for ban in ["HashMap", "SystemTime", "Instant", "fs::File", "TcpStream", "process::Command"]
        {
            if !bans.contains(ban) {
                wrong.push(format!("{path} does not ban {ban}"));
            }
        }
        let outside = ["tokio", "rand", "getrandom", "rustix", "socket2", "axum", "hyper"];
        let manifest = files.iter().find(|file| file.path == format!("crates/{name}/Cargo.toml"));
        let manifest = manifest.expect("checked by the arrows").text.as_str();
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for dependency in dependencies(normal) {
            if outside.contains(&dependency.as_str()) {
                wrong.push(format!("{name} depends on {dependency}"));
            }
        }
    }
    assert_none("what decides does no I/O", wrong);
}

/// Returns the code before the `mod tests` at the bottom.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

#[test]
fn the_store_knows_no_applications() {
    let names =
        ["model::application", "model::release", "ApplicationSpec", "ReleaseId", "TypedKey"];
    let found = rust().filter(|file| file.path.starts_with("crates/core/store/src/"));
    let found = found.flat_map(|file| {
        let code = File { text: without_tests(&file.text).into(), path: file.path };
        lines(&code, |line| names.iter().any(|name| line.contains(name)))
    });
    assert_none("the store keeps keys and values, whatever they mean", found.collect());
}

#[test]
fn historic_names_stay_in_their_place() {
    let names = ["miranda", "saffron", "ariel", "g23", "gnosis", "blami"];
    let found = files().into_iter().filter(|file| {
        let header = file.path.starts_with("crates/") && file.path.ends_with("src/lib.rs");
        // The command `vera` takes the options of the thesis, and says so.
        let vera = file.path.contains("vera");
        !header && !vera && !is_tidy(file) && file.path != "docs/names.md"
    });
    let found = found.flat_map(|file| {
        lines(&file, |line| {
            // The option of that command is allowed.
            let line = line.to_lowercase().replace("--ariel-port", "").replace("ariel-port", "");
            words(&line).any(|word| names.contains(&word))
        })
    });
    assert_none("historic names live in docs/names.md and crate headers", found.collect());
}

#[test]
fn no_file_names_a_place_of_one_machine() {
    // They are written in two parts, so that this file does not name them either.
    let banned = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("registry", ".npmjs"),
        concat!("pypi", ".org"),
        concat!("static.", "crates.io"),
        concat!("index.", "crates.io"),
        concat!("deb.", "debian.org"),
    ];
    let found = files().into_iter().filter(|file| file.path != "LICENSE");
    let found = found.flat_map(|file| lines(&file, |line| banned.iter().any(|b| line.contains(b))));
    assert_none("no absolute path of a machine, no registry's host", found.collect());
}

/// Checks that no merge was committed with what Git marks as undecided.
#[test]
fn no_conflict_is_left_in_a_file() {
    let marks = ["<<<<<<< ", ">>>>>>> "];
    let found = files().into_iter().filter(|file| !is_tidy(file));
    let found =
        found.flat_map(|file| lines(&file, |line| marks.iter().any(|m| line.starts_with(m))));
    assert_none("conflicts are resolved", found.collect());
}

/// Checks that `ring` is the only provider of cryptography: two in one binary panic at run time.
#[test]
fn one_provider_of_cryptography() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("there is a Cargo.lock");
    let found = lock.lines().filter(|line| line.contains("name = \"aws-lc"));
    assert_none("aws-lc stays out", found.map(str::to_string).collect());
}

/// Checks that what CONTRIBUTING.md says of a strategy is true: its example is the file it names,
/// and each file is registered by one line and described where users look.
#[test]
fn strategies_are_one_file_and_one_line() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect(path);
    let place = "crates/core/router/src/balance";
    let (how, registry) = (read("CONTRIBUTING.md"), read(&format!("{place}.rs")));
    let round_robin = read(&format!("{place}/round_robin.rs"));
    let start = round_robin.find("pub struct").expect("the strategy");
    let end = round_robin.find("\n#[cfg(test)]").expect("its tests");
    let example = format!("```rust\n{}```", &round_robin[start..end]);
    assert!(how.contains(&example), "CONTRIBUTING.md does not show all of round_robin.rs");
    let (manual, reference) = (read("docs/balancing.md"), read("cortex.example.toml"));
    let mut count = 0;
    for entry in fs::read_dir(root().join(place)).expect("the strategies").flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(module) = file.strip_suffix(".rs").filter(|module| *module != "tests") else {
            continue;
        };
        let lines = registry.lines().filter(|line| line.contains(&format!(", &{module}::")));
        assert_eq!(lines.count(), 1, "{file} is registered by one line");
        let name = module.replace('_', "-");
        assert!(registry.contains(&format!("(\"{name}\", &{module}::")), "{file} has its own name");
        assert!(
            manual.contains(&format!("| `{name}`")),
            "docs/balancing.md says what {name} is for"
        );
        assert!(reference.contains(&format!("\"{name}\"")), "cortex.example.toml names {name}");
        count += 1;
    }
    assert!(count >= 5, "{count} strategies");
}

#[test]
fn scripts_are_executable() {
    use std::os::unix::fs::PermissionsExt;
    for script in ["test", ".ci/run"] {
        let path = root().join(script);
        let mode = fs::metadata(&path).map(|found| found.permissions().mode()).unwrap_or_default();
        assert!(mode & 0o111 == 0o111, "{script} is executable");
    }
}
