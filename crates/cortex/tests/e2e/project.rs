//! Projects to push: copies of the examples, freshly generated ones, and small ones made of text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::run;

/// Returns a directory of the repository, or where this variable says that a copy of it is.
pub fn repository(variable: &str, name: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name))
}

pub fn copy_of_example(name: &str, target: &Path) {
    copy(&repository("CORTEX_EXAMPLES", "examples").join(name), target);
}

/// Copies the gem `neverblock` for a Gemfile that names it by its path.
pub fn copy_of_gem(target: &Path) {
    copy(&repository("CORTEX_RUNTIMES", "runtimes").join("ruby"), target);
}

fn copy(source: &Path, target: &Path) {
    fs::create_dir_all(target).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
    let entries = fs::read_dir(source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    for entry in entries.flatten() {
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        }
    }
}

/// Creates a directory with these files.
pub fn of_files(target: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(target).expect("a directory of the test's own");
    for (path, text) in files {
        let path = target.join(path);
        fs::create_dir_all(path.parent().expect("it lies below the target")).expect("likewise");
        fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// Replaces `old`, which must be there.
pub fn edit(file: &Path, old: &str, new: &str) {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    assert!(text.contains(old), "'{old}' is not in {}:\n{text}", file.display());
    fs::write(file, text.replace(old, new)).expect("it can be written");
}

/// Runs a generator or package tool of the framework's own, and returns its stdout.
pub fn tool(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    // Spring would leave a server behind.
    command.args(arguments).current_dir(directory).env("DISABLE_SPRING", "1");
    if let Some(version) = packaged_bundler() {
        command.env("BUNDLER_VERSION", version);
    }
    run(command, &format!("{program} {}", arguments.join(" "))).succeeded().stdout
}

/// Returns the version of Debian's Bundler, which knows its packages of gems. Since 3.1.7 its Ruby
/// brings one of its own that does not. What was resolved with a version is used with that one,
/// also by a node.
pub fn packaged_bundler() -> Option<String> {
    const SPECIFICATIONS: &str = "/usr/share/rubygems-integration/all/specifications";
    let names = fs::read_dir(SPECIFICATIONS)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let version =
        |name: String| Some(name.strip_prefix("bundler-")?.strip_suffix(".gemspec")?.to_owned());
    names.filter_map(version).next()
}
